"""MP4 boxes (mp4, mov, 3gp): display rotation and movie duration from the headers.

PyAV gives the rotation only with a decoded frame, and the smallest of several durations; reading the boxes
costs a few reads. Source: ISO/IEC 14496-12, boxes `moov/{mvhd, trak/{tkhd, mdia/hdlr}}`.
"""

import math
import struct
from collections.abc import Iterator
from typing import BinaryIO

# A file in which one of these boxes is cut off cannot be read, or lacks frames.
NEEDED = {b"ftyp", b"moov", b"moof", b"mdat"}
_MAX_BOXES = 4096  # a hostile file may repeat empty boxes without end


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (type, payload start, payload end) of the boxes between two offsets; stop at an invalid one."""
    position = start
    for _ in range(_MAX_BOXES):
        if position + 8 > end:
            return
        file.seek(position)
        head = file.read(16)
        if len(head) < 8:
            return
        size, kind = struct.unpack(">I4s", head[:8])
        payload = position + 8
        if size == 1 and len(head) == 16:
            size = struct.unpack(">Q", head[8:16])[0]
            payload = position + 16
        elif size == 0:
            size = end - position
        if size < payload - position:
            return
        yield kind, payload, min(position + size, end)
        position += size


def _find(file: BinaryIO, path: tuple[bytes, ...], start: int, end: int) -> tuple[int, int] | None:
    for kind, payload, stop in _boxes(file, start, end):
        if kind == path[0]:
            return (payload, stop) if len(path) == 1 else _find(file, path[1:], payload, stop)
    return None


def _track_rotation(file: BinaryIO, start: int, end: int) -> int | None:
    """Return the clockwise rotation of one track, or None when it is not a video track."""
    handler = _find(file, (b"mdia", b"hdlr"), start, end)
    header = _find(file, (b"tkhd",), start, end)
    if handler is None or header is None:
        return None
    file.seek(handler[0] + 8)
    if file.read(4) != b"vide":
        return None
    file.seek(header[0])
    body = file.read(header[1] - header[0])
    matrix_at = 40 if body[:1] == b"\x00" else 52  # version 1 has 64-bit times
    if len(body) < matrix_at + 36:
        return 0
    a, b = struct.unpack(">ii", body[matrix_at : matrix_at + 8])
    return round(math.degrees(math.atan2(b, a)) / 90) * 90 % 360


def rotation_degrees(file: BinaryIO, size_bytes: int) -> int:
    """Return the clockwise rotation (0, 90, 180, 270) that shows the first video track upright."""
    movie = _find(file, (b"moov",), 0, size_bytes)
    if movie is None:
        return 0
    for kind, payload, stop in _boxes(file, *movie):
        if kind == b"trak":
            turn = _track_rotation(file, payload, stop)
            if turn is not None:
                return turn
    return 0


def movie_seconds(file: BinaryIO, size_bytes: int) -> float | None:
    """Return the duration in the movie header in seconds; None when unknown (fragmented files)."""
    header = _find(file, (b"moov", b"mvhd"), 0, size_bytes)
    if header is None:
        return None
    file.seek(header[0])
    body = file.read(32)
    if len(body) < 32:
        return None
    scale, length = struct.unpack(">II", body[12:20]) if body[0] == 0 else struct.unpack(">IQ", body[20:32])
    unknown = (1 << 32) - 1 if body[0] == 0 else (1 << 64) - 1
    return length / scale if scale and length not in (0, unknown) else None
