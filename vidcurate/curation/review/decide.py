"""Review decisions: record, undo, and what the reviewers have said so far."""

import getpass
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from pydantic import Field

from vidcurate.curation.review.blind import SHOWN
from vidcurate.curation.review.clip_rows import ClipRows
from vidcurate.curation.review.query import Mask
from vidcurate.curation.review_decisions.decision import Decision, Recorded, Seen
from vidcurate.curation.review_decisions.journal import (
    REVIEWS,
    JournalReader,
    append_decision,
    parse_decision,
    undo_decision,
)
from vidcurate.curation.review_decisions.outcome import Outcome, merge_decisions, standing
from vidcurate.errors import InputError, StageError
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import atomic_file


class DecisionRequest(Recipe):
    """What a browser sends when its reader decides."""

    id: str
    """made by the browser; the same decision sent again adds no second line"""
    row: int
    """place of the clip in the table"""
    clip_id: str
    """the clip in that place, as the browser shows it"""
    verdict: Literal["keep", "reject", "caption", "tag"]
    """keep, reject, caption or tag"""
    reason: str | None = None
    """why, for keep and reject"""
    caption: str | None = None
    """the new caption"""
    tags: tuple[str, ...] = ()
    """all tags of this reviewer"""


class UndoRequest(Recipe):
    """Undo of one decision, or of the reviewer's last."""

    number: int | None = Field(default=None, ge=1, description="the decision's number; null: the last one")


@dataclass(frozen=True, slots=True)
class _State:
    """What the journal held when it had this size and time."""

    stamp: tuple[int, int]
    decisions: tuple[Recorded, ...]
    outcomes: Mapping[str, Outcome]
    own_tags: Mapping[str, tuple[str, ...]]


def login_name() -> str:
    """Return the name of the user, `reviewer` where the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "reviewer"


class DecisionBook:
    """The decisions of RUN/reviews.jsonl, read again when another process has written.

    `blind_sample` is the name of the sample under review, or None. Raises TableError for a forged line.
    """

    def __init__(self, run: Path, reviewer: str, *, blind_sample: str | None = None) -> None:
        self._run, self.reviewer, self._blind = run, reviewer, blind_sample
        self._lock = threading.Lock()
        self._journal = JournalReader(run)
        self._state = _State((-1, 0), (), {}, {})

    def state(self) -> _State:
        """Return the decisions as they are on the disk now."""
        path = self._run / REVIEWS
        with self._lock, atomic_file.storage_errors(path):
            stamp = (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else (0, 0)
            if stamp != self._state.stamp:
                decisions = self._journal.read()
                if self._blind is not None:  # nobody sees what others said of a blind sample
                    decisions = tuple(
                        one
                        for one in decisions
                        if one.blind_sample == self._blind and one.reviewer == self.reviewer
                    )
                own = [one for one in standing(decisions) if one.reviewer == self.reviewer]
                tags = {one.clip_id: one.tags for one in own if one.verdict == "tag"}
                self._state = _State(stamp, decisions, merge_decisions(decisions), tags)
            return self._state

    def of(self, clip_id: str) -> dict[str, Any] | None:
        """Return what was decided on a clip: verdict, text, caption, tags, disputed; None without."""
        found = self.state().outcomes.get(clip_id)
        if found is None:
            return None
        own = next((line for line in found.words if line.reviewer == self.reviewer), None)
        return {
            "verdict": found.verdict,
            "mine": own.verdict if own else None,
            "text": found.text(),
            "caption": found.edit.caption if found.edit else None,
            "tags": list(found.tags),
            "my_tags": list(self.state().own_tags.get(clip_id, ())),
            "disputed": found.is_disputed,
        }

    def matching(self, rows: ClipRows, wanted: str) -> Mask:
        """Return which rows were decided on as wanted: any, none, keep, reject, caption, tag, disputed."""
        ids = [clip_id for clip_id, one in self.state().outcomes.items() if _says(one, wanted)]
        listed = pl.Series(ids, dtype=pl.String).implode()
        mask = rows.column("clip_id").is_in(listed).fill_null(value=False).to_numpy()
        return np.asarray(~mask if wanted == "none" else mask, dtype=np.bool_)

    def counts(self) -> dict[str, int]:
        """Return the number of clips kept, rejected, with another caption, tagged, disputed."""
        every = self.state().outcomes.values()
        return {name: sum(_says(one, name) for one in every) for name in _SAYS}

    def record(self, rows: ClipRows, wanted: DecisionRequest) -> dict[str, Any]:
        """Append a decision, with the rule and the scores of the clip as the table has them now.

        Returns its number and what is decided on the clip. Raises StageError when the row is another clip by
        now, InputError for a decision that is refused, StorageError.
        """
        is_there = 0 <= wanted.row < len(rows) and rows.column("clip_id")[wanted.row] == wanted.clip_id
        if not is_there:
            raise StageError(
                f"{self._run}: row {wanted.row} is not {wanted.clip_id} any more: a stage has written the "
                "tables anew. Load the page again."
            )
        numbers = {
            name: value
            for name, value in rows.row(wanted.row).items()
            if name in rows.schema
            and rows.schema[name].is_numeric()
            and (self._blind is None or name in SHOWN)
        }
        rule = None if self._blind is not None else rows.column("reject_rule")[wanted.row]
        decision = _decision(wanted, self.reviewer, self._blind, Seen(rule=rule, scores=numbers))
        number = append_decision(self._run, decision)
        return {"number": number, "decision": self.of(wanted.clip_id)}

    def undo(self, wanted: UndoRequest) -> dict[str, Any]:
        """Take back a decision of this reviewer and return the clip's id and what is decided on it now.

        Raises InputError when there is none.
        """
        mine: Sequence[Recorded] = [
            one for one in standing(self.state().decisions) if one.reviewer == self.reviewer
        ]
        number = wanted.number
        if number is None:
            if not mine:
                raise InputError(f"{self.reviewer} has no decision to undo.")
            number = mine[-1].number
        undo_decision(self._run, number, self.reviewer)
        clip_id = next((one.clip_id for one in self.state().decisions if one.number == number), "")
        return {"number": number, "clip_id": clip_id, "decision": self.of(clip_id)}


_SAYS = ("keep", "reject", "caption", "tag", "disputed")


def _says(one: Outcome, wanted: str) -> bool:
    """Return whether an outcome is what `wanted` names; any and none: true."""
    if wanted in ("keep", "reject"):
        return one.verdict == wanted
    return {"caption": one.edit is not None, "tag": bool(one.tags), "disputed": one.is_disputed}.get(
        wanted, True
    )


def _decision(wanted: DecisionRequest, reviewer: str, blind: str | None, seen: Seen) -> Decision:
    fields = wanted.model_dump(mode="json", exclude={"row"})
    fields |= {
        "reason": wanted.reason or None,
        "reviewer": reviewer,
        "blind_sample": blind,
        "seen": seen.model_dump(mode="json"),
    }
    return parse_decision(fields)
