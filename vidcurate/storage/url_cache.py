"""URL cache: a folder on this machine that never exceeds its limit of bytes.

An entry is named by what it holds (object, version, range), written beside its place and renamed, so a reader
finds it whole or not at all, and two writers of one entry write the same bytes. All processes of a machine
may share a folder. The bytes of entries and of those being written are counted in one file under a lock,
before they are written; when they would be more than the budget, the entries that were used least recently
go. Whoever is killed leaves no lock, and what it was writing is removed by the next clearing.
"""

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vidcurate.errors import InputError, StorageError
from vidcurate.storage import atomic_file, lock

_TOTAL = ".total"
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
            with self._begun(path, size) as (partial, handle):
                with open(handle, "wb", closefd=False) as file:
                    file.write(data)
                with self._locked():
                    if path.exists():
                        self._add(-path.stat().st_size)
                    partial.replace(path)
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
        with lock.exclusive(self.folder / ".lock"):
            yield

    def _total(self) -> int:
        try:
            return int((self.folder / _TOTAL).read_text())
        except (FileNotFoundError, ValueError):
            return sum(size for _, size, _ in self._entries())

    def _add(self, size: int, total: int | None = None) -> None:
        (self.folder / _TOTAL).write_text(str(max(0, (self._total() if total is None else total) + size)))

    @contextmanager
    def _begun(self, path: Path, size: int) -> Iterator[tuple[Path, int]]:
        """Yield a file that is counted with its whole size from its first moment; no file after an error."""
        until = time.monotonic() + _FULL_SECONDS
        while (begun := self._begin(path, size)) is None:
            if time.monotonic() > until:
                raise StorageError(
                    f"{self.folder}: for {_FULL_SECONDS:g} s the {self.max_bytes:,} bytes have been full of "
                    "entries that others are writing; raise cache_bytes."
                )
            time.sleep(_LOOK_SECONDS)
        partial, handle = begun
        try:
            yield partial, handle
        except BaseException:
            with self._locked():
                with suppress(OSError):
                    partial.unlink()
                self._add(-size)
            raise
        finally:
            os.close(handle)

    def _begin(self, path: Path, size: int) -> tuple[Path, int] | None:
        """Return a new file of `size` bytes, counted, and its locked handle.

        Return None while the entries that others are writing leave no space for this one.
        """
        with self._locked():
            total = self._total()
            if total + size > self.max_bytes:
                total = self._clear(min(self.max_bytes - size, int(_KEPT_SHARE * self.max_bytes)))
            if total + size > self.max_bytes:
                self._add(0, total)
                return None
            self._add(size, total)
            partial, handle = atomic_file.create(path)
            os.truncate(handle, size)
        return partial, handle

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
            if atomic_file.is_partial(path.name):
                total += 0 if atomic_file.remove_if_left(path) else size
            else:
                total += size
                entries.append((used, size, path))
        for _, size, path in sorted(entries):
            if total <= keep:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total
