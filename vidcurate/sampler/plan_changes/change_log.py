"""Change log of a run (`journal`): the deliberate changes of data and recipe.

Each entry says what changed at which step; entries that change the order name the file of the plan that
is valid from there on (`plan_file`). `replay_changes` rebuilds the plan with all changes from these files and
the current index. A file's name is the hash of its bytes, so no file ever changes. All files lie in one
folder, the run's `journal`; a state names the newest log file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.errors import StateError
from vidcurate.sampler.order_state import LoaderState, StateComparison
from vidcurate.sampler.plan import Plan, Rows
from vidcurate.sampler.plan_changes import plan_file, transition
from vidcurate.shards import index_diff
from vidcurate.shards.index import Index
from vidcurate.storage import atomic_file

FORMAT = "vidcurate-journal-1"
NAMED = 10  # clips of a kind, in an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change before step `step`; `kinds` as in `order_state.FLAGS`, or begin.

    The fingerprints are those after the change. `counts`: kind → number of clips. `clips`: kind → some of
    their ids; `removed`: all removed ids. `plan_file`: the plan from this step on, "" when the order stays;
    `with_gaps`: fallback clips take the places of the removed clips.
    """

    step: int
    kinds: tuple[str, ...]
    structure_fingerprint: str
    content_fingerprint: str
    plan_fingerprint: str
    counts: Mapping[str, int]
    clips: Mapping[str, Sequence[str]]
    removed: Sequence[str] = ()
    plan_file: str = ""
    with_gaps: bool = False

    def to_text(self) -> str:
        """Return the change as one line of text."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        return f"step {self.step}: {counts or ', '.join(self.kinds)}"


Journal = tuple[Change, ...]


def read_change_log(folder: Path, name: str) -> Journal:
    """Return the change log that a state names. Raises StateError when the file is missing or altered."""
    path = folder / f"{name}.json"
    kept = json.loads(plan_file.read_whole(path, name))
    if kept.pop("format") != FORMAT:
        raise StateError(f"{path}: its format is not {FORMAT!r}, which this version reads.")
    return tuple(_change_from(entry) for entry in kept["changes"])


def _change_from(entry: dict[str, Any]) -> Change:
    clips = {kind: tuple(clip_ids) for kind, clip_ids in entry["clips"].items()}
    return Change(
        **{**entry, "kinds": tuple(entry["kinds"]), "clips": clips, "removed": tuple(entry["removed"])}
    )


def write_change_log(folder: Path, journal: Journal) -> str:
    """Write a change log and return its name. Raises StorageError."""
    kept = {"format": FORMAT, "changes": [asdict(change) for change in journal]}
    data = (json.dumps(kept, sort_keys=True) + "\n").encode()
    name = rng.hash_bytes(data)
    atomic_file.write_bytes(folder / f"{name}.json", data)
    return name


def copy_change_log(folder: Path, into: Path, name: str) -> None:
    """Copy a change log and its plan files to another run's folder. Raises StateError, StorageError."""
    for change in read_change_log(folder, name):
        if change.plan_file:
            plan_name = f"{change.plan_file}.parquet"
            data = plan_file.read_whole(folder / plan_name, change.plan_file)
            atomic_file.write_bytes(into / plan_name, data)
    atomic_file.write_bytes(into / f"{name}.json", plan_file.read_whole(folder / f"{name}.json", name))


def extend_change_log(
    folder: Path,
    journal: Journal,
    state: LoaderState,
    verdict: StateComparison,
    index: Index,
    plan: Plan,
    old_index: Index | None,
    first_plan: Callable[[], Plan],
) -> Journal:
    """Return the change log plus the accepted differences of `verdict`, and write its plan files.

    `plan`: the current plan over `index`. `first_plan` rebuilds, over `old_index`, the plan of the state;
    called for the first change of the order only. Raises StateError when that plan cannot be rebuilt,
    StorageError.
    """
    change = _change(state, verdict, index, plan)
    if change.kinds == ("content",):
        return (*journal, change)
    hashes = rng.id_hashes(index.words("clip_id"))
    if not any(entry.plan_file for entry in journal):
        journal = (_begin(folder, state, index if old_index is None else old_index, first_plan()), *journal)
    if set(change.kinds) <= {"removed", "content"}:
        lookup = _Lookup((*journal, change), index)
        before = _replay(folder, journal, lookup)
        if transition.with_removed_clips(before, lookup.rows_of(change.removed), state.step):
            return (*journal, replace(change, with_gaps=True))
    return (*journal, replace(change, plan_file=plan_file.write_plan(folder, plan, hashes)))


def _change(state: LoaderState, verdict: StateComparison, index: Index, plan: Plan) -> Change:
    counts: dict[str, int] = {}
    clips: dict[str, tuple[str, ...]] = {}
    removed: tuple[str, ...] = ()
    if found := verdict.difference:
        removed = tuple(sorted(index_diff.clip_ids(found.old, found.removed)))
        rows = {"added": found.added, "content": found.edited, "plan": found.reshaped}
        counts = {kind: len(some) for kind, some in rows.items() if len(some)}
        clips = {kind: tuple(index_diff.clip_ids(index, rows[kind][:NAMED])) for kind in counts}
        if removed:
            counts["removed"], clips["removed"] = len(removed), removed[:NAMED]
    return Change(
        step=state.step,
        kinds=tuple(dict.fromkeys(finding.kind for finding in verdict.findings)),
        structure_fingerprint=index.structure_fingerprint,
        content_fingerprint=index.content_fingerprint,
        plan_fingerprint=plan.fingerprint,
        counts=counts,
        clips=clips,
        removed=removed,
    )


def _begin(folder: Path, state: LoaderState, index: Index, plan: Plan) -> Change:
    """Write the plan that the run began with, and return its entry."""
    if plan.fingerprint != state.plan_fingerprint:
        raise StateError(
            f"cannot rebuild the plan of the loader state of step {state.step} "
            f"(fingerprint {plan.fingerprint[:8]} instead of {state.plan_fingerprint[:8]}): the clips of "
            f"{index.folder} or the recipe in the checkpoint have changed. Start a new order with "
            "--start-from-scratch."
        )
    return Change(
        step=0,
        kinds=("begin",),
        structure_fingerprint=state.structure_fingerprint,
        content_fingerprint=state.content_fingerprint,
        plan_fingerprint=plan.fingerprint,
        counts={},
        clips={},
        plan_file=plan_file.write_plan(folder, plan, rng.id_hashes(index.words("clip_id"))),
    )


def replay_changes(folder: Path, journal: Journal, index: Index) -> Plan:
    """Return the plan with all changes of a log, its clips at their rows of `index`.

    The log must hold a change of the order. Raises StateError when a file is missing or altered.
    """
    return _replay(folder, journal, _Lookup(journal, index))


def _replay(folder: Path, journal: Journal, lookup: "_Lookup") -> Plan:
    plan: Plan | None = None
    for change in journal:
        if change.with_gaps:
            assert plan
            changed = transition.with_removed_clips(plan, lookup.rows_of(change.removed), change.step)
            assert changed
            plan = replace(changed, fingerprint=change.plan_fingerprint)
        elif change.plan_file:
            its_plan = plan_file.read_plan(folder, change.plan_file, lookup.rows)
            its_plan = replace(its_plan, num_rows=lookup.num_rows, gone=lookup.gone)
            plan = transition.continue_with(plan, its_plan, change.step) if plan else its_plan
    assert plan
    return plan


class _Lookup:
    """Clip-id hash → row of the current index; removed clips (`gone`) follow its rows.

    Raises StateError when two clips share a hash, as plan files identify clips by hash.
    """

    def __init__(self, journal: Journal, index: Index) -> None:
        hashes = rng.id_hashes(index.words("clip_id"))
        names = list(dict.fromkeys(name for change in journal for name in change.removed))
        of_names = rng.id_hashes(names)
        self.num_rows = len(index)
        self._order = rng.sort_by_hash(hashes)
        self._sorted = hashes[self._order]
        away = np.flatnonzero(~self._knows(of_names))
        self.gone = tuple(names[number] for number in away.tolist())
        if self.gone:
            both = np.concatenate([hashes, of_names[away]])
            self._order = rng.sort_by_hash(both)
            self._sorted = both[self._order]
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(twice):
            pair = [self._name(index, int(row)) for row in self._order[twice[0] : twice[0] + 2]]
            raise StateError(
                f"the ids of the clips {pair[0]!r} and {pair[1]!r} have the same hash, so their order "
                "cannot resume after a change. Rename one and start a new order with --start-from-scratch."
            )

    def _name(self, index: Index, row: int) -> str:
        return index.word("clip_id", row) if row < self.num_rows else self.gone[row - self.num_rows]

    def _places(self, hashes: rng.Words) -> Rows:
        return np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)

    def _knows(self, hashes: rng.Words) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self._sorted[self._places(hashes)] == hashes
        return known

    def rows(self, hashes: rng.Words) -> Rows:
        """Return the rows of the clips with these hashes. Raises StateError for an unknown hash."""
        places = self._places(hashes)
        unknown = len(hashes) - int(np.count_nonzero(self._sorted[places] == hashes))
        if unknown:
            raise StateError(
                f"{unknown} clips of a plan in the journal are neither in the index nor listed as removed: "
                "the journal belongs to another run. Copy the journal folder of this run."
            )
        return self._order[places]

    def rows_of(self, clip_ids: Sequence[str]) -> Rows:
        return self.rows(rng.id_hashes(list(clip_ids)))
