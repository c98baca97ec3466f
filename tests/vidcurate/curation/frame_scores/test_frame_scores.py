"""Scores have truth: clips with known motion, blur, black, freeze, bars, light and cuts give those values."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.frame_clips import Frames, barred, panned, shapes, still, texture
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.frame_scores import motion
from vidcurate.curation.frame_scores.cuts import Cuts
from vidcurate.curation.frame_scores.scorer import FrameView
from vidcurate.curation.frame_scores.scorers import ClipFile, measure
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.media import encode

FPS = 24


def scored(folder: Path, frames: Frames, **options: Any) -> dict[str, Any]:
    """Encode the frames and return their scores."""
    path = folder / "clip.mp4"
    encode.write_video(path, frames, fps=FPS, **options)
    return measure(ClipFile(path=str(path)), FramesSpec())


def test_a_clip_has_every_column_of_the_stage(tmp_path: Path) -> None:
    columns = scored(tmp_path, panned(2, 0))

    status = {"frames_status", "frames_problem"}
    assert set(columns) | status == {name for name, column in COLUMNS.items() if column.stage == "frames"}
    assert columns["num_frames_decoded"] == 24
    assert columns["num_frames_damaged"] == 0


# ── motion ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "step", [(0.5, 0), (1, 0), (-2, 1), (0, 4), (6, -6), (0, -12), (24, 0)], ids=lambda step: f"{step}"
)
def test_motion_is_the_pixels_a_frame_that_the_picture_moves(tmp_path: Path, step: tuple[float, ...]) -> None:
    columns = scored(tmp_path, panned(*step), crf=23)

    truth = float(np.hypot(*step)) * 144 / 288
    for aggregate in ("mean", "median", "first", "min", "max"):
        assert columns[f"motion_px_per_frame_{aggregate}"] == pytest.approx(truth, rel=0.1), aggregate


@pytest.mark.parametrize("crf", [18, 35])
def test_a_picture_at_rest_has_no_motion(tmp_path: Path, crf: int) -> None:
    assert scored(tmp_path, still(), crf=crf)["motion_px_per_frame_max"] < 0.05


@pytest.mark.parametrize(("height", "width"), [(144, 256), (576, 1024), (512, 288)])
def test_motion_is_said_for_one_size_whatever_the_clips(tmp_path: Path, height: int, width: int) -> None:
    step = 8 * min(height, width) / 288

    columns = scored(tmp_path, panned(step, 0, num_frames=12, height=height, width=width))

    assert columns["motion_px_per_frame_mean"] == pytest.approx(4.0, rel=0.1)


def test_the_length_of_a_flow_is_the_same_wherever_it_lies_in_memory() -> None:
    source, kept, lengths = np.random.default_rng(0), [], set()
    flow = source.normal(size=(96, 170, 2)).astype(np.float32)
    for size in source.integers(1_000, 300_000, 100):
        kept.append(bytes(size))  # what is made next lies elsewhere
        lengths.add(motion.mean_length(flow.copy()))
    assert len(lengths) == 1
    assert lengths.pop() == pytest.approx(float(np.hypot(flow[..., 0], flow[..., 1]).mean()), rel=1e-6)


def test_motion_of_a_part_of_the_picture_counts_by_its_area(tmp_path: Path) -> None:
    ground, thing = texture(288, 512, 3), texture(144, 144, 5) * np.float32(0.6) + 60
    frames = np.stack([ground] * 20)
    for number in range(20):
        frames[number, 72:216, 60 + 8 * number : 204 + 8 * number] = thing

    columns = scored(tmp_path, np.rint(frames).astype(np.uint8))

    assert columns["motion_px_per_frame_mean"] == pytest.approx(4 * 144 * 144 / (288 * 512), rel=0.2)


def test_a_cut_and_a_flash_are_no_motion(tmp_path: Path) -> None:
    frames = np.concatenate([still(9), still(9, seed=7), panned(2, 0, num_frames=10, seed=2)])
    frames[22] = 255

    assert scored(tmp_path, frames)["motion_px_per_frame_max"] < 1.2


# ── sharpness ───────────────────────────────────────────────────────────────────────────────────────────


def _blurred(sigma: float, contrast: float = 1.0) -> Frames:
    image = cv2.GaussianBlur(shapes(contrast=contrast), (0, 0), sigma) if sigma else shapes(contrast=contrast)
    return np.rint(np.clip(np.stack([image] * 3), 0, 255)).astype(np.uint8)


@pytest.mark.parametrize("crf", [12, 26])
def test_sharpness_is_one_over_the_blur(tmp_path: Path, crf: int) -> None:
    sigmas = [0.0, 0.7, 1.0, 2.0, 4.0, 6.0]

    found = [scored(tmp_path, _blurred(sigma), crf=crf)["sharpness_mean"] for sigma in sigmas]

    assert found == sorted(found, reverse=True)
    assert found[0] == 2.0  # no edge on a grid of pixels is sharper
    for sigma, sharpness in list(zip(sigmas, found, strict=True))[1:]:
        assert 1 / sharpness == pytest.approx(sigma, rel=0.2, abs=0.15), sigma


def test_sharpness_does_not_depend_on_contrast_nor_on_bars(tmp_path: Path) -> None:
    usual = scored(tmp_path, _blurred(2.0))["sharpness_mean"]

    assert scored(tmp_path, _blurred(2.0, contrast=0.4))["sharpness_mean"] == pytest.approx(usual, rel=0.1)
    bars = barred(_blurred(2.0), top=100, bottom=100)
    assert scored(tmp_path, bars)["sharpness_mean"] == pytest.approx(usual, rel=0.1)


def test_a_picture_without_an_edge_has_no_sharpness(tmp_path: Path) -> None:
    assert scored(tmp_path, np.full((4, 64, 64, 3), 90, np.uint8))["sharpness_mean"] is None


# ── black and frozen ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("crf", [18, 35])
def test_black_frames_are_counted_and_located(tmp_path: Path, crf: int) -> None:
    moving, black = panned(3, 1, 30, 144, 256), np.zeros((12, 144, 256, 3), np.uint8)
    frames = np.concatenate([black[:7], moving[:20], black[:3], moving[20:], black[:5]])

    columns = scored(tmp_path, frames, crf=crf)

    assert columns["black_share"] == pytest.approx(15 / 45, abs=1e-6)
    assert columns["black_head_seconds"] == pytest.approx(7 / FPS, abs=0.001)
    assert columns["black_tail_seconds"] == pytest.approx(5 / FPS, abs=0.001)


def test_a_black_clip_is_black_from_head_to_tail(tmp_path: Path) -> None:
    columns = scored(tmp_path, np.zeros((12, 64, 96, 3), np.uint8))

    assert columns["black_share"] == 1.0
    assert columns["black_head_seconds"] == columns["black_tail_seconds"] == pytest.approx(0.5)


def test_a_dark_scene_is_not_black(tmp_path: Path) -> None:
    dark = (panned(2, 1) * 0.25).astype(np.uint8)

    assert scored(tmp_path, dark)["black_share"] == 0.0


@pytest.mark.parametrize("crf", [18, 28])
def test_frozen_frames_are_counted_and_the_longest_run_is_timed(tmp_path: Path, crf: int) -> None:
    moving = panned(2, 0, num_frames=40)
    frames = np.concatenate([moving[:10], np.repeat(moving[10:11], 12, axis=0), moving[11:31], moving[30:31]])

    columns = scored(tmp_path, frames, crf=crf)

    assert columns["frozen_share"] == pytest.approx(12 / 42, abs=1.01 / 42)
    assert columns["frozen_longest_seconds"] == pytest.approx(12 / FPS, abs=1.01 / FPS)


def test_a_slow_pan_and_a_small_thing_that_moves_are_not_frozen(tmp_path: Path) -> None:
    blink = still(24)
    for number in range(24):
        blink[number, 100:116, 200:224] = 40 + 8 * number

    assert scored(tmp_path, panned(0.5, 0))["frozen_share"] == 0.0
    assert scored(tmp_path, panned(0.1, 0, num_frames=48))["frozen_longest_seconds"] < 0.7
    assert scored(tmp_path, blink)["frozen_share"] < 0.1


# ── bars ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("crf", [18, 32])
@pytest.mark.parametrize(
    ("height", "width", "bars"),
    [
        (360, 640, (44, 46, 0, 0)),
        (360, 640, (0, 0, 80, 82)),
        (640, 360, (100, 101, 0, 0)),
        (360, 640, (30, 30, 40, 44)),
        (360, 640, (0, 0, 0, 0)),
        (640, 360, (0, 0, 0, 0)),
    ],
)
def test_the_crop_that_removes_the_bars_is_found_to_the_pixel(
    tmp_path: Path, height: int, width: int, bars: tuple[int, ...], crf: int
) -> None:
    frames = barred(panned(3, 1, num_frames=12, height=height, width=width), *bars)

    columns = scored(tmp_path, frames, crf=crf)

    found = [columns[f"letterbox_{side}_px"] for side in ("top", "bottom", "left", "right")]
    assert np.abs(np.subtract(found, bars)).max() <= 1
    if not any(bars):
        assert found == [0, 0, 0, 0]


def test_the_bars_of_a_turned_clip_are_said_as_displayed(tmp_path: Path) -> None:
    frames = barred(panned(3, 1, num_frames=12, height=360, width=640), top=40, left=90)

    columns = scored(tmp_path, frames, rotation_degrees=90)  # what is above goes to the right

    found = [columns[f"letterbox_{side}_px"] for side in ("top", "bottom", "left", "right")]
    assert np.abs(np.subtract(found, (90, 0, 0, 40))).max() <= 1


def _lamp(radius: int) -> Frames:
    frames = np.full((12, 288, 512, 3), 3, np.uint8)
    for number in range(12):
        cv2.circle(frames[number], (120 + 24 * number, 144), radius, (250, 220, 160), -1)
    return frames


@pytest.mark.parametrize(
    "frames",
    [
        _lamp(40),
        _lamp(90),
        np.zeros((12, 288, 512, 3), np.uint8),
        np.rint(panned(2, 1, num_frames=12) * np.linspace(0, 0.5, 288)[None, :, None, None]).astype(np.uint8),
    ],
    ids=["a lamp that moves", "a moon", "black throughout", "a dark sky"],
)
def test_a_dark_scene_has_no_bars(tmp_path: Path, frames: Frames) -> None:
    columns = scored(tmp_path, frames)

    assert [columns[f"letterbox_{side}_px"] for side in ("top", "bottom", "left", "right")] == [0, 0, 0, 0]


# ── light ───────────────────────────────────────────────────────────────────────────────────────────────


def _grey(levels: list[int]) -> Frames:
    return np.stack([np.full((64, 96, 3), level, np.uint8) for level in levels])


def test_brightness_is_the_mean_luma(tmp_path: Path) -> None:
    columns = scored(tmp_path, _grey([20] * 5 + [60] * 10 + [200] * 5))

    for aggregate, truth in {"min": 20, "mean": 85, "median": 60, "max": 200, "first": 20}.items():
        assert columns[f"brightness_{aggregate}"] == pytest.approx(truth, abs=2.0), aggregate


def test_brightness_is_the_same_in_full_and_limited_range(tmp_path: Path) -> None:
    full = scored(tmp_path, _grey([128] * 8), pixel_format="yuvj420p")
    limited = scored(tmp_path, _grey([128] * 8), pixel_format="yuv420p")

    assert full["brightness_mean"] == pytest.approx(limited["brightness_mean"], abs=2.0)


def test_flicker_is_the_height_of_the_jumps_to_and_fro(tmp_path: Path) -> None:
    assert scored(tmp_path, _grey([100, 120] * 12))["flicker"] == pytest.approx(20, abs=1.0)
    one_flash = scored(tmp_path, _grey([100] * 10 + [200] + [100] * 11))["flicker"]
    assert one_flash == pytest.approx(100 / 20, abs=0.3)


@pytest.mark.parametrize(
    "levels", [[60] * 12 + [180] * 12, list(range(20, 212, 8)), [100] * 24], ids=["cut", "fade", "still"]
)
def test_a_cut_and_a_fade_are_no_flicker(tmp_path: Path, levels: list[int]) -> None:
    assert scored(tmp_path, _grey(levels))["flicker"] < 0.1


# ── cuts ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("lengths", "cuts"),
    [
        ((30, 30), (30,)),
        ((30, 30, 25), (30, 60)),
        ((1, 40), (1,)),
        ((40, 1), (40,)),
        ((2, 40, 2), (2, 42)),
        ((60,), ()),
    ],
)
def test_cuts_are_found_at_their_frames(
    tmp_path: Path, lengths: tuple[int, ...], cuts: tuple[int, ...]
) -> None:
    scenes = [panned(3, 1, length, 144, 256, seed) for seed, length in enumerate(lengths)]

    columns = scored(tmp_path, np.concatenate(scenes), crf=26)

    assert columns["num_cuts"] == len(cuts)
    assert columns["cut_seconds"] == pytest.approx([cut / FPS for cut in cuts], abs=0.5 / FPS)


def test_a_fast_pan_is_no_cut(tmp_path: Path) -> None:
    assert scored(tmp_path, panned(10, 3, 30, 144, 256))["cut_seconds"] == []


def _dark_noise(num_frames: int, seed: int) -> Frames:
    """Return frames of 0 to 3 levels: black to the eye, with a new hue at every pixel and frame."""
    return np.random.default_rng(seed).integers(0, 4, (num_frames, 144, 256, 3)).astype(np.uint8)


def _cuts_shown(frames: Frames) -> list[int]:
    """Return the frames at which the detector finds cuts, without a codec between."""
    spec = FramesSpec()
    cuts = Cuts(spec.cut_threshold, spec.cut_window_frames, spec.min_scene_seconds)
    for number, frame in enumerate(frames):
        bgr = np.ascontiguousarray(frame[..., ::-1])
        cuts.see(FrameView(seconds=number / FPS, bgr=bgr, grey=bgr[..., 1], brightness=0.0, luma=None))
    return [round(seconds * FPS) for seconds in cuts.finish(len(frames) / FPS)["cut_seconds"]]


def test_the_hue_of_black_pixels_is_no_cut_and_hides_none() -> None:
    black, dark = np.zeros((12, 144, 256, 3), np.uint8), _dark_noise(24, 1)
    bright = panned(2, 1, 48, 144, 256)
    fading = (bright * np.minimum(np.arange(48) / 24, 1)[:, None, None, None]).astype(np.uint8)

    assert _cuts_shown(np.concatenate([black, dark])) == []  # black begins to flicker by a level
    assert _cuts_shown(np.concatenate([black, fading])) == []
    dim = (bright[:24] * 0.3).astype(np.uint8)
    assert _cuts_shown(np.concatenate([dark, dim])) == [24]
    assert _cuts_shown(np.concatenate([dim, dark])) == [24]


def test_motion_at_the_ends_of_a_clip_is_no_cut() -> None:
    on_twos = panned(12, 3, 16, 144, 256).repeat(2, axis=0)  # an animation's frames are shown twice

    for first, last in ((0, 31), (1, 31), (1, 32), (0, 32)):
        assert _cuts_shown(on_twos[first:last]) == [], (first, last)


def test_of_two_cuts_too_near_each_other_the_stronger_counts() -> None:
    frames = panned(2, 1, 60, 144, 256)
    frames[20:] = np.clip(frames[20:] * 0.3, 0, 255).astype(np.uint8)  # the light goes down
    frames[28:] = panned(2, 1, 32, 144, 256, seed=9)

    assert _cuts_shown(frames) == [28]
