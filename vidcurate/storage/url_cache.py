"""What was read by URL, kept on this machine: a folder of entries that never outgrows its bytes.

An entry is named by what it holds (object, version, range), written beside its place and renamed, so a reader
finds it whole or not at all, and two writers of one entry write the same bytes. All processes of a machine
may share a folder. The bytes of entries and of those being written are counted in one file under a lock,
before they are written; when they would be more than the budget, the entries that were used least recently
go. Whoever is killed leaves no lock, and what it was writing is removed by the next clearing.
"""

import errno
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vidcurate.errors import InputError, StorageError

_TOTAL = ".total"
_PARTIAL = ".partial-"
_FULL_SECONDS = 120.0  # for others to end their writing
_LOOK_SECONDS = 0.01
_KEPT_SHARE = 0.9  # of the budget that a clearing leaves: so that not every write clears


def default_folder() -> Path:
    """Return the folder where nobody named one: in the system's folder for temporary files."""
    return Path(tempfile.gettempdir()) / f"vidcurate-cache-{os.getuid()}"


def key_of(*facts: object) -> str:
    """Return the name of the entry that these facts (object, version, range) describe."""
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:40]


class ShardCache:
    """The entries in `folder`, at most `max_bytes`. Any number of processes and threads may use it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._entries_folder = folder / "clips"
        try:
            self._entries_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: no cache can be made here ({error.strerror}).") from error

    def path_of(self, key: str) -> Path:
        return self._entries_folder / key[:2] / key[2:]

    def find(self, key: str, size: int) -> Path | None:
        """Return where an entry of `size` bytes lies, and mark it as used; None where there is none."""
        path = self.path_of(key)
        try:
            if path.stat().st_size == size:
                os.utime(path)
                return path
        except OSError:
            return None
        self.drop(key)  # a machine that lost power may have kept the name and not the bytes
        return None

    def drop(self, key: str) -> None:
        """Remove an entry, if it is there."""
        with suppress(OSError), self._locked():
            path = self.path_of(key)
            size = path.stat().st_size
            path.unlink()
            self._add(-size)

    def put(self, key: str, data: bytes) -> Path:
        """Write an entry and return its path.

        Raises InputError for one that the budget does not hold, StorageError when the disk refuses.
        """
        size = len(data)
        if size > self.max_bytes:
            raise InputError(
                f"{self.folder}: the cache has {self.max_bytes:,} bytes and one entry needs {size:,}; raise "
                "cache_bytes."
            )
        path = self.path_of(key)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with self._begun(path.parent, size) as partial:
                partial.write(data)
                partial.flush()
                with self._locked():
                    if path.exists():
                        self._add(-path.stat().st_size)
                    os.replace(partial.name, path)
        except OSError as error:
            reason = "no room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
            raise StorageError(
                f"{self.folder}: an entry of {size:,} bytes cannot be written ({reason}). Lower cache_bytes, "
                "or name a folder on another disk."
            ) from error
        return path

    # ── the budget ──────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _total(self) -> int:
        try:
            return int((self.folder / _TOTAL).read_text())
        except (FileNotFoundError, ValueError):
            return sum(size for _, size, _ in self._entries())

    def _add(self, size: int, total: int | None = None) -> None:
        (self.folder / _TOTAL).write_text(str(max(0, (self._total() if total is None else total) + size)))

    @contextmanager
    def _begun(self, folder: Path, size: int) -> Iterator[Any]:
        """Yield a file that is counted with its whole size from its first moment; no file after an error."""
        until = time.monotonic() + _FULL_SECONDS
        while (partial := self._begin(folder, size)) is None:
            if time.monotonic() > until:
                raise StorageError(
                    f"{self.folder}: for {_FULL_SECONDS:g} s the {self.max_bytes:,} bytes have been full of "
                    "entries that others are writing; raise cache_bytes."
                )
            time.sleep(_LOOK_SECONDS)
        try:
            with partial:
                yield partial
        except BaseException:
            with self._locked():
                with suppress(OSError):
                    os.unlink(partial.name)
                self._add(-size)
            raise

    def _begin(self, folder: Path, size: int) -> Any:
        """Return a new file of `size` bytes, counted; None while what others write leaves no room for it."""
        with self._locked():
            total = self._total()
            if total + size > self.max_bytes:
                total = self._clear(min(self.max_bytes - size, int(_KEPT_SHARE * self.max_bytes)))
            if total + size > self.max_bytes:
                self._add(0, total)
                return None
            self._add(size, total)
            partial = tempfile.NamedTemporaryFile(dir=folder, prefix=_PARTIAL, delete=False)  # noqa: SIM115
            fcntl.flock(partial, fcntl.LOCK_EX)  # says that its writer lives
            partial.truncate(size)
        return partial

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """Yield (time of use in ns, bytes, path) of all that lies here, half-written files too."""
        for inner in os.scandir(self._entries_folder):
            for entry in os.scandir(inner.path):
                with suppress(FileNotFoundError):
                    facts = entry.stat()
                    yield facts.st_mtime_ns, facts.st_size, Path(entry.path)

    def _clear(self, keep: int) -> int:
        """Remove what was used least recently until `keep` bytes are left; return how many are."""
        total = 0
        entries = []
        for used, size, path in self._entries():
            if path.name.startswith(_PARTIAL):
                total += _remove_if_left(path, size)
            else:
                total += size
                entries.append((used, size, path))
        for _, size, path in sorted(entries):
            if total <= keep:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total


def _remove_if_left(partial: Path, size: int) -> int:
    """Remove a half-written file whose writer is gone; return the bytes that it still takes."""
    with suppress(OSError), partial.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return size
        partial.unlink(missing_ok=True)
    return 0
