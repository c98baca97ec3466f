"""Remux: another container, the same frames, and nothing that MP4 does not carry."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.vidcurate.curation.probe.test_useless_times import written
from vidcurate.errors import MediaError
from vidcurate.media import decode, transcode
from vidcurate.media.container import opened
from vidcurate.media.headers import read_header_and_index
from vidcurate.media.packets import frame_map_of
from vidcurate.media.remux import remux_to_mp4

Make = Callable[..., Path]


def frames_of(source: Path | bytes, count: int) -> np.ndarray:
    return decode.read_frames(source, range(count), height=64, width=96)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clip.mkv", {}),
        ("clip.webm", {"codec": "libvpx-vp9", "crf": 30}),
        ("clip.mov", {}),
        ("clip.ts", {}),
        ("clip.mkv", {"rotation_degrees": 90}),
    ],
)
def test_every_frame_and_time_comes_over(make_video: Make, tmp_path: Path, name: str, options: dict) -> None:  # type: ignore[type-arg]
    source = make_video(name, num_frames=24, **options)

    payload = remux_to_mp4(source)

    assert payload is not None
    assert payload == remux_to_mp4(source)
    (tmp_path / "clip.mp4").write_bytes(payload)
    before, after = read_header_and_index(source)[0], read_header_and_index(tmp_path / "clip.mp4")[0]
    assert after.container == "mov"
    assert (after.codec, after.width, after.height, after.rotation_degrees) == (
        before.codec,
        before.width,
        before.height,
        before.rotation_degrees,
    )
    assert np.array_equal(frames_of(source, 24), frames_of(payload, 24))
    times, was = frame_map_of(payload), frame_map_of(source)
    assert times is not None
    assert len(times) == 24
    if was is not None:
        steps = np.diff(np.sort(was.pts)) * float(was.time_base)
        assert np.allclose(np.diff(np.sort(times.pts)) * float(times.time_base), steps, atol=1e-3)


@pytest.mark.parametrize("fps", [24.0, 25.0, 30000 / 1001, 12.5, 60.0])
@pytest.mark.parametrize("num_frames", [24, 37, 53])
def test_one_constant_rate_in_matroska_is_that_rate_in_mp4(
    make_video: Make, tmp_path: Path, num_frames: int, fps: float
) -> None:
    source = make_video("clip.mkv", num_frames=num_frames, fps=fps)

    for payload in (remux_to_mp4(source), transcode.trim_video(source, None, None).payload):
        assert payload is not None
        with opened(payload) as (_, stream):
            assert float(stream.average_rate) == fps
        times = frame_map_of(payload)
        assert times is not None
        seconds = (np.sort(times.pts) - times.pts.min()) * float(times.time_base)
        assert np.allclose(seconds, np.arange(num_frames) / fps, atol=1e-9, rtol=0)


def test_uneven_times_in_matroska_stay_as_they_are(tmp_path: Path) -> None:
    numbers = [number + 3 * (number // 5) for number in range(60)]
    source = written(tmp_path / "uneven.mkv", numbers, rate=25)

    payload = remux_to_mp4(source)

    assert payload is not None
    times = frame_map_of(payload)
    assert times is not None
    shown = np.sort(times.pts) - times.pts.min()
    assert (shown * float(times.time_base) * 25).round(6).tolist() == numbers


def test_a_codec_that_mp4_does_not_carry_is_left_as_it_is(make_video: Make) -> None:
    assert remux_to_mp4(make_video("clip.avi", codec="mjpeg", crf=None, pixel_format="yuvj420p")) is None


def test_a_cut_file_is_left_or_refused_and_never_half_written(make_video: Make, tmp_path: Path) -> None:
    data = make_video("clip.mkv", num_frames=24).read_bytes()
    for size in range(0, len(data), len(data) // 17):
        (tmp_path / "cut.mkv").write_bytes(data[:size])
        try:
            payload = remux_to_mp4(tmp_path / "cut.mkv")
        except MediaError:
            continue
        if payload is not None:
            known, made = frame_map_of(tmp_path / "cut.mkv"), frame_map_of(payload)
            assert made is not None
            assert known is None or len(known) == len(made)


def test_the_real_clips_keep_their_frames(shared: Path) -> None:
    remuxed = 0
    for path in sorted((shared / "data" / "clips").iterdir()):
        if path.suffix in (".mp4", ".json", ".csv") or path.stat().st_size > 600_000:
            continue
        try:
            payload = remux_to_mp4(path)
        except MediaError:
            continue
        if payload is None:
            continue
        remuxed += 1
        last = len(frame_map_of(payload) or ()) - 1
        wanted = decode.read_frames(path, [0, last // 2], height=64, width=96)
        assert np.array_equal(wanted, decode.read_frames(payload, [0, last // 2], height=64, width=96)), path
    assert remuxed >= 2
