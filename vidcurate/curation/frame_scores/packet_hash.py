"""Packet hash: hash of a clip's coded frames without their container.

H.264 and HEVC packets are split into NAL units, and the hash covers the units with picture data: MP4 and
Matroska prefix each unit by its length, transport streams and AVI by a start code, and they repeat the
parameter sets. Packets of other codecs are hashed whole.
"""

import hashlib
from collections.abc import Iterator

_START_CODE = b"\x00\x00\x01"
# How to read the type from a unit's first byte, and which types are slices of a picture.
_SLICE_TYPES = {"h264": (0, 0x1F, range(1, 6)), "hevc": (1, 0x3F, range(32))}
# Where in the configuration record of MP4 and Matroska the number of length bytes stands.
_LENGTH_AT = {"h264": 4, "hevc": 21}


def _by_length(data: bytes, length_bytes: int) -> Iterator[bytes]:
    place = 0
    while place + length_bytes <= len(data):
        size = int.from_bytes(data[place : place + length_bytes], "big")
        place += length_bytes
        yield data[place : place + size]
        place += size


def _by_start_code(data: bytes) -> Iterator[bytes]:
    for unit in data.split(_START_CODE)[1:]:
        yield unit.rstrip(b"\0")


class PacketHash:
    """Hash over packets; `codec` is FFmpeg's name, `extradata` the stream's configuration record."""

    def __init__(self, codec: str, extradata: bytes | None) -> None:
        self._hash = hashlib.blake2b(codec.encode(), digest_size=16)
        self._codec = codec
        self._count = 0
        record = extradata or b""
        at = _LENGTH_AT.get(codec)
        has_record = at is not None and len(record) > at and record[0] == 1
        self._length_bytes = (record[at] & 3) + 1 if has_record and at is not None else 0

    def add(self, data: bytes) -> None:
        """Add the next packet in decoding order."""
        self._count += 1
        if self._codec not in _SLICE_TYPES:
            self._hash.update(len(data).to_bytes(4, "big") + data)
            return
        shift, mask, slices = _SLICE_TYPES[self._codec]
        units = _by_length(data, self._length_bytes) if self._length_bytes else _by_start_code(data)
        for unit in units:
            if unit and (unit[0] >> shift) & mask in slices:
                self._hash.update(len(unit).to_bytes(4, "big") + unit)

    def value(self) -> str | None:
        """Return the hash as 32 hex digits; None when there was no packet."""
        return self._hash.hexdigest() if self._count else None
