"""Objects in stores and on web servers, by URL: sizes and byte ranges.

`s3://`, `gs://`, `az://` and `http(s)://` go through obstore (the extra `remote`), which takes its settings
from the environment (AWS_…, GOOGLE_…, AZURE_…). Each object has a stamp, its size and ETag, taken when its
index was opened; an answer with another stamp is refused, so bytes of two versions are never mixed. What may
pass (a busy server, a broken connection, a request past its deadline) is asked again, longer apart each time.

A light module: obstore is loaded by the first request.
"""

import importlib.util
import io
import random
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

from vidcurate.errors import InputError, ShardError, StorageError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Which version of an object: its size, and its ETag (or, where the server has none, its time)."""

    size_bytes: int
    tag: str


def require() -> None:
    """Raise InputError unless the library for URLs is installed."""
    if importlib.util.find_spec("obstore") is None:
        raise InputError(
            "obstore, which reads URLs, is not installed. Run `pip install 'vidcurate[remote]'`."
        )


def new_store(folder: str, seconds: float, retry: Mapping[str, Any]) -> Any:
    """Return obstore's store of the folder at a URL; a request has `seconds`. Raises InputError."""
    require()
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    # Plain http is spoken only where the URL, or the endpoint in the environment, says http://.
    options: dict[str, Any] = {"timeout": timedelta(seconds=seconds), "allow_http": True}
    try:
        return from_url(folder, client_options=options, retry_config=dict(retry))
    except (BaseError, ValueError) as error:
        raise InputError(f"{folder}: cannot be opened ({first_line(error)}).") from error


@lru_cache(maxsize=64)
def _store(folder: str, seconds: float) -> Any:
    """Return a store that never asks again by itself: `_asked` does."""
    return new_store(folder, seconds, {"max_retries": 0, "retry_timeout": timedelta(seconds=seconds)})


def first_line(error: BaseException) -> str:
    """Return the first line of an error, at most 200 characters; its type for one without text."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:200]


def _stamp(meta: Any) -> Stamp:
    return Stamp(size_bytes=int(meta["size"]), tag=str(meta["e_tag"] or meta["last_modified"] or ""))


def sleep(url: str, reason: str, seconds: float) -> None:
    """Wait before a URL is asked again."""
    time.sleep(seconds)


def _asked(url: str, ask: Callable[[], T], pause: Pause = sleep) -> T:
    """Return what `ask` returns; ask again what may pass, after a `pause`.

    Raises ShardError for an answer that no second asking changes, StorageError for a refusal, for an object
    that is not there, and after the last try.
    """
    from obstore import exceptions as reported

    for seconds in (*PAUSES_SECONDS, None):
        try:
            return ask()
        except FileNotFoundError as error:
            raise StorageError(f"{url}: is not there.") from error
        except (reported.PermissionDeniedError, reported.UnauthenticatedError) as error:
            raise StorageError(f"{url}: the server refuses it to us ({first_line(error)}).") from error
        except reported.NotSupportedError as error:
            raise ShardError(f"{url}: the server ignores byte ranges; clips are read by range.") from error
        except reported.PreconditionError as error:
            raise ShardError(f"{url}: {_CHANGED}.") from error
        except (reported.BaseError, OSError) as error:
            if " 416 " in str(error):  # the object ends before the range
                raise ShardError(f"{url}: {_CHANGED} (it has become shorter).") from error
            if seconds is None:
                tries = len(PAUSES_SECONDS) + 1
                raise StorageError(f"{url}: failed {tries} times, at last: {first_line(error)}.") from error
            # Many ranks shall not ask again at one moment.
            pause(url, first_line(error), seconds * random.uniform(0.8, 1.2))
    raise AssertionError("unreachable")


def _parted(url: str) -> tuple[str, str]:
    folder, _, name = url.rpartition("/")
    return folder, name


def stamp_of(url: str, *, seconds: float = REQUEST_SECONDS) -> Stamp:
    """Return the stamp of an object. Raises InputError, StorageError."""
    folder, name = _parted(url)
    store = _store(folder, seconds)
    import obstore

    return _asked(url, lambda: _stamp(obstore.head(store, name)))


def stamp_if_there(url: str, *, seconds: float = REQUEST_SECONDS) -> Stamp | None:
    """Return the stamp of an object, None where there is none. Raises InputError, StorageError."""
    try:
        return stamp_of(url, seconds=seconds)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def stamps_of(folder: str, names: Iterable[str], *, seconds: float = REQUEST_SECONDS) -> dict[str, Stamp]:
    """Return the stamps of objects of one folder: by listing a bucket, one by one from a web server.

    Raises InputError, StorageError; one that is not there is named.
    """
    wanted = list(names)
    store = _store(folder, seconds)
    import obstore

    if folder.startswith(("http://", "https://")):
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            found = pool.map(lambda name: stamp_of(f"{folder}/{name}", seconds=seconds), wanted)
            return dict(zip(wanted, found, strict=True))

    def listed() -> dict[str, Stamp]:
        return {meta["path"]: _stamp(meta) for chunk in obstore.list(store) for meta in chunk}

    there = _asked(folder, listed)
    for name in wanted:
        if name not in there:
            raise StorageError(f"{folder}/{name}: is not there.")
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
    folder, name = _parted(url)
    store = _store(folder, seconds)
    import obstore

    def read() -> bytes:
        answer = obstore.get(store, name, options={"range": (first, first + size)})
        if stamp is not None and _stamp(answer.meta) != stamp:
            raise ShardError(
                f"{url}: {_CHANGED} (then {stamp.size_bytes:,} bytes, ETag {stamp.tag}; now "
                f"{answer.meta['size']:,}, {answer.meta['e_tag']})."
            )
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
