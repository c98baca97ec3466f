"""NAL units of H.264 and HEVC packets, and the bits in them.

Sources: ITU-T H.264 §7.3.1, §7.4.1.1, §9.1 and H.265 §7.3.1; ISO/IEC 14496-15 §5.3.3 and §8.3.3 (lengths).
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from vidcurate.media.container import codec_of

_START = re.compile(b"\0\0\x01")
_UNIT_BYTES = 1 << 16  # of a unit; the headers and messages read here end far before
CODECS = ("h264", "hevc")


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
