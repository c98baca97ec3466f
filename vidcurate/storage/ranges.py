"""Bytes of a file by range, on disk or over HTTP, and several files read as one.

A part of a data set may be published in pieces (`X_partaa`, `X_partab`, or `X.zip.001`, `X.zip.002`) that are
to be joined before use: `Joined` reads them as one file without joining them.
"""

import errno
import http.client
import io
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vidcurate.errors import InputError, StorageError, counted
from vidcurate.storage import http_pool

TAIL_BYTES = 1 << 18  # read at once from the end of a file: most central directories lie in it whole
TIMEOUT_SECONDS = 60.0
ATTEMPTS = 5
_CHUNK = 1 << 20


class Readable(Protocol):
    """What a range is read through."""

    def read(self, size: int = -1, /) -> bytes: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file, by its path or URL. `stamp` changes when the file does: its time, or the server's ETag."""

    place: str
    size_bytes: int
    stamp: str


def is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _request(url: str, first: int, last: int) -> http_pool.Answer:
    """Return the response to a request for the bytes `first` to `last`. Raises InputError, OSError."""
    try:
        response = http_pool.ask(url, {"Range": f"bytes={first}-{last}"}, TIMEOUT_SECONDS)
    except ValueError as error:
        raise InputError(f"{url}: cannot be asked for ({error}).") from error
    except http_pool.StatusError as error:
        if error.is_passing:
            raise
        raise InputError(f"{url}: {error}.") from error
    if response.status == 206:
        return response
    response.close()
    raise InputError(f"{url}: the server ignores byte ranges (answer {response.status}, 206 is needed).")


def piece(place: str) -> Piece:
    """Return the size and stamp of a file or URL. Raises InputError, StorageError when the network fails."""
    if not is_url(place):
        try:
            facts = os.stat(place)
        except OSError as error:
            raise InputError(f"{place}: cannot be read ({error.strerror}).") from error
        return Piece(place=place, size_bytes=facts.st_size, stamp=str(facts.st_mtime_ns))
    for attempt in range(ATTEMPTS):
        try:
            with _request(place, 0, 0) as response:
                found = re.fullmatch(r"bytes \d+-\d+/(\d{1,18})", response.headers.get("Content-Range", ""))
                stamp = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
                response.read(1)  # of a body of one byte, so that the connection can be used again
        except (OSError, http.client.HTTPException) as error:
            pause(attempt, place, error)
            continue
        if found is None:
            raise InputError(f"{place}: the server does not tell the file's size (Content-Range).")
        return Piece(place=place, size_bytes=int(found[1]), stamp=stamp)
    raise AssertionError("the last attempt raises")


def pause(attempt: int, place: str, error: BaseException) -> None:
    """Wait before the next attempt, longer each time, and no less than the server asks for.

    Raises StorageError after the last attempt, and when the server asks for more than it is waited for.
    """
    if attempt + 1 >= ATTEMPTS:
        raise StorageError(f"{place}: failed {ATTEMPTS} times, at last with: {str(error)[:200]}.") from error
    asked = http_pool.wait_of(error)
    if asked > http_pool.LONGEST_WAIT_SECONDS:
        raise StorageError(
            f"{place}: {error} and asks for {asked:,.0f} s without a request. Run the same command after "
            "that: it fetches the files that are missing."
        ) from error
    time.sleep(max(min(0.2 * 4**attempt, 20.0), asked))


def open_range(one: Piece, first: int, size: int) -> Readable:
    """Open `size` bytes of a piece from `first` on; the caller closes. Raises InputError, OSError."""
    if not is_url(one.place):
        file = Path(one.place).open("rb")  # noqa: SIM115 - the caller closes
        file.seek(first)
        return file
    response = _request(one.place, first, first + size - 1)
    reported = response.headers.get("Content-Range", "")
    if not reported.startswith(f"bytes {first}-") or not reported.endswith(f"/{one.size_bytes}"):
        response.close()
        raise InputError(
            f"{one.place}: asked for byte {first} of {one.size_bytes}, the server answers {reported!r}: "
            "the file has changed. Run fetch-plan again."
        )
    return response


class Joined(io.RawIOBase):
    """Pieces as one seekable file. A read over HTTP is one request; the end of the file is kept."""

    def __init__(self, pieces: Sequence[Piece], *, max_read_bytes: int) -> None:
        self._pieces = tuple(pieces)
        self._max_read_bytes = max_read_bytes
        self._place = 0
        self._tail = b""
        self.size_bytes = sum(one.size_bytes for one in pieces)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size_bytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "before the first byte")  # as a file does: zipfile asks for it
        self._place = start + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes. Raises InputError for more than the limit: a directory that lies."""
        left = max(0, self.size_bytes - self._place)
        size = left if size < 0 else min(size, left)
        if size > self._max_read_bytes:
            raise InputError(
                f"{self._pieces[0].place}: its directory claims {size:,} bytes, more than the "
                f"{self._max_read_bytes:,} that are read."
            )
        tail_from = max(0, self.size_bytes - TAIL_BYTES)
        if size and self._place >= tail_from:
            self._tail = self._tail or self._bytes(tail_from, self.size_bytes - tail_from)
            data = self._tail[self._place - tail_from :][:size]
        else:
            data = self._bytes(self._place, size)
        self._place += len(data)
        return data

    def _bytes(self, first: int, size: int) -> bytes:
        for attempt in range(ATTEMPTS):
            try:
                data = b"".join(chunks_of(spans(self._pieces, first, size)))
            except (OSError, http.client.HTTPException) as error:
                pause(attempt, self._pieces[0].place, error)
                continue
            return data
        raise AssertionError("the last attempt raises")


def spans(pieces: Sequence[Piece], first: int, size: int) -> list[tuple[Piece, int, int]]:
    """Return (piece, first byte in it, bytes) of the range `first`, `size` of the joined pieces."""
    found, start = [], 0
    for one in pieces:
        low, high = max(first, start), min(first + size, start + one.size_bytes)
        if low < high:
            found.append((one, low - start, high - low))
        start += one.size_bytes
    return found


def chunks_of(parts: Sequence[tuple[Piece, int, int]]) -> Iterator[bytes]:
    """Yield the bytes of ranges (piece, first byte, bytes), one after the other, in chunks.

    Raises InputError, and OSError when a range ends early.
    """
    for one, offset, count in parts:
        stream = open_range(one, offset, count)
        try:
            while count:
                data = stream.read(min(count, _CHUNK))
                if not data:
                    raise OSError(f"{one.place}: ended {counted(count, 'byte')} early")
                count -= len(data)
                yield data
        finally:
            stream.close()
