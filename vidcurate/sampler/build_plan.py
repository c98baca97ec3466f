"""Build a plan from an index and a recipe; look up the clips of a step and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.errors import InputError
from vidcurate.media import resample
from vidcurate.sampler import bucket_cells, leave_out, order
from vidcurate.sampler import buckets as bucketing
from vidcurate.sampler import plan as sampler_plan
from vidcurate.sampler.bucket_shapes import REASONS, Assignment, Bucket
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.spec import PlanSpec
from vidcurate.shards.index import Index, find_clip


def _empty_fold(index: Index, fold: str) -> str:
    """Return the message for a fold without a clip, with the folds that exist and the setting to change."""
    counts = {value["values"]: value["counts"] for value in pc.value_counts(index.words("fold")).to_pylist()}
    there = ", ".join(f"{name or 'none'} {count:,}" for name, count in sorted(counts.items(), key=str))
    remedy = ""
    if fold == "validation":
        remedy = (
            " Split again with a validation_fraction that gives a source to it (vidcurate "
            "split-by-difficulty --set validation_fraction=0.2, then build-shards), or train without the "
            "section validation."
        )
    return f"{index.place}: no clip is in the fold {fold} (clips by fold: {there}).{remedy}"


def plan_of(index: Index, spec: PlanSpec, *, seed: int) -> Plan:
    """Return the plan over the clips of `index` that `spec` describes.

    The plan's `left_out` holds clips without a bucket, under too_small, too_short, not_drawn or unknown_fps;
    its `notes` tell what `small_cells` did. Raises InputError for a level or source without clips, or when
    no clip remains.
    """
    wanted = np.ones(len(index), dtype=np.bool_)
    if spec.fold is not None:
        folds = index.words("fold")
        number = pc.index(folds.dictionary, spec.fold).as_py()
        wanted = folds.indices.fill_null(-1).to_numpy(zero_copy_only=False) == (number if number >= 0 else -2)
        if len(index) and not wanted.any():
            raise InputError(_empty_fold(index, spec.fold))
    where = f"fold {spec.fold}" if spec.fold else "any fold"
    if spec.levels is not None:
        levels, level_names = bucket_cells.groups_of(index, "level")
        wanted &= _among(index, levels, level_names, list(map(str, spec.levels)), wanted, "level", where)
    groups, names = bucket_cells.groups_of(index, spec.cells_by)
    named = dict.fromkeys([*spec.weights, *(name for phase in spec.curriculum for name in phase.names)])
    if named:
        wanted &= _among(index, groups, names, list(named), wanted, spec.cells_by, where)
    listed = np.zeros(0, dtype=np.int64)
    unmatched: list[dict[str, object]] = []
    if spec.leave_out is not None:
        mask, unmatched = leave_out.mask_of(index.words("clip_id"), spec.leave_out)
        listed = np.flatnonzero(wanted & mask)
        wanted &= ~mask
        if len(listed) and not wanted.any():
            raise InputError(
                f"{spec.leave_out}: lists all {len(listed)} clips (leave_out); give another file."
            )
    hashes = rng.id_hashes(index.words("clip_id"))
    bucket, reason, buckets = _assigned(index, spec.buckets, hashes, wanted, seed)
    left_out = {
        name: np.flatnonzero(wanted & (reason == number)) for number, name in enumerate(REASONS) if number
    }
    is_video = np.array([bucket.num_frames > 1 for bucket in buckets], dtype=np.bool_)
    unknown = np.flatnonzero(np.isnan(index.fps))
    unknown = unknown[(bucket[unknown] >= 0) & is_video[bucket[unknown]]]
    left_out["unknown_fps"] = unknown
    if spec.leave_out is not None:
        left_out[leave_out.LEFT_OUT] = listed
    bucket[unknown] = -1
    parts = bucket_cells.split_cells(groups, names, bucket, buckets, spec.cells_by)
    parts, notes = bucket_cells.resolve_small_cells(parts, buckets, spec.small_cells)
    made, phases = bucket_cells.cells_of(index, hashes, parts, spec)
    return sampler_plan.make_plan(
        made,
        seed=seed,
        micro_batches_per_step=spec.micro_batches_per_step,
        left_out=left_out,
        phases=phases,
        notes=[*unmatched, *notes],
    )


def _assigned(
    index: Index, spec: BucketSpec, hashes: rng.Words, wanted: NDArray[np.bool_], seed: int
) -> tuple[NDArray[np.int32], NDArray[np.int8], tuple[Bucket, ...]]:
    """Return the bucket of every clip of the index (-1: none, or not wanted), the reasons and the buckets.

    A clip's bucket depends on no other clip. So when most clips are wanted, this assigns all of them, which
    avoids copies. The published draws depend on the row number among the wanted clips.
    """

    def assign(rows: Any) -> Assignment:
        lengths = index.num_frames[rows]
        if spec.fps is not None:
            lengths = resample.num_ticks(lengths, index.fps[rows], spec.fps)
        return bucketing.assign(spec, hashes[rows], lengths, index.height[rows], index.width[rows], seed)

    count = int(np.count_nonzero(wanted))
    if not spec.published and 2 * count > len(index):
        found = assign(slice(None))
        if count < len(index):
            found.bucket[~wanted] = -1
        return found.bucket, found.reason, found.buckets
    rows = np.flatnonzero(wanted)
    found = assign(rows)
    bucket, reason = np.full(len(index), -1, dtype=np.int32), np.zeros(len(index), dtype=np.int8)
    bucket[rows], reason[rows] = found.bucket, found.reason
    return bucket, reason, found.buckets


def plan_from(
    index: Index,
    buckets: BucketSpec,
    *,
    seed: int,
    micro_batches_per_step: int,
    fold: str | None = "train",
    levels: Sequence[int] | None = None,
    weights: Mapping[str, float] | None = None,
    small_cells: Literal["merge", "shrink"] = "merge",
) -> Plan:
    """Return the plan of the most common settings; `plan_of` takes all of them."""
    spec = PlanSpec(
        buckets=buckets,
        micro_batches_per_step=micro_batches_per_step,
        fold=fold,
        levels=None if levels is None else tuple(levels),
        weights=dict(weights or {}),
        small_cells=small_cells,
    )
    return plan_of(index, spec, seed=seed)


def _among(
    index: Index,
    groups: NDArray[Any],
    names: Sequence[str],
    asked: Sequence[str],
    wanted: NDArray[np.bool_],
    by: str,
    where: str,
) -> NDArray[np.bool_]:
    """Return the mask of clips in the levels or sources `asked`. Raises InputError for one without clips."""
    have = [names[number] for number in np.unique(groups[wanted])]
    for name in asked:
        if by == "level" and not name.isdecimal():
            raise InputError(f"weights name the level {name!r}; a level is a whole number.")
        if name not in have:
            raise InputError(
                f"{index.place}: no clip of {by} {name} in {where}; known {by}s: {', '.join(have) or 'none'}."
            )
    return np.isin(groups, [names.index(name) for name in asked])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClip:
    """One clip of a step: its position and slot in the order, id and caption.

    For a clip that was removed since, `row` is beyond the index and `caption` is "".
    """

    position: int
    slot: int
    cell: str
    row: int
    clip_id: str
    caption: str


def clips_of_step(plan: Plan, index: Index, step: int) -> tuple[PlannedClip, ...]:
    """Return the clips of a step, over all ranks, in the order of positions."""

    def clip_id(row: int) -> str:
        return index.word("clip_id", row) if row < len(index) else plan.gone[row - plan.num_rows]

    return tuple(
        PlannedClip(
            position=part.position,
            slot=slot,
            cell=order.cell_of(plan, part).name,
            row=row,
            clip_id=clip_id(row),
            caption=index.word("caption", row) if row < len(index) else "",
        )
        for part in order.step_micro_batches(plan, step)
        for slot, row in enumerate(part.rows.tolist())
    )


def steps_of_clip(plan: Plan, index: Index, clip_id: str, *, count: int = 1) -> tuple[int, ...]:
    """Return the first `count` steps that show a clip; () when no cell holds it. Raises ShardError."""
    positions = order.positions_of_row(plan, find_clip(index, clip_id))
    return tuple(order.step_of(plan, position) for position, _ in zip(positions, range(count), strict=False))
