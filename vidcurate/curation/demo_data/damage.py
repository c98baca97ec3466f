"""Video damage on purpose: from the bytes of a good file to those of a bad one.

Pure functions: a test or the demo data knows exactly what is wrong with a file. `within` limits the damage to
a share of the payload: the `mdat` boxes of an ISO file, everything after the header in other containers.
"""

import struct
from collections.abc import Iterator

import numpy as np

# Size of the header that a reader needs to open an EBML, RIFF or FLV file.
_HEAD_SHARE = 0.2
_CHUNK_OFFSETS = {b"stco": ">I", b"co64": ">Q"}
NESTED = {b"moov", b"trak", b"mdia", b"minf", b"stbl"}


def boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield (type, start, payload start, end) of the ISO boxes between two offsets."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        payload = start + 8
        if size == 1 and start + 16 <= end:
            size = struct.unpack_from(">Q", data, start + 8)[0]
            payload = start + 16
        stop = end if size == 0 else start + size
        if stop < payload or stop > end:
            return
        yield kind, start, payload, stop
        start = stop


def is_iso(data: bytes) -> bool:
    return data[4:8] == b"ftyp"


def payload_range(data: bytes) -> tuple[int, int]:
    """Return start and end (exclusive) of the coded frames; damage inside leaves the header intact."""
    if is_iso(data):
        for kind, _, payload, stop in boxes(data, 0, len(data)):
            if kind == b"mdat":
                return payload, stop
    return int(_HEAD_SHARE * len(data)), len(data)


def place(data: bytes, within: tuple[float, float]) -> tuple[int, int]:
    first, stop = payload_range(data)
    size = stop - first
    return first + int(within[0] * size), first + int(within[1] * size)


def truncate(data: bytes, fraction: float) -> bytes:
    """Truncate the file to its first `fraction` (0 to 1), like a broken download."""
    return data[: int(fraction * len(data))]


def flip_bytes(data: bytes, *, seed: int, count: int, within: tuple[float, float] = (0.1, 0.9)) -> bytes:
    """Change `count` bytes of the payload, each to another value."""
    low, high = place(data, within)
    rng = np.random.default_rng(seed)
    changed = np.frombuffer(data, dtype=np.uint8).copy()
    places = low + rng.permutation(max(0, high - low))[:count]
    changed[places] ^= rng.integers(1, 256, size=len(places), dtype=np.uint8)
    return changed.tobytes()


def zero_block(data: bytes, *, size_bytes: int, within: tuple[float, float] = (0.4, 1.0)) -> bytes:
    """Zero a block of the payload from `within[0]` on, like a lost disk block."""
    low, high = place(data, within)
    end = min(low + size_bytes, high)
    return data[:low] + bytes(max(0, end - low)) + data[max(low, end) :]


def garbage_tail(data: bytes, *, seed: int, size_bytes: int) -> bytes:
    """Append random bytes to the file."""
    return data + np.random.default_rng(seed).bytes(size_bytes)


def is_faststart(data: bytes) -> bool:
    """Return whether an ISO file has its index (`moov`) before its frames (`mdat`)."""
    kinds = [kind for kind, *_ in boxes(data, 0, len(data))]
    return b"moov" in kinds and (b"mdat" not in kinds or kinds.index(b"moov") < kinds.index(b"mdat"))


def _shifted(box: bytes, start: int, end: int, by: int, out: bytearray) -> None:
    """Add `by` to every chunk offset below the boxes between `start` and `end`, in `out`."""
    for kind, _, payload, stop in boxes(box, start, end):
        if kind in NESTED:
            _shifted(box, payload, stop, by, out)
        elif kind in _CHUNK_OFFSETS:
            form = _CHUNK_OFFSETS[kind]
            width = struct.calcsize(form)
            (count,) = struct.unpack_from(">I", box, payload + 4)
            for number in range(count):
                at = payload + 8 + number * width
                struct.pack_into(form, out, at, struct.unpack_from(form, box, at)[0] + by)


def faststart(data: bytes) -> bytes:
    """Move `moov` of an ISO file before `mdat`, with adjusted chunk offsets.

    Returns the same bytes when `moov` is first already. Raises ValueError for a file without a `moov` after
    an `mdat`. Source: ISO/IEC 14496-12, boxes `stco` and `co64`.
    """
    if is_faststart(data):
        return data
    spans = {kind: (start, stop) for kind, start, _, stop in boxes(data, 0, len(data))}
    if b"moov" not in spans or b"mdat" not in spans:
        raise ValueError("no moov behind an mdat: not an ISO file whose index can be moved")
    (at, stop), (pictures, _) = spans[b"moov"], spans[b"mdat"]
    movie = data[at:stop]
    moved = bytearray(movie)
    _shifted(movie, 0, len(movie), len(movie), moved)
    return data[:pictures] + bytes(moved) + data[pictures:at] + data[stop:]
