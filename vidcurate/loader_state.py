"""The state of the order: a step, and the fingerprints of what the step counts in.

There is nothing to restore: the clips of a step are computed. What can go wrong is that the step is counted
in another order than the one that it was saved in, because the data or the recipe changed. So the state says
what it belongs to, and `check_state` refuses everything else by name.
"""

import json
from dataclasses import asdict, dataclass

from vidcurate.errors import StateError
from vidcurate.index import Index
from vidcurate.order import Plan

FORMAT = "vidcurate-loader-state-1"
MAX_BYTES = 2048
_NAMED = 3  # clips in a message

_ANEW = "begin the order anew with --start-from-scratch"
_BACK = f"go on with the shards that it was saved with, or {_ANEW}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """`step` is the next step to run. `rolling_hash` is `order.rolling_hash` of the steps before, or ""."""

    algorithm_version: int
    structure_fingerprint: str
    content_fingerprint: str
    plan_fingerprint: str
    num_clips: int
    micro_batches_per_step: int
    seed: int
    step: int
    rolling_hash: str = ""

    def as_json(self) -> str:
        """Return the state as one line of JSON, under 2 KiB."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "LoaderState":
        """Return the state that `as_json` wrote. Raises StateError for anything else."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError("another format")
            state = LoaderState(**fields)
            for name, value in asdict(state).items():
                if type(value) is not LoaderState.__annotations__[name]:
                    raise ValueError(f"{name} is {value!r}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(
                f"not a loader state of the format {FORMAT} ({type(error).__name__}: {error}); load another "
                "checkpoint."
            ) from error
        return state


def state_of(index: Index, plan: Plan, step: int, rolling_hash: str = "") -> LoaderState:
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
    )


def check_state(state: LoaderState, index: Index, plan: Plan, *, old_index: Index | None = None) -> None:
    """Raise StateError unless `state.step` means in `plan` over `index` what it meant where it was saved.

    The message says what differs (version, seed, clips, content, plan), one thing per error and the deepest
    cause first, and the ways on. With `old_index`, the index of that time, it names clips. Where the shards
    lie, how the clips are spread over them, ranks, workers and prefetching are no difference.
    """
    where = f"the loader state of step {state.step}"
    if state.algorithm_version != plan.algorithm_version:
        raise StateError(
            f"{where} was saved with version {state.algorithm_version} of the order, this is version "
            f"{plan.algorithm_version}; finish the run with the vidcurate that began it, or {_ANEW}."
        )
    if old_index is not None and old_index.structure_fingerprint != state.structure_fingerprint:
        old_index = None  # of another time: it would name the wrong clips
    if state.structure_fingerprint != index.structure_fingerprint:
        raise StateError(
            f"{where} belongs to other clips than those of {index.folder}: "
            f"{_structure_difference(state, index, old_index)}; {_BACK}."
        )
    if state.content_fingerprint != index.content_fingerprint:
        if old_index is not None and old_index.content_fingerprint != state.content_fingerprint:
            old_index = None
        raise StateError(
            f"{where} belongs to the same clips with other content than in {index.folder}: "
            f"{_content_difference(index, old_index)}; {_BACK}."
        )
    if state.seed != plan.seed:
        raise StateError(
            f"{where} has the seed {state.seed} and the recipe {plan.seed}; set seed={state.seed}, "
            f"or {_ANEW}."
        )
    if state.micro_batches_per_step != plan.micro_batches_per_step:
        raise StateError(
            f"{where} has {state.micro_batches_per_step} micro-batches per step and the recipe "
            f"{plan.micro_batches_per_step}; set micro_batches_per_step={state.micro_batches_per_step}, or "
            f"{_ANEW}."
        )
    if state.plan_fingerprint != plan.fingerprint:
        raise StateError(
            f"{where} belongs to another plan (buckets, micro-batch sizes, fold, levels or weights) over the "
            f"same clips: {state.plan_fingerprint[:8]} was saved, the recipe gives {plan.fingerprint[:8]}; "
            f"undo the change of the recipe's data section, or {_ANEW}."
        )


def _some(clip_ids: list[str]) -> str:
    names = ", ".join(sorted(clip_ids)[:_NAMED])
    return f"{names}, …" if len(clip_ids) > _NAMED else names


def _structure_difference(state: LoaderState, index: Index, old_index: Index | None) -> str:
    if old_index is None:
        return (
            f"{state.num_clips} clips were indexed then (structure {state.structure_fingerprint[:8]}), now "
            f"{len(index)} ({index.structure_fingerprint[:8]})"
        )
    old, new = _hashes(old_index, "structure_hash"), _hashes(index, "structure_hash")
    added = [clip for clip in new if clip not in old]
    removed = [clip for clip in old if clip not in new]
    changed = [clip for clip in new if clip in old and new[clip] != old[clip]]
    parts = [
        f"{len(clips)} {what} ({_some(clips)})"
        for clips, what in (
            (added, "added"),
            (removed, "removed"),
            (changed, "with another fold, level, size, length or frame rate"),
        )
        if clips
    ]
    return ", ".join(parts)


def _content_difference(index: Index, old_index: Index | None) -> str:
    if old_index is None:
        return "captions or videos were changed"
    old, new = _hashes(old_index, "content_hash"), _hashes(index, "content_hash")
    changed = [clip for clip in new if new[clip] != old[clip]]
    return f"caption or video of {len(changed)} changed ({_some(changed)})"


def _hashes(index: Index, column: str) -> dict[str, bytes]:
    hashes = index.words(column).to_pylist()
    return dict(zip(index.words("clip_id").to_pylist(), hashes, strict=True))
