"""Twins share their hashes, strangers do not; a clip inside a file is scored as the clip cut out of it."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.frame_clips import Frames, barred, panned, still
from vidcurate.curation.dedup.orientations import ORIENTATIONS, turned
from vidcurate.curation.frame_scores.hashes import FLAT, POSITIONS, hash_pictures
from vidcurate.curation.frame_scores.sample import read_sample
from vidcurate.curation.frame_scores.scorer import FrameView
from vidcurate.curation.frame_scores.scorers import ClipFile, measure
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.errors import MediaError
from vidcurate.media import encode, transcode

FPS = 24


def scored(path: Path, start: float | None = None, end: float | None = None) -> dict[str, Any]:
    return measure(ClipFile(path=str(path), start_seconds=start, end_seconds=end), FramesSpec())


def written(path: Path, frames: Frames, **options: Any) -> Path:
    encode.write_video(path, frames, fps=FPS, **options)
    return path


def distances(one: list[int], other: list[int]) -> list[int]:
    return [(a ^ b).bit_count() for a, b in zip(one, other, strict=True)]


def remuxed(source: Path, target: Path) -> Path:
    """Copy the video packets into another container."""
    with av.open(str(source)) as before, av.open(str(target), "w") as after:
        stream = after.add_stream_from_template(before.streams.video[0])
        for packet in before.demux(before.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                after.mux(packet)
    return target


# ── perceptual hashes ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "change", "options"),
    [
        ("coarse.mp4", lambda frames: frames, {"crf": 36}),
        ("other.webm", lambda frames: frames, {"codec": "libvpx-vp9", "crf": 34}),
        ("small.mp4", lambda frames: frames[:, ::2, ::2], {}),
        ("bright.mp4", lambda frames: (frames * 0.8 + 30).astype(np.uint8), {}),
        ("slow.mp4", lambda frames: frames.repeat(2, axis=0), {}),
    ],
)
def test_a_twin_has_nearly_the_same_hashes(
    tmp_path: Path, name: str, change: Callable[[Frames], Frames], options: dict[str, Any]
) -> None:
    frames = panned(3, 1, 40, 144, 256)
    one = scored(written(tmp_path / "one.mp4", frames))["perceptual_hashes"]

    twin = scored(written(tmp_path / name, change(frames), **options))["perceptual_hashes"]

    assert len(one) == len(POSITIONS)
    assert max(distances(one, twin)) <= 6


@pytest.mark.parametrize(("down", "across"), [(17, 31), (22, 22), (40, 9), (3, 2), (0, 50)])
def test_a_copy_between_bars_has_nearly_the_hashes_and_thumbnail_of_the_clip(
    tmp_path: Path, down: int, across: int
) -> None:
    frames = still(12, 144, 256, 4) // 2 + 60  # no bar of any cell is as dark
    plain = scored(written(tmp_path / "plain.mp4", frames))

    boxed = np.pad(frames, ((0, 0), (down, down), (across, across), (0, 0)))
    twin = scored(written(tmp_path / "boxed.mp4", boxed))

    assert max(distances(plain["perceptual_hashes"], twin["perceptual_hashes"])) <= 6
    assert np.abs(np.subtract(plain["perceptual_thumbnail"], twin["perceptual_thumbnail"])).max() <= 6


def test_strangers_have_far_hashes(tmp_path: Path) -> None:
    found = [
        scored(written(tmp_path / f"{seed}.mp4", panned(2, 1, 10, 144, 256, seed)))["perceptual_hashes"]
        for seed in range(8)
    ]

    for number, one in enumerate(found):
        for other in found[number + 1 :]:
            assert np.median(distances(one, other)) >= 18


def test_two_clips_that_begin_alike_are_reported_apart(tmp_path: Path) -> None:
    black = np.zeros((4, 144, 256, 3), np.uint8)
    one, other = (
        scored(
            written(
                tmp_path / f"{seed}.mp4", np.concatenate([black, panned(2, 1, 20, 144, 256, seed), black])
            )
        )["perceptual_hashes"]
        for seed in (1, 2)
    )

    assert one[0] == other[0] == one[-1] == other[-1] == FLAT
    assert FLAT not in one[1:-1]
    assert min(distances(one[1:-1], other[1:-1])) >= 12


def test_the_hashes_of_a_turned_or_mirrored_picture_follow_from_its_own() -> None:
    for seed in range(20):
        picture = still(1, 144, 256, seed)[0, :, :, 1]
        own = np.asarray(hash_pictures([picture]), dtype=np.uint64)

        for name, (transpose, left_right, top_bottom) in ORIENTATIONS.items():
            shown = picture.T if transpose else picture
            shown = shown[:, ::-1] if left_right else shown
            shown = np.ascontiguousarray(shown[::-1] if top_bottom else shown)
            assert (int(turned(own, name)[0]) ^ hash_pictures([shown])[0]).bit_count() <= 2, (seed, name)


def test_a_clip_turned_by_its_header_has_the_hashes_of_the_upright_one(tmp_path: Path) -> None:
    frames = panned(2, 1, 12, 144, 256)
    upright = scored(written(tmp_path / "a.mp4", np.rot90(frames, -1, axes=(1, 2))))["perceptual_hashes"]

    by_header = scored(written(tmp_path / "b.mp4", frames, rotation_degrees=90))["perceptual_hashes"]

    assert max(distances(upright, by_header)) <= 3


# ── packet hash ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "codec", "others"),
    [
        ("a.mp4", "libx264", ("b.mkv", "c.mov", "d.ts", "e.flv")),
        ("a.mp4", "libx265", ("b.mkv", "d.ts")),
        ("a.webm", "libvpx-vp9", ("b.mkv", "c.mp4")),
    ],
)
def test_a_file_and_its_remux_have_one_packet_hash(
    tmp_path: Path, name: str, codec: str, others: tuple[str, ...]
) -> None:
    source = written(tmp_path / name, panned(3, 1, 30, 144, 256), codec=codec, gop=12, crf=30)
    value = scored(source)["packet_hash"]

    assert len(value) == 32
    for other in others:
        assert scored(remuxed(source, tmp_path / other))["packet_hash"] == value, other


def test_the_same_pictures_coded_otherwise_have_another_packet_hash(tmp_path: Path) -> None:
    frames = panned(3, 1, 12, 144, 256)
    hashes = [
        scored(written(tmp_path / f"{number}.mp4", frames, **options))["packet_hash"]
        for number, options in enumerate([{"crf": 20}, {"crf": 21}, {"crf": 20, "gop": 5}])
    ]

    assert len(set(hashes)) == 3


# ── intervals ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_a_clip_inside_a_file_is_scored_as_the_clip_cut_out_of_it(tmp_path: Path, suffix: str) -> None:
    frames = np.concatenate(
        [panned(2, 0, 24, 144, 256, 1), panned(1, 2, 30, 144, 256, 2), np.zeros((18, 144, 256, 3), np.uint8)]
    )
    whole = written(tmp_path / f"whole.{suffix}", frames, gop=12)
    start, end = 12 / FPS, 60 / FPS  # a key frame's time, and one before the end
    cut = transcode.trim_video(whole, start, end)
    part = tmp_path / f"part.{cut.extension}"
    part.write_bytes(cut.payload)

    inside, alone = scored(whole, start, end), scored(part)

    assert inside["num_frames_decoded"] == alone["num_frames_decoded"] == 48
    assert inside["cut_seconds"] == pytest.approx([12 / FPS, 42 / FPS], abs=0.001)
    assert inside["packet_hash"] == alone["packet_hash"]
    for name, value in alone.items():
        assert inside[name] == (
            pytest.approx(value, abs=2e-3)
            if isinstance(value, float)
            else pytest.approx(value, abs=2e-3)
            if name == "cut_seconds"
            else value
        ), name


def test_an_interval_between_key_frames_has_its_frames_and_no_others(tmp_path: Path) -> None:
    frames = np.stack([np.full((64, 96, 3), 4 * number, np.uint8) for number in range(60)])
    path = written(tmp_path / "steps.mp4", frames, gop=30, crf=1)

    columns = scored(path, 17 / FPS, 41 / FPS)

    assert columns["num_frames_decoded"] == 24
    assert columns["brightness_first"] == columns["brightness_min"] == pytest.approx(4 * 17, abs=1.5)
    assert columns["brightness_max"] == pytest.approx(4 * 40, abs=1.5)


def test_an_interval_behind_the_end_has_no_frames(tmp_path: Path) -> None:
    path = written(tmp_path / "short.mp4", still(6, 64, 96))

    with pytest.raises(MediaError, match=r"short\.mp4: no frame decodes") as caught:
        scored(path, 5.0, 9.0)
    assert caught.value.kind == "no_frames"


# ── sound ───────────────────────────────────────────────────────────────────────────────────────────────


def _with_sound(path: Path, samples: np.ndarray[Any, Any], codec: str) -> Path:
    """Write half a second of grey with the sound (float, -1 to 1, 48 kHz mono) beside it."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        sound: Any = container.add_stream(codec, rate=48_000, layout="mono")
        for _ in range(12):
            grey = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 90, np.uint8), format="rgb24")
            container.mux(stream.encode(grey))
        container.mux(stream.encode(None))
        for start in range(0, len(samples), 1024):
            block = av.AudioFrame.from_ndarray(
                samples[None, start : start + 1024].astype(np.float32), format="fltp", layout="mono"
            )
            block.sample_rate, block.pts = 48_000, start
            container.mux(sound.encode(block))
        container.mux(sound.encode(None))
    return path


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "aac"), ("b.mkv", "pcm_s16le"), ("c.mkv", "libopus")])
def test_silence_is_reported_from_quiet_sound(tmp_path: Path, name: str, codec: str) -> None:
    wave = np.sin(np.arange(24_000) / 48_000 * 2 * np.pi * 440) * np.hanning(24_000)

    quiet = scored(_with_sound(tmp_path / name, 0.004 * wave, codec))
    silent = scored(_with_sound(tmp_path / f"silent-{name}", 0.0 * wave, codec))

    assert (quiet["is_audio_silent"], silent["is_audio_silent"]) == (False, True)


def test_a_clip_without_sound_is_not_silent_but_without(tmp_path: Path) -> None:
    columns = scored(written(tmp_path / "mute.mp4", still(4, 64, 96)))

    assert columns["is_audio_silent"] is None


# ── a score is one file and one line ────────────────────────────────────────────────────────────────────


class Redness:
    """A score as someone else would write it."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def see(self, look: FrameView) -> None:
        self.values.append(float(look.bgr[..., 2].mean() - look.bgr[..., :2].mean()))

    def finish(self, end_seconds: float) -> dict[str, Any]:
        return {"redness": np.mean(self.values), "seconds": end_seconds}


def test_a_new_score_needs_a_file_and_a_line(tmp_path: Path) -> None:
    frames = np.zeros((12, 64, 96, 3), np.uint8)
    frames[..., 0] = 200

    columns = measure(
        ClipFile(path=str(written(tmp_path / "red.mp4", frames))),
        FramesSpec(),
        {"redness": lambda spec: Redness()},
    )

    assert columns["redness"] == pytest.approx(200, abs=6)
    assert columns["seconds"] == pytest.approx(0.5)


def test_bars_are_seen_in_a_pillarboxed_portrait(tmp_path: Path) -> None:
    frames = barred(panned(2, 1, 8, 360, 640), left=218, right=219)

    columns = scored(written(tmp_path / "pillars.mp4", frames))

    assert [columns["letterbox_left_px"], columns["letterbox_right_px"]] == pytest.approx([218, 219], abs=1)


def test_bars_are_seen_in_a_short_clip_that_fades_in(tmp_path: Path) -> None:
    fading = panned(2, 1, 20, 144, 256) * np.linspace(0, 1, 20)[:, None, None, None]
    frames = barred(fading.astype(np.uint8), top=18, bottom=20)

    columns = scored(written(tmp_path / "fade.mp4", frames))  # its one frame a second is black

    assert [columns["letterbox_top_px"], columns["letterbox_bottom_px"]] == pytest.approx([18, 20], abs=1)


# ── frames for other scores ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi"])
def test_sampled_frames_are_those_at_their_shares_of_the_clip(tmp_path: Path, suffix: str) -> None:
    frames = np.stack([np.full((64, 96, 3), 4 * number, np.uint8) for number in range(60)])
    options: dict[str, Any] = {"codec": "mpeg4", "crf": None} if suffix == "avi" else {"crf": 1}
    path = written(tmp_path / f"steps.{suffix}", frames, gop=12, **options)

    whole = read_sample(path, None, None, height=32, width=32)
    part = read_sample(path, 20 / FPS, 40 / FPS, height=32, width=32, positions=(0.0, 0.5, 1.0))

    assert whole.shape == (5, 32, 32, 3)
    assert whole.mean(axis=(1, 2, 3)) == pytest.approx([4 * number for number in (6, 18, 30, 42, 54)], abs=3)
    assert part.mean(axis=(1, 2, 3)) == pytest.approx([80, 120, 156], abs=3)


def test_a_clip_of_one_frame_gives_it_for_every_share(tmp_path: Path) -> None:
    path = written(tmp_path / "one.mp4", still(1, 64, 96))

    sampled = read_sample(path, None, None, height=32, width=32)

    assert len(sampled) == 5
    assert np.ptp(sampled, axis=0).max() == 0


def test_the_bars_of_wide_pixels_are_said_as_displayed(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream: Any = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(3, 2)
        for image in barred(panned(3, 1, num_frames=12, height=240, width=320), 20, 0, 30, 40):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))

    columns = measure(ClipFile(path=str(tmp_path / "clip.mp4")), FramesSpec())

    found = [columns[f"letterbox_{side}_px"] for side in ("top", "bottom", "left", "right")]
    assert np.abs(np.subtract(found, (20, 0, 45, 60))).max() <= 2
