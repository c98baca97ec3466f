"""The bytes of a file by position, read through a window.

Not a memory map: where a disk or a network refuses, a map ends the process (SIGBUS), a read raises OSError.
"""

import zlib
from collections.abc import Iterator
from typing import BinaryIO, overload

_WINDOW_BYTES = 1 << 16
_PIECE_BYTES = 1 << 22


class FileBytes:
    """`data[at]` and `data[start:end]` of an open file of `size` bytes, cut at its end like bytes are."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self._start = 0
        self._window = b""
        self.size = size

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> bytes: ...
    def __getitem__(self, place: int | slice) -> int | bytes:
        if isinstance(place, int):
            return self.read(place, 1)[0]
        return self.read(place.start, place.stop - place.start)

    def read(self, at: int, count: int) -> bytes:
        """Return up to `count` bytes from offset `at` on. Raises OSError."""
        inside = at - self._start
        if inside >= 0 and inside + count <= len(self._window):
            return self._window[inside : inside + count]
        count = max(0, min(count, self.size - at))
        if count > _WINDOW_BYTES:
            self.file.seek(at)
            return self.file.read(count)
        self.file.seek(at)
        self._start, self._window = at, self.file.read(_WINDOW_BYTES)
        return self._window[:count]

    def pieces(self, start: int, end: int, multiple: int = 1) -> Iterator[bytes]:
        """Yield the bytes between two offsets in pieces of a few MiB, each a multiple of `multiple`."""
        step = _PIECE_BYTES // multiple * multiple
        for at in range(start, end, step):
            yield self.read(at, min(step, end - at))

    def crc32(self, start: int, end: int) -> int:
        """Return the CRC-32 of the bytes between two offsets."""
        value = 0
        for piece in self.pieces(start, end):
            value = zlib.crc32(piece, value)
        return value
