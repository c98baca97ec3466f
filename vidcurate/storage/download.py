"""Download of whole files by URL, from object stores and web servers.

`s3://`, `gs://`, `az://` and `http(s)://` go through obstore (the extra `remote`), which takes its settings
from the environment (AWS_…, GOOGLE_…, AZURE_…) and asks again when a server is busy. What is not there is
`missing`, what may be there the next time is `io_error`: rows of a table like any other failure.
"""

import errno
import hashlib
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from vidcurate.errors import InputError, MediaError, StorageError
from vidcurate.storage import atomic_file, object_store
from vidcurate.storage.object_store import SCHEMES, is_url

_PAUSES_SECONDS = (0.2, 1.0)  # before each further try of a file that broke off in the middle
_RETRY = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=10), "base": 2},
}
_REQUEST_SECONDS = 60.0


def digest(folder: str | Path, paths: Iterable[str]) -> str:
    """Return a digest of the folder's place and of its files' names, sizes and times.

    When the digest changes, what was read from these files is out of date. The place counts: a damaged copy
    may have the same names, sizes and times. At a URL only the place and the names count.
    """
    if isinstance(folder, str):
        return hashlib.sha256("\n".join([folder, *paths]).encode()).hexdigest()
    whole = hashlib.sha256(f"{folder.resolve()}\n".encode())
    for path in paths:
        try:
            facts = (folder / path).stat()
            whole.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
        except OSError:
            whole.update(f"{path}\0missing\n".encode())
    return whole.hexdigest()


def join(folder: str | Path, path: str) -> str:
    """Return where the file `path` (relative, forward slashes) of a folder lies, for a worker anywhere."""
    return f"{folder.rstrip('/')}/{path}" if isinstance(folder, str) else str((folder / path).absolute())


def require(folder: str | Path) -> None:
    """Raise InputError unless `folder` is there, or is a URL and the library for URLs is installed."""
    if isinstance(folder, Path):
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder of videos. Give the folder with --videos.")
        return
    if not is_url(folder):
        raise InputError(f"{folder}: no URL that is read; they begin with {', '.join(SCHEMES)}.")
    object_store.require()


@lru_cache(maxsize=64)
def _store(folder: str) -> Any:
    return object_store.new_store(folder, _REQUEST_SECONDS, _RETRY)


def _download(url: str, target: Path) -> None:
    import obstore

    folder, _, name = url.rpartition("/")
    with target.open("wb") as file:
        for chunk in obstore.get(_store(folder), name).stream():
            file.write(chunk)


def fetch(url: str, target: Path) -> None:
    """Write the file at `url` to `target`.

    Raises MediaError (`missing`, `unreadable` when it is refused, `io_error` after several tries), and
    StorageError when there is no room for it here.
    """
    from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

    name = PurePosixPath(url).name
    for pause in (*_PAUSES_SECONDS, None):
        try:
            _download(url, target)
        except (NotFoundError, FileNotFoundError) as error:
            raise MediaError(f"{name}: no such file at its URL.", kind="missing") from error
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise MediaError(f"{name}: the server refuses it to us.", kind="unreadable") from error
        except (BaseError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(f"{target.parent}: no room for {name} ({error.strerror}).") from error
            if pause is None:
                reason = object_store.first_line(error)
                raise MediaError(f"{name}: cannot be fetched ({reason}).", kind="io_error") from error
            time.sleep(pause)
        else:
            return


def kept(url: str, folder: Path) -> Path:
    """Return the file at `url` as it lies in `folder`: fetched once. Raises InputError, StorageError."""
    require(url.rpartition("/")[0])
    path = folder / PurePosixPath(url).name
    if not path.exists():
        try:
            with atomic_file.storage_errors(path):
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_file.atomic_path(path) as partial:
                    fetch(url, partial)
        except MediaError as error:
            raise InputError(f"{url}: {error}") from error
    return path


@contextmanager
def local(place: str) -> Iterator[Path]:
    """Yield a path of this machine where the file lies; one from a URL is removed on the way out.

    Raises MediaError and StorageError as `fetch` does.
    """
    if not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="vidcurate-") as folder:
        path = Path(folder) / PurePosixPath(place).name
        fetch(place, path)
        yield path
