"""The state of the order: a step, and the fingerprints of what the step counts in.

There is nothing to restore: the clips of a step are computed. What can go wrong is that the step is counted
in another order than the one that it was saved in, because the data or the recipe changed. So the state says
what it belongs to, and `check_state` refuses everything else by name. What may be changed on purpose has a
flag that accepts it; the `journal` then holds the change, and the state the name of the journal.
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
_FORMAT_1 = "vidcurate-loader-state-1"  # the same without what a journal is
MAX_BYTES = 2048
MOST_CHANGES = 8  # in the state; the journal has all

# What may be changed on purpose → the flag of `python -m trainer` that accepts it.
FLAGS = {
    "content": "--accept-content",
    "added": "--append",
    "removed": "--tombstone",
    "plan": "--accept-plan",
}

_ANEW = "begin the order anew with --start-from-scratch"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """`step` is the next step to run.

    `rolling_hash` is `order.rolling_hash` of the clips that were planned for the steps before, or "";
    `delivered_hash` that of the clips that came, spares in the place of what could not be read. `journal`
    names the file of the changes accepted so far, "" without any; `changes` are the last of them in words.
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
        except (ValueError, TypeError, KeyError, AttributeError) as error:
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
    """One way in which a state belongs to something else; `flag` accepts it, None where nothing does."""

    kind: str
    text: str
    flag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateComparison:
    """All that differs, the deepest cause first, and the clips of it where the index of then is known."""

    findings: tuple[Finding, ...]
    difference: Difference | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that accept all of it; one that nothing accepts is not among them."""
        return tuple(finding.flag for finding in self.findings if finding.flag)

    def refused(self, accept: Collection[str] = ()) -> tuple[Finding, ...]:
        """Return what is not accepted by the flags in `accept`."""
        return tuple(finding for finding in self.findings if finding.flag not in accept)


def compare_states(
    state: LoaderState,
    index: Index,
    plan: Plan,
    *,
    old_index: Index | None = None,
    replan: Callable[[Index], Plan] | None = None,
) -> StateComparison:
    """Return how `plan` over `index`, made anew, differs from what `state.step` was counted in.

    With `old_index`, the index of that time, it names clips; `replan` makes the plan that the recipe of now
    gives over it, to tell a change of the recipe from one of the data. Where the shards lie, how the clips
    are spread over them, ranks, workers and prefetching are no difference.
    """
    found: list[Finding] = []
    if state.algorithm_version != plan.algorithm_version:
        found.append(
            Finding(
                kind="version",
                text=f"it was saved with version {state.algorithm_version} of the order, this is version "
                f"{plan.algorithm_version} (finish the run with the vidcurate that began it)",
            )
        )
    if state.seed != plan.seed:
        found.append(
            Finding(
                kind="seed",
                text=f"it has the seed {state.seed} and the recipe {plan.seed} (set seed={state.seed})",
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
    """Return the old index if it is the one that the state was saved with: another names the wrong clips."""
    if old_index is None or (old_index.structure_fingerprint, old_index.content_fingerprint) != (
        state.structure_fingerprint,
        state.content_fingerprint,
    ):
        return None
    return old_index


def _unknown(state: LoaderState, index: Index) -> Finding:
    return Finding(
        kind="unknown",
        text=f"{state.num_clips} clips were indexed then (structure {state.structure_fingerprint[:8]}), now "
        f"{len(index)} ({index.structure_fingerprint[:8]}), and the index of then was not kept with the run",
    )


def _clips(changed: Difference) -> list[Finding]:
    old, new = changed.old, changed.new
    if not changed.num_shared:
        return [
            Finding(
                kind="unknown",
                text=f"none of the {len(old)} clips of then is among the {len(new)} of now: another data set",
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
    """Return what differs of the plan though not of the clips; None when nothing does or none can tell."""
    then, now = state.micro_batches_per_step, plan.micro_batches_per_step
    if then != now:
        return (
            f"it has {then} micro-batches per step and the recipe {now} (set micro_batches_per_step={then})"
        )
    if same_structure:
        is_same = state.plan_fingerprint == plan.fingerprint
    elif old_index is None or replan is None:
        return None
    else:
        try:
            is_same = replan(old_index).fingerprint == state.plan_fingerprint
        except InputError:  # the recipe of now asks for what the clips of then did not have
            is_same = False
    if is_same:
        return None
    return (
        "another plan over the same clips (buckets, micro-batch sizes, fold, levels, weights or curriculum; "
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
    """Return the verdict of `judge`; raise StateError when it has anything that `accept` does not name.

    The message says all that differs and the ways on: to go back, to accept it by the flags, or to begin
    anew. Several kinds at once need several flags.
    """
    verdict = compare_states(state, index, plan, old_index=old_index, replan=replan)
    refused = verdict.refused(accept)
    if refused:
        what = "; ".join(finding.text for finding in refused)
        ways = ["go back to the data and the settings that it was saved with"]
        if all(finding.flag for finding in refused):
            ways.append(f"say that it is meant: {' '.join(dict.fromkeys(verdict.flags))}")
        ways.append(_ANEW)
        raise StateError(
            f"the loader state of step {state.step} belongs to something else than {index.place} and this "
            f"recipe: {what}. Either {', or '.join(ways)}."
        )
    return verdict
