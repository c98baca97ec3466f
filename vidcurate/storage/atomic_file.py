"""Atomic files and folders: written under a temporary name, then renamed.

The temporary name is hidden and unique (`.NAME.HOST-PID-RANDOM.partial`), so two writers of one file never
share it: the later rename wins, and readers see one whole file or the other. An error removes the temporary
file. A kill cannot: the next process that writes into the folder removes what killed writers left there.
"""

import errno
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vidcurate.errors import StorageError, VidcurateError
from vidcurate.storage import lock

_NAME = re.compile(r"\..*\.(?P<host>[^./]*)-(?P<pid>\d+)-[0-9a-f]{8}\.partial(\.\w+)?", re.DOTALL)
_RUST_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_FOOTER_ERROR = "Invalid thrift: transport error"  # polars, when a Parquet footer cannot be written
_MOST_NAME_BYTES = 255
_MOST_HOST_LETTERS = 40
_FOREIGN_SECONDS = 86_400.0  # untouched for so long, a temporary file of another host is of a killed writer

_cleaned: set[Path] = set()  # folders that this process has cleaned


def _host() -> str:
    return re.sub(r"[^\w-]", "_", socket.gethostname())[:_MOST_HOST_LETTERS]


def partial_path(final: Path, *, folder: Path | None = None, suffix: str = "") -> Path:
    """Return a new hidden temporary name beside `final`, or in `folder`; `suffix` ends the name."""
    end = f".{_host()}-{os.getpid()}-{secrets.token_hex(4)}.partial{suffix}"
    name = os.fsdecode(os.fsencode(f".{final.name}")[: _MOST_NAME_BYTES - len(os.fsencode(end))])
    return (folder or final.parent) / f"{name}{end}"


def is_partial(name: str) -> bool:
    """Return whether a file or folder of this name is a temporary one of this module."""
    return _NAME.fullmatch(name) is not None


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_if_left(path: Path) -> bool:
    """Remove a temporary file or folder whose writer is gone; return whether it was removed.

    The writer is alive while it holds a lock on the file, while a process of this host has its id, or, on
    another host, until a day after the last write.
    """
    found = _NAME.fullmatch(path.name)
    if found is None:
        return False
    try:
        if found["host"] == _host():
            if _is_running(int(found["pid"])):
                return False
        elif time.time() - path.stat().st_mtime < _FOREIGN_SECONDS:
            return False
        handle = os.open(path, os.O_RDONLY)
        try:
            if not lock.take(handle):
                return False
        finally:
            os.close(handle)
    except OSError:
        return False
    _remove(path)
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed writers from `folder`, the first time that this process asks."""
    folder = folder.absolute()
    if folder not in _cleaned:
        _cleaned.add(folder)
        with suppress(OSError), os.scandir(folder) as entries:
            for path in [Path(entry.path) for entry in entries if is_partial(entry.name)]:
                remove_if_left(path)


def create(
    final: Path, *, folder: Path | None = None, suffix: str = "", is_locked: bool = True
) -> tuple[Path, int]:
    """Create an empty temporary file for `final`; return its path and an open handle. Raises OSError.

    A lock says that the writer lives; closing the handle releases the lock.
    """
    path = partial_path(final, folder=folder, suffix=suffix)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    if is_locked:
        with suppress(OSError):  # a file system without locks: `remove_if_left` has the process id
            lock.take(handle)
    return path, handle


def append(path: Path, data: bytes) -> None:
    """Append `data` to a file in one write, so that lines of several processes do not mix; all or nothing.

    Raises StorageError where the disk fails, for a pipe that nobody reads, and for a link, which may lead to
    any file.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, flags, 0o644)
        try:
            before = os.fstat(handle).st_size
            if os.write(handle, data) < len(data):  # a full disk took a part
                os.ftruncate(handle, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error


def fsync_folder(folder: Path) -> None:
    """Flush a folder, so that a rename inside it survives a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush(path: Path) -> None:
    """Flush a file, or a folder with all that it holds. Raises OSError."""
    if path.is_dir():
        for inner in path.iterdir():
            flush(inner)
    fsync_folder(path)


def _rename(partial: Path, final: Path, *, is_flushed: bool) -> None:
    if is_flushed:
        flush(partial)
    partial.replace(final)
    if is_flushed:
        fsync_folder(final.parent)


@contextmanager
def atomic_path(
    final: Path, *, folder: Path | None = None, suffix: str = "", is_flushed: bool = True
) -> Iterator[Path]:
    """Yield an empty temporary file to fill; when the block ends, flush the file and rename it to `final`.

    For large files and for libraries that write to a path. `folder`, on the same file system, holds the
    temporary file instead of the folder of `final`; `suffix` ends its name, for libraries that look at it.
    A block that raises, or removes the temporary file, leaves `final` as it was. Raises OSError.
    """
    remove_leftovers(folder or final.parent)
    # Small files that are not flushed (heartbeats) are written often: no lock traffic on a network disk.
    partial, handle = create(final, folder=folder, suffix=suffix, is_locked=is_flushed)
    try:
        yield partial
        if partial.exists():
            _rename(partial, final, is_flushed=is_flushed)
    except BaseException:
        _remove(partial)
        raise
    finally:
        os.close(handle)


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; when the block ends, flush what it holds and rename it.

    `final` must not exist by then, or be an empty folder. Raises OSError.
    """
    remove_leftovers(final.parent)
    partial = partial_path(final)
    partial.mkdir(parents=True)
    try:
        yield partial
        _rename(partial, final, is_flushed=True)
    except BaseException:
        _remove(partial)
        raise


@contextmanager
def atomic_writer(final: Path, *, folder: Path | None = None, is_flushed: bool = True) -> Iterator[BinaryIO]:
    """Yield a temporary file that is open for writing bytes; the rest is as in `atomic_path`."""
    with atomic_path(final, folder=folder, is_flushed=is_flushed) as partial, partial.open("wb") as file:
        yield file


def put(path: Path, data: Any, *, is_flushed: bool = True) -> Path:
    """Write bytes, or text as UTF-8, to `path`, whole or not at all, and return `path`. Raises OSError.

    What UTF-8 cannot hold (a lone surrogate) becomes a question mark.
    """
    with atomic_writer(path, is_flushed=is_flushed) as file:
        file.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    return path


def write_bytes(path: Path, data: Any, *, is_flushed: bool = True) -> Path:
    """Write a file as `put` does, its folder too. Raises StorageError, naming the file."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return put(path, data, is_flushed=is_flushed)


def write_text(path: Path, text: str, *, is_flushed: bool = True) -> Path:
    """Write text as UTF-8 to `path`, whole or not at all, its folder too. Raises StorageError."""
    return write_bytes(path, text, is_flushed=is_flushed)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path`, whole or not at all. Raises StorageError."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def size_of(path: Path) -> int | None:
    """Return a file's size in bytes; None if there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def write_if_absent(path: Path, data: bytes) -> bool:
    """Write a file unless it is there with these bytes; say whether it was written. Raises OSError."""
    if path.is_file() and path.read_bytes() == data:
        return False
    put(path, data)
    return True


def _os_error(error: Exception) -> str | None:
    """Return the reason of an OSError, also of one that a Rust library raised as an error of its own."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, VidcurateError):
        return None
    code = _RUST_OS_ERROR.search(str(error))
    if code is not None:
        return os.strerror(int(code[1]))
    is_footer = type(error).__name__ == "ComputeError" and str(error).endswith(_FOOTER_ERROR)
    return "its last bytes were refused: is the disk full?" if is_footer else None


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise StorageError, naming `path` and the reason, for an OSError of the block.

    polars raises ComputeError for an OSError while it writes Parquet; only the message has the number, and
    for the footer not even the message.
    """
    try:
        yield
    except Exception as error:
        reason = _os_error(error)
        if reason is None:
            raise
        raise StorageError(f"{path}: cannot be written ({reason}).") from error
