"""Matroska and WebM structure: truncation, damage, CRC-32, display rotation.

Segments, clusters and blocks store their length; a file that ends before one of them does is truncated, which
its frames do not show. Master elements may begin with a CRC-32 of the rest (FFmpeg writes one per cluster).
PyAV gives the display rotation only with a decoded frame.
Sources: RFC 8794 (EBML) §4-6, §11.3.1 and RFC 9559 (Matroska) §5.1, §5.1.4.1.28.41 (Projection).
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from vidcurate.storage.file_window import FileBytes

_EBML = 0x1A45DFA3
_SEGMENT = 0x18538067
_CLUSTER = 0x1F43B675
_CRC32 = 0xBF
_VOID = 0xEC
# Elements allowed in a Segment, and in a cluster.
_IN_SEGMENT = {
    0x114D9B74, 0x1549A966, 0x1654AE6B, _CLUSTER, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367,
    _VOID, _CRC32,
}  # fmt: skip
_IN_CLUSTER = {0xE7, 0xA3, 0xA0, 0xAB, 0xA7, 0x5854, 0xAF, _VOID, _CRC32}


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureCheck:
    """Result of `check_structure`: reasons as text, None for no fault."""

    cut: str | None = None
    broken: str | None = None
    trailing_bytes: int = 0


def _number(data: FileBytes, at: int, size: int, *, is_id: bool) -> tuple[int | None, int] | None:
    """Return (value, offset after it) of an id or a size; the value None is an unknown size (all ones).

    Returns None for an invalid number, or when the file ends inside it.
    """
    if at >= size:
        return None
    first = data[at]
    length = 9 - first.bit_length()
    if first == 0 or at + length > size or (is_id and length > 4):
        return None
    value = int.from_bytes(data[at : at + length], "big")
    if is_id:
        return value, at + length
    bits = 7 * length
    value &= (1 << bits) - 1
    return (None if value == (1 << bits) - 1 else value), at + length


def _head(data: FileBytes, at: int, size: int) -> tuple[int, int | None, int] | None:
    """Return (id, end offset or None where unknown, payload offset) of the element at `at`."""
    name = _number(data, at, size, is_id=True)
    if name is None or name[0] is None:
        return None
    length = _number(data, name[1], size, is_id=False)
    if length is None:
        return None
    return name[0], None if length[0] is None else length[1] + length[0], length[1]


def _sum_is_right(data: FileBytes, payload: int, end: int) -> bool:
    """Return whether a master element's CRC-32 matches its contents; true without one."""
    head = _head(data, payload, end)
    if head is None or head[0] != _CRC32 or head[1] is None or head[1] - head[2] != 4:
        return True
    expected = int.from_bytes(data[head[2] : head[1]], "little")
    return data.crc32(head[1], end) == expected


def _walk_children(data: FileBytes, start: int, end: int) -> str | None:
    """Return text about the first invalid element of a cluster of known size, None if all are valid."""
    at = start
    while at < end:
        head = _head(data, at, end)
        if head is None or head[1] is None or head[1] > end:
            return f"the cluster's element at byte {at} is none"
        at = head[1]
    return None


def check_structure(data: FileBytes, *, check_sums: bool = False) -> StructureCheck:
    """Check Segment, clusters and blocks of a file, without reading the blocks. Raises OSError."""
    size = data.size
    head = _head(data, 0, size)
    if head is None or head[0] != _EBML or head[1] is None:
        return StructureCheck(broken="it does not begin with an EBML header")
    segment = _head(data, head[1], size)
    if segment is None or segment[0] != _SEGMENT:
        return StructureCheck(cut=f"the file ends at byte {size}, before its Segment")
    name, promised, at = segment
    if promised is not None and promised > size:
        return StructureCheck(cut=f"the index ends at byte {promised}, the file at byte {size}")
    end = size if promised is None else promised
    trailing = size - end
    in_cluster = False  # inside a cluster whose size is unknown
    while at < end:
        head = _head(data, at, end)
        if head is None and end - at < 12 and promised is None:
            return StructureCheck(cut=f"the file ends at byte {size}, inside an element's head")
        if head is None:
            return StructureCheck(broken=f"at byte {at} is no element", trailing_bytes=trailing)
        name, stop, payload = head
        if not (name in _IN_SEGMENT or (in_cluster and name in _IN_CLUSTER)):
            # Later versions of the format may add elements; inside an unknown size they cannot be verified.
            if promised is None or stop is None or stop > end:
                return StructureCheck(
                    broken=f"at byte {at} is no element of a Segment", trailing_bytes=trailing
                )
        elif name in _IN_SEGMENT and name not in (_VOID, _CRC32):
            in_cluster = name == _CLUSTER and stop is None
        if stop is None:
            if name != _CLUSTER:
                return StructureCheck(broken=f"the element at byte {at} has no size", trailing_bytes=trailing)
            at = payload
            continue
        if stop > end:
            if promised is None:
                return StructureCheck(
                    cut=f"the element at byte {at} ends at byte {stop}, the file at byte {size}"
                )
            return StructureCheck(
                broken=f"the element at byte {at} ends behind its Segment", trailing_bytes=trailing
            )
        if check_sums and name in _IN_SEGMENT and not _sum_is_right(data, payload, stop):
            return StructureCheck(
                broken=f"the CRC-32 of the element at byte {at} is wrong", trailing_bytes=trailing
            )
        if name == _CLUSTER:
            odd = _walk_children(data, payload, stop)
            if odd:
                return StructureCheck(broken=odd, trailing_bytes=trailing)
        at = stop
    return StructureCheck(trailing_bytes=trailing)


_TRACKS, _TRACK, _TRACK_TYPE, _VIDEO, _PROJECTION = 0x1654AE6B, 0xAE, 0x83, 0xE0, 0x7670
_YAW, _ROLL = 0x7673, 0x7675
_VIDEO_TRACK = b"\x01"
_MOST_ELEMENTS = 4096  # a hostile file may repeat empty elements without end


def _children(data: FileBytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (id, payload offset, end offset) of the elements of known size; stop at an invalid one."""
    for _ in range(_MOST_ELEMENTS):
        head = _head(data, start, end)
        if head is None or head[1] is None or head[1] > end:
            return
        yield head[0], head[2], head[1]
        start = head[1]


def _degrees(data: FileBytes, pose: dict[int, tuple[int, int]], name: int) -> float:
    start, end = pose.get(name, (0, 0))
    forms = {4: ">f", 8: ">d"}
    return float(struct.unpack(forms[end - start], data[start:end])[0]) if end - start in forms else 0.0


def rotation_degrees(data: FileBytes) -> int:
    """Return the clockwise rotation (0, 90, 180, 270) that shows the first video track upright.

    FFmpeg reads the same: the roll of the track's projection, counter-clockwise. A yaw of half a turn mirrors
    the picture: it is the display matrix of an MP4 with its first column negated. Raises OSError.
    """
    size = data.size
    ebml = _head(data, 0, size)
    if ebml is None or ebml[0] != _EBML or ebml[1] is None:
        return 0
    segment = _head(data, ebml[1], size)
    if segment is None or segment[0] != _SEGMENT:
        return 0
    for name, start, end in _children(data, segment[2], size):
        if name == _CLUSTER:
            return 0
        for kind, track, stop in _children(data, start, end) if name == _TRACKS else ():
            parts = {part: (at, upto) for part, at, upto in _children(data, track, stop)}
            is_video = _TRACK_TYPE in parts and data[slice(*parts[_TRACK_TYPE])] == _VIDEO_TRACK
            if kind != _TRACK or not is_video:
                continue
            video = {part: (at, upto) for part, at, upto in _children(data, *parts.get(_VIDEO, (0, 0)))}
            pose = {part: (at, upto) for part, at, upto in _children(data, *video.get(_PROJECTION, (0, 0)))}
            roll, yaw = _degrees(data, pose, _ROLL), _degrees(data, pose, _YAW)
            if not math.isfinite(roll):
                return 0
            return round((180 - roll if abs(yaw) == 180 else -roll) / 90) * 90 % 360
    return 0


def segment_end_bytes(data: FileBytes) -> int | None:
    """Return the offset at which the Segment ends by its own size; None when unknown."""
    size = data.size
    head = _head(data, 0, size)
    if head is None or head[0] != _EBML or head[1] is None:
        return None
    segment = _head(data, head[1], size)
    return segment[1] if segment is not None and segment[0] == _SEGMENT else None
