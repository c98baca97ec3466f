"""Clips whose times say nothing, or begin again in the file, have a note of it, and no others have."""

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.conftest import moving_square
from tests.vidcurate.curation.probe.test_clean_clips import LEVELS, verdicts, without_times
from vidcurate.curation.probe.stage import probe_file

Make = Callable[..., Path]
MPEG = {".ts": "libx264", ".mts": "libx264", ".mpg": "mpeg2video", ".vob": "mpeg1video"}
WRAP_SECONDS = 2**33 / 90_000  # of the clock of a transport stream


def written(path: Path, times: list[int], *, rate: int = 24, codec: str = "", begins: float = 0.0) -> Path:
    """Write a picture at each of the times, which count in 1/`rate` s from `begins` on."""
    with av.open(os.fspath(path), "w") as container:
        stream: Any = container.add_stream(codec or MPEG.get(path.suffix, "libx264"), rate=rate)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for time, image in zip(times, moving_square(len(times), 64, 96), strict=True):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = time + round(begins * rate), Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_an_flv_whose_pictures_are_a_tick_apart_has_the_rate_of_its_header_and_a_note(
    tmp_path: Path, make_video: Make
) -> None:
    path = without_times(make_video("clip.mp4", num_frames=90), tmp_path / "tick90.flv")

    assert verdicts(path) == [("ok", "no_timestamps", 90)] * 3
    for level in LEVELS:
        row = probe_file(str(path), level)
        assert (row["fps"], row["duration_seconds"]) == (pytest.approx(24.0), pytest.approx(3.75))
        assert row["duration_seconds_from_index"] is row["duration_seconds_from_decode"] is None


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
@pytest.mark.parametrize("clock", [None, 600, 1000])
def test_an_mp4_whose_pictures_are_all_at_one_time_has_no_rate_and_a_note(
    tmp_path: Path, make_video: Make, codec: str, clock: int | None
) -> None:
    data = bytearray(make_video("clip.mp4", num_frames=48, codec=codec, crf=None).read_bytes())
    at = data.find(b"stts") + 8
    for number in range(int.from_bytes(data[at : at + 4], "big")):
        data[at + 8 + 8 * number : at + 12 + 8 * number] = bytes(4)
    if clock:
        at = data.find(b"mdhd") + 16
        data[at : at + 4] = clock.to_bytes(4, "big")
    path = tmp_path / "zeros.mp4"
    path.write_bytes(data)

    # With B-frames FFmpeg applies the edit list to the equal times, and hides some.
    assert {found[:2] for found in verdicts(path)} == {("ok", "no_timestamps")}
    assert len({found[2] for found in verdicts(path)}) == 1
    for level in LEVELS:
        row = probe_file(str(path), level)
        assert row["fps"] is row["duration_seconds"] is None


@pytest.mark.parametrize("name", ["clip.mkv", "clip.webm", *(f"clip{suffix}" for suffix in MPEG)])
@pytest.mark.parametrize("lengths", [(48, 48), (48, 30), (40, 75)])
def test_movies_one_behind_the_other_are_noted_as_several(
    tmp_path: Path, name: str, lengths: tuple[int, ...]
) -> None:
    codec = "libvpx" if name == "clip.webm" else ""
    parts = [written(tmp_path / f"{length}{name}", [*range(length)], codec=codec) for length in lengths]
    path = tmp_path / name
    path.write_bytes(b"".join(part.read_bytes() for part in parts))

    # FFmpeg promises a wrong duration of most program streams.
    alone = {found for part in parts for _, found, _ in verdicts(part)}
    assert alone <= {None, "header_duration_differs"}
    assert verdicts(path) == [("ok", "several_movies", sum(lengths))] * 3
    for level in LEVELS:
        row = probe_file(str(path), level)
        assert (row["fps"], row["is_variable_fps"]) == (pytest.approx(24.0), False)
        assert row["duration_seconds"] == pytest.approx(sum(lengths) / 24)
        assert (row["num_timestamp_gaps"] or 0) == 0


def test_a_joined_transport_stream_that_lost_packets_is_damaged(tmp_path: Path) -> None:
    data = written(tmp_path / "clip.ts", [*range(96)]).read_bytes()
    path = tmp_path / "joined.ts"
    middle = len(data) // 188 // 2 * 188
    cut = data[: middle - 1880] + data[middle - 1504 : middle] + data[middle + 376 :]
    path.write_bytes(cut + data)

    row = probe_file(str(path))

    assert row["probe_status"] == "damaged_container"
    assert "several_movies" in row["probe_findings"]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".flv", ".ts", ".mpg"])
@pytest.mark.parametrize("rate", [12, 24, 60])
def test_usual_and_uneven_times_have_no_note(tmp_path: Path, suffix: str, rate: int) -> None:
    codec = "mpeg4" if rate == 12 and suffix == ".mpg" else ""  # MPEG-2 has no 12 fps
    even = written(tmp_path / f"even{suffix}", [*range(60)], rate=rate, codec=codec)
    uneven = [number + 3 * (number // 5) for number in range(60)]
    variable = written(tmp_path / f"variable{suffix}", uneven, rate=rate, codec=codec)

    for path in (even, variable):
        for _, found, _ in verdicts(path):
            assert {"no_timestamps", "several_movies"}.isdisjoint((found or "").split(", "))


@pytest.mark.parametrize("begins", [3600.0, WRAP_SECONDS - 1, WRAP_SECONDS - 2.5])
def test_a_transport_stream_that_begins_late_or_whose_clock_wraps_has_no_note(
    tmp_path: Path, begins: float
) -> None:
    path = written(tmp_path / "clip.ts", [*range(96)], begins=begins)

    assert verdicts(path) == [("ok", None, 96)] * 3
    assert probe_file(str(path))["fps"] == pytest.approx(24.0)


def test_one_damaged_value_of_its_clock_makes_no_second_movie(tmp_path: Path) -> None:
    path = written(tmp_path / "clip.ts", [*range(48)])
    data = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, 188).copy()
    has_clock = np.flatnonzero((data[:, 3] & 0x20 > 0) & (data[:, 4] > 6) & (data[:, 5] & 0x10 > 0))
    data[has_clock[20], 6] ^= 0x10
    path.write_bytes(data.tobytes())

    assert probe_file(str(path))["probe_findings"] is None
