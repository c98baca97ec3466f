"""Append-only journal of JSON lines that survives kills, with several writers.

A writer holds a lock, appends the line in one write and flushes the file before the call returns: a line that
has a number survives a kill and a loss of power. A line without its newline was never acknowledged; the next
writer cuts it off, and readers skip it.

The field `digest` of each line is the SHA-256 (16 hex digits) of the digest of the line before and of the
line's own fields. A changed, inserted, removed or moved line is refused with its number, and so is a line
whose `id` another one has. The digest protects from editors and merged files, not from somebody who computes
it anew.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from vidcurate.errors import MissingError, TableError
from vidcurate.storage import atomic_file, lock, regular_file

MOST_LINE_BYTES = 1 << 20
_READ_BYTES = 1 << 24


class Line(Protocol):
    """Line of a journal; no two lines have the same id."""

    @property
    def id(self) -> str: ...


L = TypeVar("L", bound=Line)


@dataclass(slots=True)
class Known(Generic[L]):
    """What a process has read of a journal: whole lines up to the byte `end`."""

    end: int = 0
    last: bytes = b""  # the last of these lines
    digest: str = ""
    lines: list[L] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # id → number, from 1


# From a line's fields, without the digest, and the lines before; raises ValueError, saying what is wrong.
Parse = Callable[[dict[str, Any], Known[L]], L]


def _digest(before: str, fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, allow_nan=False)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:16]


def _to_line(before: str, fields: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line of these fields, and its digest."""
    digest = _digest(before, fields)
    text = json.dumps({**fields, "digest": digest}, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n", digest


def _parse(line: bytes, known: Known[L], parse: Parse[L]) -> tuple[L, str]:
    """Return a whole line and its digest. Raises ValueError, saying what is wrong."""
    if len(line) > MOST_LINE_BYTES:
        raise ValueError("longer than any line that vidcurate writes")
    try:
        fields = json.loads(line)
        digest = fields.pop("digest")
        again, wanted = _to_line(known.digest, fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a JSON line of this journal") from error
    if digest != wanted or again != line:
        raise ValueError("the digest does not fit the line and the one before")
    if fields.get("number") != len(known.lines) + 1:
        raise ValueError(f"its number is {fields.get('number')!r}")
    found = parse(fields, known)
    if found.id in known.numbers:
        raise ValueError(f"the id {found.id} is that of line {known.numbers[found.id]}")
    return found, digest


def _add(known: Known[L], data: bytes, path: Path, parse: Parse[L]) -> None:
    """Add the whole lines of `data`, which begin at `known.end`. Raises TableError for a forged line."""
    for line in data[:-1].split(b"\n"):  # not splitlines: JSON text holds other line breaks
        whole = line + b"\n"
        number = len(known.lines) + 1
        try:
            found, digest = _parse(whole, known, parse)
        except ValueError as error:
            raise TableError(
                f"{path}: line {number} was not written by vidcurate: {error}. Put back the file as it was, "
                f"or keep the lines before: head -n {number - 1} {path}"
            ) from error
        known.lines.append(found)
        known.numbers[found.id] = number
        known.digest = digest
        known.end, known.last = known.end + len(whole), whole


def _read_on(known: Known[L], handle: int, path: Path, parse: Parse[L]) -> Known[L]:
    """Return what the open journal holds, reading only what is new.

    The file is read anew when the last known line is not at its place: its digest covers all lines before.
    """
    if os.pread(handle, len(known.last), known.end - len(known.last)) != known.last:
        known = Known()
    rest = b""
    while some := os.pread(handle, _READ_BYTES, known.end + len(rest)):
        data = rest + some
        whole = data[: data.rfind(b"\n") + 1]
        if whole:
            _add(known, whole, path, parse)
        rest = data[len(whole) :]
    return known


@contextmanager
def writing(
    path: Path, lock_path: Path, parse: Parse[L], cache: dict[Path, Known[L]]
) -> Iterator[tuple[int, Known[L]]]:
    """Hold the journal's lock; yield an open handle, cut to whole lines, and what the file holds.

    `cache` keeps what was read, by the file's absolute path; this function alone uses it, under the lock.
    Raises MissingError without the folder, TableError for a forged line, StorageError, also for a journal
    that is a link: it may lead to any file.
    """
    if not path.parent.is_dir():
        raise MissingError(f"{path.parent}: no such run folder.")
    with atomic_file.storage_errors(path), lock.exclusive(lock_path):
        is_new = not path.exists()
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            if is_new:
                atomic_file.fsync_folder(path.parent)
            key = path.absolute()
            known = _read_on(cache.pop(key, Known()), handle, path, parse)
            if os.fstat(handle).st_size > known.end:
                os.ftruncate(handle, known.end)  # half a line of a killed writer
            yield handle, known
            cache[key] = known
        finally:
            os.close(handle)


def append(handle: int, known: Known[L], line: L, fields: Mapping[str, Any]) -> int:
    """Append `line`, whose fields are `fields`, flush it, and return its number. Raises OSError."""
    text, digest = _to_line(known.digest, fields)
    try:
        if os.write(handle, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, known.end)  # not acknowledged, so the retry starts from whole lines
        raise
    known.lines.append(line)
    known.numbers[line.id] = len(known.lines)
    known.digest, known.last, known.end = digest, text, known.end + len(text)
    return len(known.lines)


def read(path: Path, parse: Parse[L], known: Known[L] | None = None) -> Known[L]:
    """Return the whole lines of a journal; none without the file. Raises TableError, StorageError.

    `known` is what an earlier call returned: only new lines are then parsed.
    """
    with atomic_file.storage_errors(path):
        try:
            file = regular_file.opened(path)
        except FileNotFoundError:
            return Known()
        with file:
            return _read_on(known or Known(), file.fileno(), path, parse)


def now_utc() -> str:
    """Return the time as journals have it: 2026-01-31T23:59:59.123Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
