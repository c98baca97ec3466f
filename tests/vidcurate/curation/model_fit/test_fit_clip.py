"""Fit of one clip to one model: the rules of the table, over random clips and against published numbers."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidcurate.curation.model_fit.fit_clip import exact_rate, fit_clip, frames_at
from vidcurate.curation.model_fit.models import MODELS, check_choice, models_named
from vidcurate.errors import InputError
from vidcurate.media import transcode

RATES = [8.0, 10.0, 12.0, 15.0, 16.0, 24000 / 1001, 24.0, 25.0, 30000 / 1001, 30.0, 50.0, 60000 / 1001, 60.0]
CLIP = {"width": 1920, "height": 1080, "fps": 30.0, "num_frames": 300, "duration_seconds": 10.0}


def fitted(name: str, **changed: object):  # type: ignore[no-untyped-def]
    return fit_clip(MODELS[name], **(CLIP | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "size", "frames", "rate"),
    [
        ("wan2.1", (1280, 720), 81, 16),
        ("wan2.2", (1280, 704), 121, 24),
        ("hunyuan1.5", (1280, 720), 121, 24),
        ("ltx2", (1280, 704), 121, 30),
        ("cogvideox", (720, 480), 49, 8),
        ("cogvideox1.5", (1360, 768), 145, 16),  # 160 frames of 10 s: 16 x 9 + 1
        ("mochi", (848, 480), 85, 30),
        ("stdit3", (1280, 720), 289, 30),
    ],
)
def test_ten_seconds_of_full_hd(name: str, size: tuple[int, int], frames: int, rate: float) -> None:
    fit = fitted(name)

    assert fit.reason is None
    assert (fit.width, fit.height) == size
    assert (fit.num_frames, fit.fps) == (frames, rate)
    assert fit.duration_seconds == pytest.approx(frames / rate)


@pytest.mark.parametrize(
    ("name", "width", "height", "frames", "tokens"),
    [
        ("wan2.1", 832, 480, 81, 32_760),  # the sequence lengths in Wan's own reports
        ("wan2.1", 1280, 720, 81, 75_600),
        ("ltx2", 960, 544, 49, 30 * 17 * 7),  # (H/32) (W/32) ((F-1)/8 + 1), dataset-preparation.md
        ("stdit3", 640, 360, 51, 40 * 22 * 15),
        ("cogvideox", 720, 480, 49, 45 * 30 * 13),
    ],
)
def test_tokens_are_those_of_the_published_formula(
    name: str, width: int, height: int, frames: int, tokens: int
) -> None:
    assert MODELS[name].num_tokens(width, height, frames) == tokens


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"num_frames": 12, "duration_seconds": 0.4}, "too_short"),
        ({"width": 640, "height": 360}, "too_small"),
        ({"num_frames": 1}, "still_image"),
        ({"width": None}, "unknown"),
        ({"fps": 0.0}, "unknown"),
        ({"fps": math.nan}, "unknown"),
        ({"fps": math.inf}, "unknown"),
        ({"fps": 1e-9}, "unknown"),
        ({"num_frames": None}, "unknown"),
    ],
)
def test_a_clip_that_is_not_taken_has_a_reason(changed: dict[str, object], reason: str) -> None:
    fit = fitted("mochi", **changed)

    assert fit.reason == reason
    assert (fit.width, fit.height, fit.num_frames, fit.tokens) == (0, 0, 0, 0)


def test_a_size_class_and_a_frame_count_are_kept_to() -> None:
    assert fitted("wan2.1", size="480p").size == "480p"
    assert fitted("wan2.1", size="480p").width == 848  # 16:9 in the area of 832 x 480, in steps of 16
    assert fitted("wan2.1", frames=49).num_frames == 49
    assert fitted("wan2.1", frames=49, num_frames=60, duration_seconds=2.0).reason == "too_short"


def test_a_small_clip_keeps_its_size_and_says_so() -> None:
    fit = fitted("wan2.1", width=330, height=250)

    assert (fit.size, fit.width, fit.height) == (None, 320, 240)
    assert fit.crop_share == pytest.approx(1 - (330 / 250) / (320 / 240))
    assert fit.scale == pytest.approx(320 / 330, rel=0.02)


def test_a_shorter_duration_than_the_frames_say_counts() -> None:
    assert fitted("wan2.1", duration_seconds=2.0).num_frames == 29  # 32 frames at 16 frames/s


@pytest.mark.parametrize(
    ("name", "size", "frames", "words"),
    [
        ("wan2.1", "1080p", None, "--size 1080p: wan2.1 has no such size. Its sizes: 480p, 720p."),
        ("wan2.1", None, 80, "--frames 80: wan2.1 takes 4n[+]1 frames, from 5 to 81. The nearest: 77."),
        ("mochi", None, 3, "The nearest: 25."),
    ],
)
def test_a_choice_that_no_clip_can_have_is_refused(
    name: str, size: str | None, frames: int | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check_choice([MODELS[name]], size=size, frames=frames)


def test_an_unknown_model_brings_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--model wan21: unknown model\. Did you mean wan2\.1\?"):
        models_named("mochi,wan21")
    with pytest.raises(InputError, match="no model is named"):
        models_named(" , ")


def test_every_row_of_the_table_is_consistent() -> None:
    for name, model in MODELS.items():
        assert model.name == name
        for frames in (model.fewest_frames, model.most_frames):
            assert model.is_valid_frame_count(frames)
        areas = [size.width * size.height for size in model.sizes]
        assert areas == sorted(areas)
        if model.is_fixed_size:
            for one in model.sizes:
                assert one.width % model.size_multiple_px == one.height % model.size_multiple_px == 0
        assert {one.size for one in model.memory} <= {one.name for one in model.sizes}
        assert "/" in model.source
        assert model.date >= "2026-11-23"


clips = st.fixed_dictionaries(
    {
        "width": st.integers(1, 4096),
        "height": st.integers(1, 4096),
        "fps": st.sampled_from(RATES) | st.floats(1, 120),
        "num_frames": st.integers(1, 2000),
    }
)


@given(st.sampled_from(sorted(MODELS)), clips)
def test_what_is_taken_keeps_every_rule_of_the_model(name: str, clip: dict[str, float]) -> None:
    model = MODELS[name]
    fit = fit_clip(model, **clip, duration_seconds=clip["num_frames"] / clip["fps"])  # type: ignore[arg-type]
    rate = exact_rate(model.fps or clip["fps"])
    there = frames_at(
        rate,
        fps=exact_rate(clip["fps"]),
        num_frames=int(clip["num_frames"]),
        duration_seconds=clip["num_frames"] / clip["fps"],
    )

    if fit.reason == "still_image":
        assert clip["num_frames"] == 1
    elif fit.reason == "too_short":
        assert not model.most_valid(there)
    elif fit.reason == "too_small":
        least = min((one.width, one.height) for one in model.sizes) if model.is_fixed_size else None
        sides = least or (model.size_multiple_px, model.size_multiple_px)
        assert clip["width"] < sides[0] or clip["height"] < sides[1]
    else:
        assert model.is_valid_frame_count(fit.num_frames)
        assert fit.num_frames <= there
        assert fit.num_frames + model.frame_step > min(there, model.most_frames)
        assert fit.width % model.size_multiple_px == fit.height % model.size_multiple_px == 0
        assert 0 < fit.width <= clip["width"]
        assert 0 < fit.height <= clip["height"]
        assert 0 <= fit.crop_share < 1
        assert 0 < fit.scale <= 1
        assert 0 < fit.used_share <= 1
        assert fit.tokens >= 0


@given(st.sampled_from(RATES), st.sampled_from([8, 16, 24, 30]), st.integers(1, 400), st.sampled_from([0, 3]))
def test_no_more_frames_are_promised_than_transcoding_writes(
    own: float, wanted: int, num_frames: int, decimals: int
) -> None:
    fps, rate = exact_rate(own), Fraction(wanted)
    times = [float(number / fps) for number in range(num_frames)]
    if decimals:  # Matroska rounds to milliseconds
        times = [round(time, decimals) for time in times]
    written = sum(1 for _ in transcode._held(iter([(time, None) for time in times]), fps, rate))
    promised = frames_at(rate, fps=fps, num_frames=num_frames, duration_seconds=num_frames / own)

    assert promised <= written <= promised + 1


def test_the_page_has_every_row_of_the_table() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "exports.md").read_text(encoding="utf-8")
    for model in MODELS.values():
        sizes = ", ".join(f"{one.width}x{one.height}" for one in model.sizes)
        rate = "the clip's" if model.fps is None else f"{model.fps:g}"
        frames = f"{model.frame_step}n+{model.frame_offset}, {model.fewest_frames} to {model.most_frames}"
        areas = "" if model.is_fixed_size else "areas of "
        cells = [f"`{model.name}`", model.title, rate, frames, f"{areas}{sizes}", str(model.size_multiple_px)]
        assert f"| {' | '.join(cells)} |" in page
