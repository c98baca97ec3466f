"""Journal of review decisions: RUN/reviews.jsonl, append-only, many processes.

One JSON line per decision or undo, under RUN/.reviews.lock. `storage.journal` flushes each line, cuts off
half lines and refuses forged ones.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vidcurate.curation.review_decisions.decision import Decision, Recorded, Undo, content
from vidcurate.errors import InputError
from vidcurate.storage import journal
from vidcurate.storage.journal import Known, now_utc

REVIEWS = "reviews.jsonl"
_LOCK = ".reviews.lock"
_Known = Known[Recorded | Undo]

_known: dict[Path, _Known] = {}  # read and written under the journal's lock


def _parse(fields: dict[str, Any], known: _Known) -> Recorded | Undo:
    """Return the decision or undo of a line. Raises ValueError, saying what is wrong."""
    model = Undo if fields.get("verdict") == "undo" else Recorded
    try:
        found = model.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise ValueError(_first(error)) from error
    if isinstance(found, Undo):
        undone = known.lines[found.undoes - 1] if found.undoes <= len(known.lines) else None
        if (
            not isinstance(undone, Recorded)
            or found.id != _undo_id(found.undoes)
            or (undone.reviewer, undone.clip_id) != (found.reviewer, found.clip_id)
        ):
            raise ValueError(f"undoes line {found.undoes}, which is no decision of {found.reviewer}")
    return found


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in found["loc"])
    text = found["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def _undo_id(number: int) -> str:
    return f"undo:{number}"


@contextmanager
def _writing(run: Path) -> Iterator[tuple[int, _Known]]:
    with journal.writing(run / REVIEWS, run / _LOCK, _parse, _known) as (handle, known):
        yield handle, known


def _append(handle: int, known: _Known, line: Recorded | Undo) -> None:
    journal.append(handle, known, line, line.model_dump(mode="json"))


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
        _append(handle, known, Recorded(number=number, time_utc=now_utc(), **dict(decision)))
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
            time_utc=now_utc(),
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
        self._known: _Known = Known()

    def read(self) -> tuple[Recorded, ...]:
        """Return the decisions, as `read_decisions` does."""
        self._known = journal.read(self._path, _parse, self._known)
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
