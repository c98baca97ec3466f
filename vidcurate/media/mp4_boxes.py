"""MP4 boxes (mp4, mov, 3gp): rotation, duration, fragments and edit lists.

PyAV gives the rotation only with a decoded frame, and the smallest of several durations; reading the boxes
costs a few reads. Source: ISO/IEC 14496-12, boxes
`moov/{mvhd, mvex, trak/{tkhd, edts/elst, mdia/{hdlr, mdhd}}}`.
"""

import math
import struct
from collections.abc import Iterator
from typing import BinaryIO

# A file in which one of these boxes is cut off cannot be read, or lacks frames.
NEEDED = {b"ftyp", b"moov", b"moof", b"mdat"}
# Shorter edits only skip the decoder's delay, or round to the movie's clock.
_EDIT_SLACK_SECONDS = 0.2
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


def is_fragmented(file: BinaryIO, size_bytes: int) -> bool:
    """Return whether fragments follow the movie header, whose counts and durations then leave them out."""
    return _find(file, (b"moov", b"mvex"), 0, size_bytes) is not None


def _video_track(file: BinaryIO, size_bytes: int) -> tuple[int, int] | None:
    movie = _find(file, (b"moov",), 0, size_bytes)
    for kind, payload, stop in _boxes(file, *movie) if movie else ():
        if kind == b"trak" and (handler := _find(file, (b"mdia", b"hdlr"), payload, stop)):
            file.seek(handler[0] + 8)
            if file.read(4) == b"vide":
                return payload, stop
    return None


def is_encrypted(file: BinaryIO, size_bytes: int) -> bool:
    """Return whether the first video track is encrypted (ISO/IEC 23001-7, sample entry `encv`)."""
    track = _video_track(file, size_bytes)
    entries = _find(file, (b"mdia", b"minf", b"stbl", b"stsd"), *track) if track else None
    if entries is None:
        return False
    file.seek(entries[0] + 12)
    return file.read(4) == b"encv"


def _scale_and_length(file: BinaryIO, place: tuple[int, int] | None) -> tuple[int, int]:
    """Return (ticks per second, ticks) of an mvhd or mdhd box; (0, 0) for none or a short one."""
    if place is None:
        return 0, 0
    file.seek(place[0])
    body = file.read(32)
    if len(body) < 32:
        return 0, 0
    scale, length = struct.unpack(">II", body[12:20]) if body[0] == 0 else struct.unpack(">IQ", body[20:32])
    return scale, length


def is_trimmed(file: BinaryIO, size_bytes: int) -> bool:
    """Return whether an edit list hides a frame or more of the first video track, by its durations.

    FFmpeg's index then leaves frames out that the sample tables count.
    """
    track = _video_track(file, size_bytes)
    edits = _find(file, (b"edts", b"elst"), *track) if track else None
    if track is None or edits is None:
        return False
    movie_scale, _ = _scale_and_length(file, _find(file, (b"moov", b"mvhd"), 0, size_bytes))
    scale, length = _scale_and_length(file, _find(file, (b"mdia", b"mdhd"), *track))
    file.seek(edits[0])
    body = file.read(min(edits[1] - edits[0], 8 + 20 * _MAX_BOXES))
    if len(body) < 8 or not movie_scale or not scale:
        return False
    form, step = (">Ii", 12) if body[0] == 0 else (">Qq", 20)
    count = min(struct.unpack(">I", body[4:8])[0], (len(body) - 8) // step)
    rows = [struct.unpack_from(form, body, 8 + step * number) for number in range(count)]
    shown = sum(duration for duration, start in rows if start >= 0) / movie_scale
    delay = min((start for _, start in rows if start >= 0), default=0) / scale
    return 0 < shown < length / scale - delay - _EDIT_SLACK_SECONDS or delay > _EDIT_SLACK_SECONDS


def movie_seconds(file: BinaryIO, size_bytes: int) -> float | None:
    """Return the duration in the movie header in seconds; None when unknown (fragmented files)."""
    header = _find(file, (b"moov", b"mvhd"), 0, size_bytes)
    if header is None or is_fragmented(file, size_bytes):
        return None
    file.seek(header[0])
    is_short = file.read(1) == b"\0"
    scale, length = _scale_and_length(file, header)
    unknown = (1 << 32) - 1 if is_short else (1 << 64) - 1
    return length / scale if scale and length not in (0, unknown) else None
