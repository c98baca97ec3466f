"""Damage of the corpus alone: random blocks, wrong header counts, lost transport packets."""

import struct
from collections.abc import Iterator

import numpy as np

from vidcurate.curation.demo_data.damage import NESTED, boxes, is_iso, place

_TRANSPORT_BYTES = 188


def overwrite_block(data: bytes, *, seed: int, size_bytes: int) -> bytes:
    """Replace a block of the payload by random bytes, like a mixed-up download."""
    low, high = place(data, (0.4, 1.0))
    end = max(low, min(low + size_bytes, high))
    return data[:low] + np.random.default_rng(seed).bytes(end - low) + data[end:]


def _iso_durations(data: bytes, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield (offset, format) of the durations in the headers of an ISO file's movie, tracks and media."""
    for kind, _, payload, stop in boxes(data, start, end):
        if kind in NESTED or kind == b"mvex":
            yield from _iso_durations(data, payload, stop)
        elif kind in (b"mvhd", b"mdhd"):
            yield (payload + 16, ">I") if data[payload] == 0 else (payload + 24, ">Q")
        elif kind == b"tkhd":
            yield (payload + 20, ">I") if data[payload] == 0 else (payload + 28, ">Q")


def _promises(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield (offset, format) of the durations and frame counts in a header."""
    if is_iso(data):
        yield from _iso_durations(data, 0, len(data))
    elif data[:4] == b"RIFF":
        yield data.index(b"avih") + 8 + 16, "<I"  # dwTotalFrames
        yield data.index(b"vids") - 8 + 8 + 32, "<I"  # dwLength of the stream's header
    elif data[:4] == b"\x1aE\xdf\xa3":
        at = data.find(b"\x44\x89\x88")  # Duration, eight bytes
        if at >= 0:
            yield at + 3, ">d"


def scale_promises(data: bytes, factor: float) -> bytes:
    """Multiply the durations or frame counts in the header; the rest stays.

    Returns the same bytes when the header has none (MPEG-TS, live WebM). Sources: ISO/IEC 14496-12 (mvhd,
    tkhd, mdhd), the AVI RIFF reference (avih, strh), RFC 9559 (Duration).
    """
    changed = bytearray(data)
    for at, form in _promises(data):
        (value,) = struct.unpack_from(form, data, at)
        scaled = value * factor
        struct.pack_into(form, changed, at, scaled if form == ">d" else int(scaled))
    return bytes(changed)


def drop_transport_packets(data: bytes, *, first: int, count: int) -> bytes:
    """Drop `count` 188-byte packets of a transport stream from number `first` on."""
    return data[: first * _TRANSPORT_BYTES] + data[(first + count) * _TRANSPORT_BYTES :]
