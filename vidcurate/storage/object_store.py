"""Objects in stores and on web servers, by URL: sizes and byte ranges.

`s3://`, `gs://` and `az://` go through obstore (the extra `remote`), which takes its settings from the
environment (AWS_…, GOOGLE_…, AZURE_…); `http(s)://` through `http_objects`. Each object has a stamp, its size
and ETag, taken when its index was opened; an answer with another stamp is refused, so bytes of two versions
are never mixed. What may pass (a busy server, a broken connection, a request past its deadline) is asked
again, longer apart each time, and no sooner than a web server asks (Retry-After).

A light module: obstore is loaded by the first request to a bucket.
"""

import http.client
import importlib.util
import io
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

from vidcurate.errors import InputError, ObjectError, ShardError
from vidcurate.storage import atomic_file, http_objects, http_pool
from vidcurate.storage.http_pool import StatusError

T = TypeVar("T")
Pause = Callable[[str, str, float], None]  # of a URL, for a reason, of so many seconds

SCHEMES = ("s3", "gs", "az", "http", "https")
REQUEST_SECONDS = 60.0
PAUSES_SECONDS = (0.2, 1.0, 4.0, 15.0, 45.0)  # before each further try
_HEADS_AT_ONCE = 16
_DOWNLOAD_BYTES = 1 << 26  # of a request
_CHANGED = "was changed since its index was opened; put the old object back, or start again with the new one"


def is_url(place: str) -> bool:
    """Say whether `place` names a file or folder by URL."""
    scheme, colons, _ = place.partition("://")
    return bool(colons) and scheme in SCHEMES


def place(value: Path | str) -> Path | str:
    """Return what a recipe or a command names as a URL (str, without a slash at its end) or a Path.

    Raises InputError for a URL of another scheme.
    """
    if isinstance(value, Path):
        return value
    if is_url(value):
        return value.rstrip("/")
    scheme, colons, rest = value.partition("://")
    if not colons:
        return Path(value)
    if scheme != "file" or not rest.startswith("/"):
        raise InputError(f"{value}: no URL that is read; they begin with {', '.join(SCHEMES)}, file:///.")
    return Path(rest)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which version of an object: its size, and its ETag (or, where the server has none, its time)."""

    size_bytes: int
    tag: str


def require(url: str) -> None:
    """Raise InputError unless what reads `url` is installed: obstore for a bucket, nothing for http."""
    if not http_objects.is_http(url) and importlib.util.find_spec("obstore") is None:
        raise InputError(
            f"{url}: obstore, which reads buckets, is not installed. Run `pip install 'vidcurate[remote]'`."
        )


@lru_cache(maxsize=64)
def _store(folder: str, seconds: float) -> Any:
    """Return obstore's store of a folder, which never asks again by itself. Raises InputError."""
    require(folder)
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    # Plain http is spoken only where the endpoint in the environment says http://.
    options: dict[str, Any] = {"timeout": timedelta(seconds=seconds), "allow_http": True}
    retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=seconds)}
    try:
        return from_url(folder, client_options=options, retry_config=retry)
    except (BaseError, ValueError) as error:
        raise InputError(f"{folder}: cannot be opened ({first_line(error)}).") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error, at most 200 characters; its type for one without text."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:200]


def _stamp(meta: Any) -> Stamp:
    return Stamp(size_bytes=int(meta["size"]), tag=str(meta["e_tag"] or meta["last_modified"] or ""))


def sleep(url: str, reason: str, seconds: float) -> None:
    """Wait before a URL is asked again."""
    time.sleep(seconds)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error stands for (403 for any refusal), None for one that may pass."""
    if isinstance(error, StatusError):
        return None if error.is_passing else {401: 403, 407: 403, 410: 404}.get(error.status, error.status)
    if isinstance(error, FileNotFoundError | PermissionError):  # obstore's, of a bucket
        return 404 if isinstance(error, FileNotFoundError) else 403
    if isinstance(error, OSError | http.client.HTTPException):
        return None
    from obstore import exceptions as reported

    if isinstance(error, reported.NotFoundError):
        return 404
    if isinstance(error, reported.PermissionDeniedError | reported.UnauthenticatedError):
        return 403
    if isinstance(error, reported.PreconditionError):
        return 412
    if isinstance(error, reported.NotSupportedError):
        return 200  # the whole object, asked for by range
    return 416 if " 416 " in str(error) else None  # the object ends before the range


def _asked(url: str, ask: Callable[[], T], pause: Pause = sleep) -> T:
    """Return what `ask` returns; ask again what may pass, after a `pause`.

    Raises ShardError for an answer that no second asking changes, StorageError for a refusal, for an object
    that is not there, after the last try, and for a server that asks for a longer pause than is waited for.
    """
    passing: tuple[type[BaseException], ...] = (OSError, http.client.HTTPException)
    if not http_objects.is_http(url):
        from obstore.exceptions import BaseError

        passing += (BaseError,)
    for seconds in (*PAUSES_SECONDS, None):
        try:
            return ask()
        except passing as error:
            status, asked, reason = _status(error), http_pool.wait_of(error), first_line(error)
            if status == 404:
                raise ObjectError(f"{url}: is not there.", status=404) from error
            if status == 403:
                raise ObjectError(f"{url}: the server refuses it to us ({reason}).", status=403) from error
            if status == 200:
                raise ShardError(f"{url}: {http_objects.NO_RANGES}") from error
            if status in (412, 416):
                shorter = " (it has become shorter)" if status == 416 else ""
                raise ShardError(f"{url}: {_CHANGED}{shorter}.") from error
            if status is not None:
                raise ObjectError(f"{url}: {reason}.", status=status) from error
            if asked > http_pool.LONGEST_WAIT_SECONDS:
                raise ObjectError(
                    f"{url}: {reason} and asks for {asked:,.0f} s without a request. Run the same command "
                    "after that."
                ) from error
            if seconds is None:
                tries = len(PAUSES_SECONDS) + 1
                raise ObjectError(f"{url}: failed {tries} times, at last: {reason}.") from error
            # Many ranks shall not ask again at one moment.
            pause(url, reason, max(seconds * random.uniform(0.8, 1.2), asked * random.uniform(1.0, 1.2)))
    raise AssertionError("unreachable")


def _parted(url: str) -> tuple[str, str]:
    folder, _, name = url.rpartition("/")
    return folder, name


def stamp_of(url: str, *, seconds: float = REQUEST_SECONDS) -> Stamp:
    """Return the stamp of an object. Raises InputError, StorageError."""
    if http_objects.is_http(url):
        return _asked(url, lambda: Stamp(*http_objects.head(url, seconds)))
    folder, name = _parted(url)
    store = _store(folder, seconds)
    import obstore

    return _asked(url, lambda: _stamp(obstore.head(store, name)))


def stamp_if_there(url: str, *, seconds: float = REQUEST_SECONDS) -> Stamp | None:
    """Return the stamp of an object, None where there is none. Raises InputError, StorageError."""
    try:
        return stamp_of(url, seconds=seconds)
    except ObjectError as error:
        if error.status == 404:
            return None
        raise


def stamps_of(folder: str, names: Iterable[str], *, seconds: float = REQUEST_SECONDS) -> dict[str, Stamp]:
    """Return the stamps of objects of one folder: by listing a bucket, one by one from a web server.

    Raises InputError, StorageError; one that is not there is named.
    """
    wanted = list(names)
    if http_objects.is_http(folder):
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            found = pool.map(lambda name: stamp_of(f"{folder}/{name}", seconds=seconds), wanted)
            return dict(zip(wanted, found, strict=True))
    store = _store(folder, seconds)
    import obstore

    def listed() -> dict[str, Stamp]:
        return {meta["path"]: _stamp(meta) for chunk in obstore.list(store) for meta in chunk}

    there = _asked(folder, listed)
    for name in wanted:
        if name not in there:
            raise ObjectError(f"{folder}/{name}: is not there.", status=404)
    return {name: there[name] for name in wanted}


def read_range(
    url: str,
    first: int,
    size: int,
    stamp: Stamp | None = None,
    *,
    seconds: float = REQUEST_SECONDS,
    pause: Pause = sleep,
) -> bytes:
    """Return `size` bytes of an object from byte `first` on, in one request; with `stamp`, of this version.

    Raises ShardError for an object that has changed, is shorter or comes from a server without ranges,
    StorageError when it cannot be had.
    """

    def checked(now: Stamp) -> None:
        if stamp is not None and now != stamp:
            raise ShardError(
                f"{url}: {_CHANGED} (then {stamp.size_bytes:,} bytes, ETag {stamp.tag}; now "
                f"{now.size_bytes:,}, {now.tag})."
            )

    def read() -> bytes:
        if http_objects.is_http(url):
            data = http_objects.read_range(url, first, size, seconds, lambda *now: checked(Stamp(*now)))
        else:
            folder, name = _parted(url)
            store = _store(folder, seconds)
            import obstore

            answer = obstore.get(store, name, options={"range": (first, first + size)})
            checked(_stamp(answer.meta))
            data = bytes(answer.bytes())
        if len(data) != size:
            raise ShardError(f"{url}: ends {size - len(data)} bytes before the range {first} + {size} does.")
        return data

    return _asked(url, read, pause)


def download(url: str, stamp: Stamp, to: IO[bytes], *, seconds: float = REQUEST_SECONDS) -> None:
    """Write this version of an object to an open file, by ranges. Raises as `read_range`, and OSError."""
    for first in range(0, stamp.size_bytes, _DOWNLOAD_BYTES):
        size = min(_DOWNLOAD_BYTES, stamp.size_bytes - first)
        to.write(read_range(url, first, size, stamp, seconds=seconds))


def write_whole(url: str, to: IO[bytes], pause: Pause = sleep, *, seconds: float = REQUEST_SECONDS) -> None:
    """Write an object to an open file, anew in each try. Raises InputError, StorageError."""

    def chunks() -> Iterator[bytes]:
        if http_objects.is_http(url):
            return http_objects.chunks(url, seconds)
        folder, name = _parted(url)
        store = _store(folder, seconds)
        import obstore

        return map(bytes, obstore.get(store, name).stream())

    def write() -> None:
        to.seek(0)
        to.truncate()
        for chunk in chunks():
            with atomic_file.storage_errors(Path(to.name)):
                to.write(chunk)

    _asked(url, write, pause)


class RangeFile(io.RawIOBase):
    """One version of an object as a file; every read is a request. Raises as `read_range`."""

    def __init__(self, url: str, stamp: Stamp, *, seconds: float = REQUEST_SECONDS) -> None:
        self._url, self._stamp, self._seconds = url, stamp, seconds
        self._at = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._stamp.size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._stamp.size_bytes - self._at)
        size = left if size < 0 else min(size, left)
        if not size:
            return b""
        data = read_range(self._url, self._at, size, self._stamp, seconds=self._seconds)
        self._at += len(data)
        return data
