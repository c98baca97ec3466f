"""Clips whose packets were copied, and what all levels of the probe say of a clip."""

import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest

from vidcurate.curation.probe.stage import probe_file
from vidcurate.media.coded_units.units import mpeg_picture

LEVELS = ("header", "index", "keyframes", "full")
GOP = "keyint=12:min-keyint=12:scenecut=0:open-gop=1:bframes=3:b-adapt=0:rc-lookahead=12:threads=1"
OPEN_GOP = {
    "libx264": {"x264-params": GOP},
    "libx265": {"x265-params": f"{GOP.removesuffix(':threads=1')}:log-level=none:pools=none"},
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
    source: Path,
    target: Path,
    *,
    first: int = 0,
    filters: str = "",
    edit: Callable[[bytes], bytes] = bytes,
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


def second_key(path: Path) -> int:
    """Return the number of the packet with the second key frame."""
    with av.open(os.fspath(path)) as container:
        packets = list(container.demux(video=0))
    return [number for number, packet in enumerate(packets) if packet.is_keyframe][1]


def packed(source: Path, target: Path) -> Path:
    """Copy MPEG-4 with single B pictures at 24 fps as DivX's packed bitstream: a P and its B in one packet.

    A packet with an empty picture follows each such packet.
    """

    def is_b(packet: bytes) -> bool:
        return mpeg_picture("mpeg4", packet)[0] == "B"

    empty = b"\0\0\x01\xb6" + (0b01_0_1_00000_1_0_01111).to_bytes(2, "big")  # a P picture, not coded
    with av.open(os.fspath(source)) as reader, av.open(os.fspath(target), "w") as output:
        stream = reader.streams.video[0]
        sink = output.add_stream_from_template(stream)
        given = [bytes(packet) for packet in reader.demux(stream) if packet.size]
        made: list[bytes] = []
        for packet in given:
            made += [made.pop() + packet, empty] if is_b(packet) else [packet]
        for number, data in enumerate(made):
            part = av.Packet(data)
            part.pts = part.dts = number
            part.time_base, part.stream = Fraction(1, 24), sink
            part.is_keyframe = mpeg_picture("mpeg4", data)[0] == "I"
            output.mux(part)
    # The user data that names the encoder becomes that of DivX, of the same length.
    name = re.compile(rb"Lavc[\d.]+")
    content = name.sub(lambda match: b"DivX" + b"5" * (len(match[0]) - 7) + b"b1p", target.read_bytes())
    target.write_bytes(content)
    return target
