"""Journal of review decisions: RUN/reviews.jsonl, append-only, many processes.

One JSON line per decision or undo. A writer holds RUN/.reviews.lock, appends the line in one write and
flushes the file before it returns the line's number: a decision that has a number survives a kill and a loss
of power. A line without its newline was never acknowledged; the next writer cuts it off, and readers skip it.

The field `digest` of each line is the SHA-256 (16 hex digits) of the digest of the line before and of the
line's own fields. A changed, inserted, removed or moved line is refused with its number. The digest protects
from editors and merged files, not from somebody who computes it anew.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vidcurate.curation.review_decisions.decision import Decision, Recorded, Undo, content
from vidcurate.errors import InputError, MissingError, TableError
from vidcurate.storage import atomic_file, lock

REVIEWS = "reviews.jsonl"
_LOCK = ".reviews.lock"
_MOST_LINE_BYTES = 1 << 20


@dataclass(slots=True)
class _Known:
    """What this process has read of a journal: whole lines up to the byte `end`."""

    end: int = 0
    last: bytes = b""  # the last of these lines
    digest: str = ""
    lines: list[Recorded | Undo] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # id → number


_known: dict[Path, _Known] = {}  # read and written under the journal's lock


def _digest(before: str, fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, allow_nan=False)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:16]


def _to_line(before: str, fields: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the line of these fields, and its digest."""
    digest = _digest(before, fields)
    text = json.dumps({**fields, "digest": digest}, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n", digest


def _parse(line: bytes, before: str, number: int) -> tuple[Recorded | Undo, str]:
    """Return a whole line and its digest. Raises ValueError, saying what is wrong."""
    if len(line) > _MOST_LINE_BYTES:
        raise ValueError("longer than any line that vidcurate writes")
    try:
        fields = json.loads(line)
        digest = fields.pop("digest")
        again, wanted = _to_line(before, fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a JSON line of this journal") from error
    if digest != wanted or again != line:
        raise ValueError("the digest does not fit the line and the one before")
    if fields.get("number") != number:
        raise ValueError(f"its number is {fields.get('number')!r}")
    model = Undo if fields.get("verdict") == "undo" else Recorded
    try:
        return model.model_validate_json(json.dumps(fields)), digest
    except ValidationError as error:
        raise ValueError(_first(error)) from error


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in found["loc"])
    text = found["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def _add(known: _Known, data: bytes, path: Path) -> None:
    """Add the whole lines of `data`, which begin at `known.end`. Raises TableError for a forged line."""
    for line in data[:-1].split(b"\n"):  # not splitlines: JSON text holds other line breaks
        whole = line + b"\n"
        number = len(known.lines) + 1
        try:
            found, digest = _parse(whole, known.digest, number)
            _check_against(known, found)
        except ValueError as error:
            raise TableError(
                f"{path}: line {number} was not written by vidcurate: {error}. Put back the file as it was, "
                f"or keep the lines before: head -n {number - 1} {path}"
            ) from error
        known.lines.append(found)
        known.numbers[found.id] = number
        known.digest = digest
        known.end, known.last = known.end + len(whole), whole


def _check_against(known: _Known, found: Recorded | Undo) -> None:
    """Raise ValueError for a line that repeats an id, or undoes what its reviewer did not decide."""
    if found.id in known.numbers:
        raise ValueError(f"the id {found.id} is that of line {known.numbers[found.id]}")
    if isinstance(found, Undo):
        undone = known.lines[found.undoes - 1] if found.undoes <= len(known.lines) else None
        if (
            not isinstance(undone, Recorded)
            or found.id != _undo_id(found.undoes)
            or (undone.reviewer, undone.clip_id) != (found.reviewer, found.clip_id)
        ):
            raise ValueError(f"undoes line {found.undoes}, which is no decision of {found.reviewer}")


def _undo_id(number: int) -> str:
    return f"undo:{number}"


def _read_on(known: _Known, handle: int, path: Path) -> _Known:
    """Return what the open journal holds, reading only what is new.

    The file is read anew when the last known line is not at its place: its digest covers all lines before.
    """
    if os.pread(handle, len(known.last), known.end - len(known.last)) != known.last:
        known = _Known()
    data = b""
    while some := os.pread(handle, 1 << 24, known.end + len(data)):
        data += some
    if whole := data[: data.rfind(b"\n") + 1]:
        _add(known, whole, path)
    return known


@contextmanager
def _writing(run: Path) -> Iterator[tuple[int, _Known]]:
    """Hold the journal's lock; yield an open handle, cut to whole lines, and what the file holds."""
    if not run.is_dir():
        raise MissingError(f"{run}: no such run folder.")
    path = run / REVIEWS
    with atomic_file.storage_errors(path), lock.exclusive(run / _LOCK):
        is_new = not path.exists()
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if is_new:
                atomic_file.fsync_folder(run)
            key = path.absolute()
            known = _read_on(_known.pop(key, _Known()), handle, path)
            if os.fstat(handle).st_size > known.end:
                os.ftruncate(handle, known.end)  # half a line of a killed writer
            yield handle, known
            _known[key] = known
        finally:
            os.close(handle)


def _append(handle: int, known: _Known, found: Recorded | Undo) -> None:
    line, digest = _to_line(known.digest, found.model_dump(mode="json"))
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, known.end)  # not acknowledged, so the retry starts from whole lines
        raise
    known.lines.append(found)
    known.numbers[found.id] = found.number
    known.digest, known.last, known.end = digest, line, known.end + len(line)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_decision(fields: Mapping[str, Any]) -> Decision:
    """Return the decision of a client's JSON object. Raises InputError, naming the field."""
    try:
        return Decision.model_validate_json(json.dumps(fields, allow_nan=False))
    except ValidationError as error:
        raise InputError(f"the decision is refused: {_first(error)}.") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the decision is refused: not a JSON object ({error}).") from error


def append_decision(run: Path, decision: Decision | Mapping[str, Any]) -> int:
    """Append a decision to RUN/reviews.jsonl and return its number, the line's number from 1.

    When the call returns, the line is flushed to the disk. The same decision again (same `id`) adds nothing
    and returns the first number. Raises InputError for a decision that is refused, or whose id belongs to
    another one; MissingError without the run folder; TableError for a forged line; StorageError.
    """
    if not isinstance(decision, Decision):
        decision = parse_decision(decision)
    with _writing(run) as (handle, known):
        number = known.numbers.get(decision.id)
        if number is not None:
            first = known.lines[number - 1]
            if not isinstance(first, Recorded) or content(first) != content(decision):
                raise InputError(
                    f"{run / REVIEWS}: line {number} has the id {decision.id} for another decision. "
                    "Send a new id."
                )
            os.fsync(handle)  # its writer may have been killed before the flush
            return number
        number = len(known.lines) + 1
        _append(handle, known, Recorded(number=number, time_utc=_now(), **dict(decision)))
        return number


def undo_decision(run: Path, number: int, reviewer: str) -> int:
    """Append the undo of decision `number` by its own reviewer, and return the undo's number.

    A second undo of the same decision adds nothing and returns the first number. Raises InputError when there
    is no such decision or another reviewer made it; the rest as in `append_decision`.
    """
    with _writing(run) as (handle, known):
        found = known.lines[number - 1] if 0 < number <= len(known.lines) else None
        if not isinstance(found, Recorded):
            raise InputError(f"{run / REVIEWS}: line {number} is no decision; there is nothing to undo.")
        if found.reviewer != reviewer:
            raise InputError(
                f"{run / REVIEWS}: decision {number} was made by {found.reviewer}; {reviewer} cannot undo "
                "it. Decide anew."
            )
        earlier = known.numbers.get(_undo_id(number))
        if earlier is not None:
            os.fsync(handle)
            return earlier
        undo = Undo(
            number=len(known.lines) + 1,
            id=_undo_id(number),
            clip_id=found.clip_id,
            reviewer=reviewer,
            time_utc=_now(),
            verdict="undo",
            undoes=number,
        )
        _append(handle, known, undo)
        return undo.number


class JournalReader:
    """Reader of RUN/reviews.jsonl that keeps what it has read: each call parses only the new lines.

    One thread at a time may call it.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / REVIEWS
        self._known = _Known()

    def read(self) -> tuple[Recorded, ...]:
        """Return the decisions, as `read_decisions` does."""
        with atomic_file.storage_errors(self._path):
            try:
                handle = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                return ()
            try:
                self._known = _read_on(self._known, handle, self._path)
            finally:
                os.close(handle)
        lines = self._known.lines
        undone = {line.undoes: line.number for line in lines if isinstance(line, Undo)}
        return tuple(
            line.model_copy(update={"undone_by": undone[line.number]}) if line.number in undone else line
            for line in lines
            if isinstance(line, Recorded)
        )


def read_decisions(run: Path) -> tuple[Recorded, ...]:
    """Return the decisions of RUN/reviews.jsonl, in order; those that were undone have `undone_by`.

    Undo lines are not in the result, so numbers may have gaps. None without the file; half a line at the end
    (a writer at work, or killed) is skipped. Raises TableError for a forged line, StorageError.
    """
    return JournalReader(run).read()
