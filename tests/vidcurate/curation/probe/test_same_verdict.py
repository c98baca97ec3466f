"""Frame count, duration, rotation and verdict of a file are the same at every level and after any history."""

import os
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import polars as pl
import pytest

from tests.numbered_clips import numbers_in, write
from tests.vidcurate.curation.probe.test_clean_clips import trimmed
from tests.vidcurate.curation.probe.test_probe_levels import ingested
from vidcurate.curation.demo_data import damage
from vidcurate.curation.frame_scores.decode_once import Walked, walk
from vidcurate.curation.probe.stage import ProbeSpec, probe_file, run_probe
from vidcurate.media import decode, transcode
from vidcurate.media.packets import frame_map_of

Make = Callable[..., Path]
LEVELS = ("header", "index", "keyframes", "full")
_GOP = "keyint=12:min-keyint=12:scenecut=0:open-gop=1:bframes=3:b-adapt=0:rc-lookahead=12:threads=1"
_OPEN_GOP = {
    "libx264": {"x264-params": _GOP},
    "libx265": {"x265-params": f"{_GOP.removesuffix(':threads=1')}:log-level=none:pools=none"},
}


def facts_of(path: Path) -> tuple[str, str | None, int, float, int]:
    """Return what `index` says, after asserting that all levels say the same or, `header`, nothing."""
    rows = [probe_file(str(path), level) for level in LEVELS]
    found = [
        (
            row["probe_status"],
            row["probe_findings"],
            row["num_frames"],
            row["duration_seconds"],
            row["rotation_degrees"],
        )
        for row in rows
    ]
    for other in found[2:]:
        assert other[:3] == found[1][:3], rows[-1]["probe_problem"]
        assert other[3] == pytest.approx(found[1][3], abs=0.002)
        assert other[4] == found[1][4]
    assert found[0][2] in (None, found[1][2])
    assert found[0][4] == found[1][4]
    return found[1]


def copied(
    source: Path, target: Path, *, first: int = 0, filters: str = "", edit: Callable[[bytes], bytes] = bytes
) -> Path:
    """Copy a clip's packets from number `first` on, through a bit stream filter and `edit` of each packet.

    The first packet copied begins at time 0.
    """
    with av.open(os.fspath(source)) as reader, av.open(os.fspath(target), "w") as output:
        stream = reader.streams.video[0]
        sink = output.add_stream_from_template(stream)
        sink.time_base = Fraction(1, 25) if target.suffix == ".avi" else stream.time_base
        chain = av.BitStreamFilterContext(filters or "null", stream, sink)

        def out() -> Iterator[Any]:
            packets = list(reader.demux(stream))[first:]
            start = packets[0].pts if first else 0
            for packet in packets:
                if first and packet.size:
                    packet.pts, packet.dts = packet.pts - start, packet.dts - start
                yield from chain.filter(packet if packet.size else None)

        for packet in out():
            part = packet
            if edit is not bytes:
                part = av.Packet(edit(bytes(packet)))
                part.pts, part.dts, part.time_base = packet.pts, packet.dts, packet.time_base
                part.is_keyframe = packet.is_keyframe
            part.stream = sink
            output.mux(part)
    return target


@pytest.fixture(scope="module", params=["libx264", "libx265"])
def open_gop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open_gop") / f"{request.param}.mkv"
    return write(path, codec=request.param, options=_OPEN_GOP[request.param], num_frames=36)


def second_key(path: Path) -> int:
    """Return the number of the packet with the second key frame."""
    with av.open(os.fspath(path)) as container:
        packets = list(container.demux(video=0))
    return [number for number, packet in enumerate(packets) if packet.is_keyframe][1]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_copy_cut_in_an_open_gop_has_the_frames_from_its_key_frame_on(
    tmp_path: Path, open_gop: Path, suffix: str
) -> None:
    path = copied(open_gop, tmp_path / f"cut{suffix}", first=second_key(open_gop))

    assert facts_of(path)[:3] == ("ok", "open_gop_start", 24)
    frame_map = frame_map_of(path)
    assert frame_map is not None
    assert len(frame_map) == 24
    frames = decode.read_frames(path, [0, 7, 23], height=64, width=96, frame_map=frame_map)
    assert numbers_in(frames) == [12, 19, 35]


def test_an_avi_cut_in_an_open_gop_has_the_frames_from_its_key_frame_on(tmp_path: Path) -> None:
    source = write(tmp_path / "clip.mkv", options=_OPEN_GOP["libx264"], num_frames=36)

    path = copied(source, tmp_path / "cut.avi", first=second_key(source), filters="h264_mp4toannexb")

    status, found, frames, _, _ = facts_of(path)
    assert (status, frames) == ("ok", 24)
    assert "open_gop_start" in (found or "")


def test_a_whole_clip_with_open_gops_has_all_its_frames(open_gop: Path) -> None:
    assert facts_of(open_gop)[:3] == ("ok", None, 36)


@pytest.fixture(scope="module")
def with_b_frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("edits") / "whole.mp4"
    return write(path, num_frames=96, gop=24, options={"bf": "3", "x264-params": "threads=1"})


@pytest.mark.parametrize(
    ("start", "count"), [(0, 95), (0, 92), (1, 95), (2, 90), (3, 65), (4, 12), (5, 3), (30, 50)]
)
def test_an_edit_list_of_any_length_gives_one_duration(
    tmp_path: Path, with_b_frames: Path, start: int, count: int
) -> None:
    path = trimmed(with_b_frames, tmp_path / "trimmed.mp4", start=start, count=count)

    status, found, frames, duration, _ = facts_of(path)

    assert status == "ok"
    assert found in (None, "header_duration_differs")  # `trimmed` leaves the movie's duration as it was
    assert abs(frames - count) <= 1  # FFmpeg rounds an edit's ends to frames
    assert duration == pytest.approx(frames / 24, abs=0.002)
    header = probe_file(str(path), "header")
    assert (header["num_frames"], header["num_frames_from_header"]) == (None, 96)
    assert header["duration_seconds"] == pytest.approx(count / 24, abs=0.002)


@pytest.mark.parametrize("num_b_frames", [0, 2])
def test_an_avi_of_h264_with_dropped_frames_is_clean(tmp_path: Path, num_b_frames: int) -> None:
    times = [number * 40 for number in range(60) if not (10 <= number < 16 or number == 40)]
    options = {"bf": str(num_b_frames), "x264-params": "threads=1"}
    source = write(tmp_path / "gaps.mkv", times=times, num_frames=len(times), options=options)

    path = copied(source, tmp_path / "gaps.avi", filters="h264_mp4toannexb")

    status, found, frames, duration, _ = facts_of(path)
    assert (status, frames) == ("ok", 53)
    assert duration == pytest.approx(2.4, abs=0.1)
    assert set((found or "").split(", ")) <= {"", "timestamp_gaps"}


def test_an_avi_without_an_index_has_all_its_frames(tmp_path: Path, make_video: Make) -> None:
    data = make_video("clip.avi", codec="mpeg4", num_frames=96).read_bytes()
    data = data[: data.rfind(b"idx1")]
    path = tmp_path / "no_index.avi"
    path.write_bytes(data[:4] + (len(data) - 8).to_bytes(4, "little") + data[8:])

    assert facts_of(path)[:4] == ("ok", None, 96, pytest.approx(4.0))


def orientation_message(angle: int, *, flips: tuple[bool, bool] = (False, False)) -> bytes:
    """Return an HEVC unit with a display orientation message (H.265 §D.2.17)."""
    bits = f"0{flips[0]:d}{flips[1]:d}{round(angle / 360 * 65536):016b}10"
    content = int(bits.ljust(24, "1"), 2).to_bytes(3, "big")
    return bytes([39 << 1, 1, 47, len(content)]) + content + b"\x80"


def with_orientation(source: Path, target: Path, angle: int, flip: str = "") -> Path:
    if "265" in source.name:
        unit = orientation_message(angle, flips=(flip == "horizontal", flip == "vertical"))
        return copied(source, target, edit=lambda data: len(unit).to_bytes(4, "big") + unit + data)
    option = f"h264_metadata=display_orientation=insert:rotate={angle}{':flip=' if flip else ''}{flip}"
    return copied(source, target, filters=option)


@pytest.mark.parametrize(
    ("angle", "flip", "suffix"),
    [
        (90, "", ".mp4"),
        (180, "", ".mkv"),
        (270, "", ".mkv"),
        (90, "horizontal", ".mp4"),
        (90, "vertical", ".mkv"),
        (0, "horizontal", ".mp4"),
    ],
)
def test_a_rotation_in_the_coded_pictures_is_the_tables(
    tmp_path: Path, open_gop: Path, angle: int, flip: str, suffix: str
) -> None:
    path = with_orientation(open_gop, tmp_path / f"turned{suffix}", angle, flip)

    rotation = facts_of(path)[4]

    with av.open(os.fspath(path)) as container:
        frame = next(container.decode(video=0))
        matrix = np.frombuffer(bytes(frame.side_data["DISPLAYMATRIX"]), np.int32)
        turned = round(np.degrees(np.arctan2(matrix[1], matrix[0])) / 90) * 90 % 360
    assert rotation == turned
    row = probe_file(str(path), "header")
    assert (row["width"], row["height"]) == ((64, 96) if angle in (90, 270) else (96, 64))


def test_a_rotation_in_the_coded_pictures_wins_over_the_containers(tmp_path: Path, open_gop: Path) -> None:
    source = with_orientation(open_gop, tmp_path / f"turned_{open_gop.stem}.mp4", 180)
    data = bytearray(source.read_bytes())
    assert data.count(b"tkhd") == 1
    at = data.find(b"tkhd") + 4 + 40
    for place, number in enumerate((0, 1, 0, -1, 0)):
        data[at + 4 * place : at + 4 * place + 4] = (number << 16).to_bytes(4, "big", signed=True)
    source.write_bytes(data)

    assert facts_of(source)[4] == 180
    frames = decode.read_frames(source, [5], height=64, width=96)
    frames = np.concatenate([frames, transcode.first_frame(source, 5 / 24, 1.0, height=64, width=96)[None]])
    assert numbers_in(frames[:, ::-1, ::-1]) == [5, 5]
    walked = list(walk(source, 5 / 24, 6 / 24, short_side_px=64, details_per_second=0, walked=Walked()))
    assert numbers_in(np.stack([walked[0].bgr])[:, ::-1, ::-1]) == [5]


def test_full_after_keyframes_is_full_afresh(tmp_path: Path, make_video: Make) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    good = make_video("good.mp4", num_frames=48, height=120, width=160)
    shutil.copy(good, videos / "good.mp4")
    (videos / "zeroed.mp4").write_bytes(
        damage.zero_block(good.read_bytes(), size_bytes=400, within=(0.6, 1.0))
    )
    for run in ("one", "two"):
        ingested(tmp_path / run, ["good.mp4", "zeroed.mp4"])
    run_probe(tmp_path / "one", ProbeSpec(videos=videos, level="keyframes"))
    assert probe_file(str(videos / "zeroed.mp4"), "keyframes")["probe_status"] != "ok"

    for run in ("one", "two"):
        run_probe(tmp_path / run, ProbeSpec(videos=videos, level="full"))

    tables = [pl.read_parquet(tmp_path / run / "probe.parquet") for run in ("one", "two")]
    assert tables[0].equals(tables[1])
    assert tables[0]["integrity_level"].to_list() == ["full", "full"]


def test_a_message_that_ends_early_is_no_rotation(tmp_path: Path) -> None:
    source = write(tmp_path / "clip_265.mkv", codec="libx265", options=_OPEN_GOP["libx265"], num_frames=12)
    unit = bytes([39 << 1, 1, 47, 1, 0x20, 0x80])

    path = copied(source, tmp_path / "cut.mp4", edit=lambda data: len(unit).to_bytes(4, "big") + unit + data)

    assert [probe_file(str(path), level)["rotation_degrees"] for level in LEVELS] == [0] * 4
