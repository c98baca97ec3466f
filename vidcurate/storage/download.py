"""Download of whole files by URL, from object stores and web servers.

`object_store` asks again when a server is busy, for at most a minute of pauses a file: a worker has a time
limit. What is not there is `missing`, what may be there the next time is `io_error`: rows of a table like any
other failure.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from vidcurate.errors import InputError, MediaError, ObjectError
from vidcurate.storage import atomic_file, http_objects, object_store
from vidcurate.storage.object_store import SCHEMES, is_url

_PAUSE_SECONDS = 60.0  # of all pauses for one file


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
    if isinstance(folder, Path):
        return str((folder / path).absolute())
    return f"{folder.rstrip('/')}/{quote(path) if http_objects.is_http(folder) else path}"


def _name(url: str) -> str:
    """Return the file's name at a URL."""
    name = PurePosixPath(unquote(urlsplit(url).path) if http_objects.is_http(url) else url).name
    return name if name.isprintable() and name not in ("", "..") else "file"


def require(folder: str | Path) -> None:
    """Raise InputError unless `folder` is there, or is a URL and the library for URLs is installed."""
    if isinstance(folder, Path):
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder of videos. Give the folder with --videos.")
        return
    if not is_url(folder):
        raise InputError(f"{folder}: no URL that is read; they begin with {', '.join(SCHEMES)}.")
    object_store.require(folder)


def fetch(url: str, target: Path) -> None:
    """Write the file at `url` to `target`.

    Raises MediaError (`missing`, `unreadable` when it is refused, `io_error` after several tries, or when the
    server asks for a longer pause than `_PAUSE_SECONDS`), and StorageError when there is no room for it here.
    """
    name, waited = _name(url), 0.0

    def pause(url: str, reason: str, seconds: float) -> None:
        nonlocal waited
        waited += seconds
        if waited > _PAUSE_SECONDS:
            reason = f"{reason}; more than {_PAUSE_SECONDS:g} s of pauses, the next of {seconds:,.0f} s"
            raise MediaError(f"{name}: cannot be fetched ({reason}).", kind="io_error")
        object_store.sleep(url, reason, seconds)

    try:
        with atomic_file.storage_errors(target), target.open("wb") as file:
            object_store.write_whole(url, file, pause)
    except ObjectError as error:
        if error.status == 404:
            raise MediaError(f"{name}: no such file at its URL.", kind="missing") from error
        if error.status == 403:
            raise MediaError(f"{name}: the server refuses it to us.", kind="unreadable") from error
        reason = str(error).removeprefix(f"{url}: ").rstrip(".")
        raise MediaError(f"{name}: cannot be fetched ({reason}).", kind="io_error") from error


def kept(url: str, folder: Path) -> Path:
    """Return the file at `url` as it lies in `folder`: fetched once. Raises InputError, StorageError."""
    require(url.rpartition("/")[0])
    path = folder / _name(url)
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
        path = Path(folder) / _name(place)
        fetch(place, path)
        yield path
