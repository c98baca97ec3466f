"""Loader state in a checkpoint: the step, and fingerprints of data and plan.

A resume restores nothing, as the clips of a step are computed. But when the data or the recipe changed, the
same step number means other clips. So the state holds fingerprints, and `check_state` raises an error that
names every difference. A flag accepts each kind of deliberate change; the change log (`journal`) then records
the change, and the state names the file of the log.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass

from vidcurate.errors import InputError, StateError
from vidcurate.sampler.plan import Plan
from vidcurate.shards import index_diff
from vidcurate.shards.index import Index
from vidcurate.shards.index_diff import Difference

FORMAT = "vidcurate-loader-state-2"
_FORMAT_1 = "vidcurate-loader-state-1"  # the same without the fields of the change log
MAX_BYTES = 2048
_MOST_STEPS = 1 << 53  # JSON's own integers; a run of a step a millisecond takes 285,000 years
MOST_CHANGES = 8  # in the state; the change log has all

# Kind of deliberate change → the flag of `python -m trainer` that accepts it.
FLAGS = {
    "content": "--accept-content",
    "added": "--append",
    "removed": "--tombstone",
    "plan": "--accept-plan",
}

_RESTART = "start a new order with --start-from-scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """State of the loader before step `step`.

    `rolling_hash` is `order.rolling_hash` of the clips planned for the steps before, or "";
    `delivered_hash` is the same hash of the clips delivered, with fallback clips for clips that failed.
    `journal` names the file of the accepted changes, "" without any; `changes` describes the latest.
    """

    algorithm_version: int
    structure_fingerprint: str
    content_fingerprint: str
    plan_fingerprint: str
    num_clips: int
    micro_batches_per_step: int
    seed: int
    step: int
    rolling_hash: str = ""
    delivered_hash: str = ""
    journal: str = ""
    changes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the state as one line of JSON, under 2 KiB."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "LoaderState":
        """Return the state that `to_json` wrote. Raises StateError for anything else."""
        try:
            fields = json.loads(text)
            if fields.pop("format") not in (FORMAT, _FORMAT_1):
                raise ValueError("another format")
            state = LoaderState(**{**fields, "changes": tuple(fields.get("changes", ()))})
            for name, value in asdict(state).items():
                wanted = tuple if name == "changes" else LoaderState.__annotations__[name]
                if type(value) is not wanted or not all(type(text) is str for text in state.changes):
                    raise ValueError(f"{name} is {value!r}")
            if not 0 <= state.step < _MOST_STEPS:
                raise ValueError(f"step is {state.step}")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StateError(
                f"not a loader state of the format {FORMAT} ({type(error).__name__}: {error}); load another "
                "checkpoint."
            ) from error
        return state


def state_of(
    index: Index,
    plan: Plan,
    step: int,
    rolling_hash: str = "",
    delivered_hash: str = "",
    *,
    journal: str = "",
    changes: tuple[str, ...] = (),
) -> LoaderState:
    """Return the state in which `step` is the next step of `plan` over `index`."""
    return LoaderState(
        algorithm_version=plan.algorithm_version,
        structure_fingerprint=index.structure_fingerprint,
        content_fingerprint=index.content_fingerprint,
        plan_fingerprint=plan.fingerprint,
        num_clips=len(index),
        micro_batches_per_step=plan.micro_batches_per_step,
        seed=plan.seed,
        step=step,
        rolling_hash=rolling_hash,
        delivered_hash=delivered_hash,
        journal=journal,
        changes=changes[-MOST_CHANGES:],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One difference between a state and the current data or plan; `flag` accepts it, None: no flag does."""

    kind: str
    text: str
    flag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateComparison:
    """All differences, the deepest cause first, and the clips that differ, when the old index is known."""

    findings: tuple[Finding, ...]
    difference: Difference | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags that accept the differences; leaves out differences that no flag accepts."""
        return tuple(finding.flag for finding in self.findings if finding.flag)

    def refused(self, accept: Collection[str] = ()) -> tuple[Finding, ...]:
        """Return the findings that the flags in `accept` do not accept."""
        return tuple(finding for finding in self.findings if finding.flag not in accept)


def compare_states(
    state: LoaderState,
    index: Index,
    plan: Plan,
    *,
    old_index: Index | None = None,
    replan: Callable[[Index], Plan] | None = None,
) -> StateComparison:
    """Return how the current `plan` over `index` differs from data and plan of `state`.

    With `old_index`, the index at the time of the state, the findings name clips; `replan` makes the plan of
    the current recipe over the old index, to tell a change of the recipe from a change of the data. The
    location of the shards, the distribution of clips over shards, ranks, workers and prefetching are no
    difference.
    """
    found: list[Finding] = []
    if state.algorithm_version != plan.algorithm_version:
        found.append(
            Finding(
                kind="version",
                text=f"the state has version {state.algorithm_version} of the order, this program version "
                f"{plan.algorithm_version} (finish the run with the vidcurate version that started it)",
            )
        )
    if state.seed != plan.seed:
        found.append(
            Finding(
                kind="seed",
                text=f"the state has seed {state.seed}, the recipe {plan.seed} (set seed={state.seed})",
            )
        )
    same_structure = state.structure_fingerprint == index.structure_fingerprint
    same_content = state.content_fingerprint == index.content_fingerprint
    known = _of_that_time(state, old_index)
    changed = (
        index_diff.compare_indexes(known, index) if known and not (same_structure and same_content) else None
    )
    if changed:
        found += _clips(changed)
    elif not same_structure:
        found.append(_unknown(state, index))
    elif not same_content:
        found.append(Finding(kind="content", text="captions or videos were changed", flag=FLAGS["content"]))
    if text := _plan(state, plan, known if not same_structure else None, same_structure, replan):
        found.append(Finding(kind="plan", text=text, flag=FLAGS["plan"]))
    return StateComparison(findings=tuple(found), difference=changed)


def _of_that_time(state: LoaderState, old_index: Index | None) -> Index | None:
    """Return the old index if its fingerprints are those of the state; another would name wrong clips."""
    if old_index is None or (old_index.structure_fingerprint, old_index.content_fingerprint) != (
        state.structure_fingerprint,
        state.content_fingerprint,
    ):
        return None
    return old_index


def _unknown(state: LoaderState, index: Index) -> Finding:
    return Finding(
        kind="unknown",
        text=f"the state has {state.num_clips} clips (structure {state.structure_fingerprint[:8]}), the "
        f"index now {len(index)} (structure {index.structure_fingerprint[:8]}), and the run has no copy of "
        "the old index",
    )


def _clips(changed: Difference) -> list[Finding]:
    old, new = changed.old, changed.new
    if not changed.num_shared:
        return [
            Finding(
                kind="unknown",
                text=f"none of the {len(old)} old clips is among the {len(new)} new ones: another data set",
            )
        ]
    found: list[Finding] = []
    for kind, index, rows, what in (
        ("added", new, changed.added, "added"),
        ("removed", old, changed.removed, "removed"),
        ("content", new, changed.edited, "with another caption or video"),
        ("plan", new, changed.reshaped, "with another fold, level, size, length or frame rate"),
    ):
        if len(rows):
            clips = "clip" if len(rows) == 1 else "clips"
            text = f"{len(rows)} {clips} {what}{index_diff.named(index, rows)}"
            found.append(Finding(kind=kind, text=text, flag=FLAGS[kind]))
    return found


def _plan(
    state: LoaderState,
    plan: Plan,
    old_index: Index | None,
    same_structure: bool,
    replan: Callable[[Index], Plan] | None,
) -> str | None:
    """Return how the plans differ over the same clips; None when they are equal or nobody can tell."""
    then, now = state.micro_batches_per_step, plan.micro_batches_per_step
    if then != now:
        return (
            f"the state has {then} micro-batches per step, the recipe {now} "
            f"(set micro_batches_per_step={then})"
        )
    if same_structure:
        is_same = state.plan_fingerprint == plan.fingerprint
    elif old_index is None or replan is None:
        return None
    else:
        try:
            is_same = replan(old_index).fingerprint == state.plan_fingerprint
        except InputError:  # the current recipe does not fit the old clips
            is_same = False
    if is_same:
        return None
    return (
        "another plan over the same clips (buckets, micro-batch sizes, fold, levels, weights, curriculum or "
        "the file of leave_out; "
        f"{state.plan_fingerprint[:8]} was saved)"
    )


def check_state(
    state: LoaderState,
    index: Index,
    plan: Plan,
    *,
    old_index: Index | None = None,
    replan: Callable[[Index], Plan] | None = None,
    accept: Collection[str] = (),
) -> StateComparison:
    """Return the result of `compare_states`; raise StateError for differences that `accept` does not name.

    The message lists all differences and what to do: go back, accept them by flags, or start from scratch.
    Several kinds at once need several flags.
    """
    verdict = compare_states(state, index, plan, old_index=old_index, replan=replan)
    refused = verdict.refused(accept)
    if refused:
        what = "; ".join(finding.text for finding in refused)
        ways = ["go back to the data and settings of the checkpoint"]
        if all(finding.flag for finding in refused):
            ways.append(f"accept the change with {' '.join(dict.fromkeys(verdict.flags))}")
        ways.append(_RESTART)
        raise StateError(
            f"the loader state of step {state.step} does not belong to {index.place} and this "
            f"recipe: {what}. Either {', or '.join(ways)}."
        )
    return verdict
