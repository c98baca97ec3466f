"""File locks (flock): one process at a time does a piece of work.

The kernel releases a lock when its holder exits, even killed, so nothing stays locked. The lock is
close-on-exec, and a forked child closes its copy at once, so workers that outlive a killed parent do not
keep the lock.
"""

import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vidcurate.errors import StorageError, VidcurateError
from vidcurate.storage import regular_file

_held: set[int] = set()  # handles of this process's locks


def _close_in_child() -> None:
    for handle in _held:
        with suppress(OSError):
            os.close(handle)  # closing a copy releases nothing while the parent has its own
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def take(handle: int, *, wait: bool = False) -> bool:
    """Lock an open file; return False when another process holds the lock and `wait` is False.

    Raises OSError where the file system cannot lock.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def is_free(path: Path) -> bool:
    """Return whether no process holds the lock `path`; the lock file must exist. Raises OSError."""
    handle = os.open(path, os.O_RDWR)
    try:
        if free := take(handle):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child between fork and exec has the file open, too
        return free
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY)
    if path.is_symlink():
        raise StorageError(f"{path}: is a link, and a lock is none; remove it: rm {path}")
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)  # another user's lock file


def _is_at(handle: int, path: Path) -> bool:
    """Return whether `path` still names the open file: a holder may have removed the file on its way out."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """Return who holds the lock, as far as the lock file says."""
    try:
        facts = json.loads(regular_file.read_bytes(path))
        return f"process {facts['pid']} on {facts['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _locked(path: Path, *, wait: bool) -> int | None:
    """Return a locked handle of `path`, None when another process holds the lock. Raises OSError."""
    while True:
        handle = _open(path)
        try:
            is_taken = take(handle, wait=wait)
            if is_taken and _is_at(handle, path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if not is_taken:
            return None


@contextmanager
def exclusive(
    path: Path,
    *,
    wait: bool = True,
    busy: Callable[[str], VidcurateError] | None = None,
    is_removed: bool = False,
    is_required: bool = True,
) -> Iterator[None]:
    """Hold the lock `path`, a file (made where there is none) or a folder, while the block runs.

    With `wait` the call blocks until the lock is free. Without, a lock that is held raises what `busy`
    returns for the holder ("process 123 on host"), or BlockingIOError without `busy`. A lock file says who
    holds the lock; `is_removed` removes the file at the end. Raises OSError where the file cannot be opened
    or the file system cannot lock; where the lock is not `is_required`, the block then runs without. Not
    reentrant: a second call for the same path waits for the first. A lock file that is a link raises
    StorageError: the holder is written into the file, and a link may lead to any.
    """
    try:
        handle = _locked(path, wait=wait)
    except OSError:
        if is_required:
            raise
        yield
        return
    if handle is None:
        raise busy(_holder(path)) if busy else BlockingIOError(f"{path}: locked by {_holder(path)}")
    owner = os.getpid()
    _held.add(handle)
    is_file = not path.is_dir()
    try:
        if is_file:
            _write_holder(handle, json.dumps({"host": socket.gethostname(), "pid": owner}))
        yield
    finally:
        if os.getpid() == owner:
            _held.discard(handle)
            if is_file and is_removed:
                with suppress(OSError):
                    path.unlink()
            elif is_file:
                _write_holder(handle, "")
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child between fork and exec has the file open, too
            os.close(handle)


def _write_holder(handle: int, text: str) -> None:
    with suppress(OSError):  # a full disk, or another user's lock file: the lock holds without a name
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
