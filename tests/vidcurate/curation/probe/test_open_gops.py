"""Copies cut at a key frame of an open GOP: the pictures that no decoder gives count at no level."""

import os
from pathlib import Path

import av
import pytest

from tests.numbered_clips import numbers_in, write
from tests.vidcurate.curation.probe.copied_clips import GOP, OPEN_GOP, copied, facts_of, second_key
from vidcurate.media import decode
from vidcurate.media.coded_units.units import units_of
from vidcurate.media.packets import frame_map_of


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
    source = write(tmp_path / "clip.mkv", options=OPEN_GOP["libx264"], num_frames=36)

    path = copied(source, tmp_path / "cut.avi", first=second_key(source), filters="h264_mp4toannexb")

    status, found, frames, _, _ = facts_of(path)
    assert (status, frames) == ("ok", 24)
    assert "open_gop_start" in (found or "")


@pytest.mark.parametrize("codec", ["mpeg1video", "mpeg2video", "mpeg4"])
@pytest.mark.parametrize("suffix", [".mkv", ".avi"])
def test_a_copy_of_mpeg_has_the_frames_from_its_key_frame_on(tmp_path: Path, codec: str, suffix: str) -> None:
    source = write(tmp_path / "whole.mkv", codec=codec, options={"bf": "2", "b": "2M"}, num_frames=36)
    assert facts_of(source)[:3] == ("ok", None, 36)
    first = second_key(source)

    path = copied(source, tmp_path / f"cut{suffix}", first=first)

    status, found, frames, _, _ = facts_of(path)
    assert (status, frames) == ("ok", 36 - first - 2 + 2 * (first % 3 == 2))
    assert "open_gop_start" in (found or "")


def test_a_closed_gop_of_mpeg2_has_the_pictures_before_its_key_frame(tmp_path: Path) -> None:
    options = {"bf": "2", "b": "2M", "flags": "+cgop", "sc_threshold": "1000000000"}
    source = write(tmp_path / "whole.mkv", codec="mpeg2video", options=options, num_frames=36)

    first = second_key(source)

    path = copied(source, tmp_path / "cut.mkv", first=first)

    assert facts_of(path)[:3] == ("ok", None, 36 - first)


def test_h264_with_lengths_in_avi_is_cut_like_h264_with_start_codes(tmp_path: Path) -> None:
    source = write(tmp_path / "clip.mkv", options=OPEN_GOP["libx264"], num_frames=36)
    given: list[tuple[bytes, bytes]] = []

    def with_start_codes(data: bytes) -> bytes:  # the muxer takes nothing else; the length is the same
        made = b"".join(b"\0\0\0\x01" + unit for unit in units_of(data, 4))
        given.append((made, data))
        return made

    path = copied(source, tmp_path / "cut.avi", first=second_key(source), edit=with_start_codes)
    content = path.read_bytes()
    for made, data in given:
        content = content.replace(made, data)
    path.write_bytes(content)

    status, found, frames, _, _ = facts_of(path)
    assert (status, frames) == ("ok", 24)
    assert "open_gop_start" in (found or "")


def test_a_copy_without_its_leading_pictures_is_clean(tmp_path: Path) -> None:
    gop = f"{GOP}:b-pyramid=strict:ref=4"
    source = write(tmp_path / "clip.mkv", options={"x264-params": gop}, num_frames=36)
    first = second_key(source)
    with av.open(os.fspath(source)) as reader, av.open(os.fspath(tmp_path / "cut.mkv"), "w") as output:
        stream = reader.streams.video[0]
        sink = output.add_stream_from_template(stream)
        packets = [packet for packet in list(reader.demux(stream))[first:] if packet.size]
        start = packets[0].pts
        for packet in packets:
            if packet.pts >= start:
                packet.pts, packet.dts, packet.stream = packet.pts - start, None, sink
                output.mux(packet)

    assert facts_of(tmp_path / "cut.mkv")[:3] == ("ok", None, 24)


def test_a_whole_clip_with_open_gops_has_all_its_frames(open_gop: Path) -> None:
    assert facts_of(open_gop)[:3] == ("ok", None, 36)
