"""NAL units of H.264 and HEVC packets, and picture headers of MPEG.

Sources: ITU-T H.264 §7.3.1, §7.4.1.1, §9.1 and H.265 §7.3.1; ISO/IEC 14496-15 §5.3.3 and §8.3.3 (lengths);
ISO/IEC 13818-2 §6.2.2.6, §6.2.3 and 14496-2 §6.2.5 (picture headers of MPEG-1, 2 and 4).
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from vidcurate.media.container import codec_of

_START = re.compile(b"\0\0\x01")
_UNIT_BYTES = 1 << 16  # of a unit; the headers and messages read here end far before
_SLICE_HEAD_BYTES = 65  # a slice's first numbers end far before
CODECS = ("h264", "hevc")
_H264_SLICE, H264_IDR = 1, 5  # types of the units that hold slices
B_SLICE, I_SLICE = 1, 2


class Bits:
    """A reader of bits and Exp-Golomb numbers (§9.1) in unescaped bytes. Raises ValueError behind the end."""

    def __init__(self, data: bytes) -> None:
        self._text = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}" if data else ""
        self._at = 0

    def u(self, count: int) -> int:
        self._at += count
        return int(self._text[self._at - count : self._at], 2)

    def ue(self) -> int:
        zeros = self._text.index("1", self._at) - self._at
        self._at += zeros
        return self.u(zeros + 1) - 1

    def se(self) -> int:
        value = self.ue()
        return (value + 1) // 2 if value % 2 else -(value // 2)


def unescaped(payload: bytes) -> bytes:
    """Return a unit's payload without the bytes that keep start codes out of it."""
    return payload.replace(b"\0\0\x03", b"\0\0")


def length_bytes_of(stream: Any) -> int:
    """Return the size in bytes of a unit's length in the stream's packets; 0 where start codes part units."""
    record = bytes(stream.codec_context.extradata or b"")
    place = 4 if codec_of(stream) == "h264" else 21
    return (record[place] & 3) + 1 if len(record) > max(8, place) and record[0] == 1 else 0


def units_of(packet: bytes, length_bytes: int) -> Iterator[bytes]:
    """Yield the units of a packet, each cut to its first 65,536 bytes."""
    if not length_bytes:
        starts = [match.end() for match in _START.finditer(packet)]
        for start, following in pairwise([*starts, len(packet) + 3]):
            yield packet[start : min(following - 3, start + _UNIT_BYTES)]
        return
    at = 0
    while at + length_bytes < len(packet):
        size = int.from_bytes(packet[at : at + length_bytes], "big")
        at += length_bytes
        yield packet[at : at + min(size, _UNIT_BYTES)]
        at += size


def slice_types(packet: bytes, length_bytes: int) -> list[int]:
    """Return the types of the slices in an H.264 packet, 0 to 4; empty for a damaged one.

    Slices of an IDR picture count as I_SLICE: no others are allowed there.
    """
    found = []
    for unit in units_of(packet, length_bytes):
        if unit and unit[0] & 0x1F == H264_IDR:
            found.append(I_SLICE)
        elif unit and unit[0] & 0x1F == _H264_SLICE:
            bits = Bits(unescaped(unit[1:_SLICE_HEAD_BYTES]))
            try:
                bits.ue()
                found.append(bits.ue() % 5)
            except ValueError:
                return []
    return found


def mpeg_picture(codec: str, packet: bytes) -> tuple[str | None, bool]:
    """Return type (I, P, B; None without one) and closed GOP of a packet's first picture.

    `codec` is mpeg1video, mpeg2video or mpeg4. A closed GOP counts where FFmpeg's decoder heeds it: not in
    MPEG-4.
    """
    at = packet.find(b"\0\0\x01\xb6" if codec == "mpeg4" else b"\0\0\x01\0")
    if at < 0 or at + 6 > len(packet):
        return None, False
    if codec == "mpeg4":
        return "IPB"[packet[at + 4] >> 6 : (packet[at + 4] >> 6) + 1] or None, False
    number = packet[at + 5] >> 3 & 7
    group = packet.find(b"\0\0\x01\xb8", 0, at)
    is_closed = 0 <= group <= at - 8 and bool(packet[group + 7] & 0x40)
    return {1: "I", 2: "P", 3: "B"}.get(number), is_closed
