"""From an index and a recipe's buckets to the plan of the order, and back from a step to its clips."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from vidcurate import buckets as bucketing
from vidcurate import draws, order
from vidcurate.buckets import Bucket, BucketSpec
from vidcurate.decode_worker import DecodeTask
from vidcurate.errors import InputError
from vidcurate.index import Index, find_clip
from vidcurate.order import Plan


def plan_from(
    index: Index,
    buckets: BucketSpec,
    *,
    seed: int,
    micro_batches_per_step: int,
    fold: str | None = "train",
    levels: Sequence[int] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Plan:
    """Return the order over the clips of `index` that are in `fold` and `levels` (None: all of them).

    `weights`: level → its share of the clips shown, in any unit ({"1": 3, "2": 1}); a level that is not named
    is left out. Without weights every clip is shown equally often. Clips that no bucket takes are in the
    plan's `left_out`, under too_small, too_short, not_drawn or unknown_fps. Raises InputError for a level
    without clips, or when nothing is left.
    """
    wanted = np.ones(len(index), dtype=np.bool_)
    if fold is not None:
        wanted &= pc.fill_null(pc.equal(index.words("fold"), fold), False).to_numpy(zero_copy_only=False)
    shares = {_level(name): weight for name, weight in (weights or {}).items()}
    named = levels if levels is not None else list(shares) or None
    if named is not None:
        _check_levels(index, wanted, named, f"fold {fold}" if fold else "any fold")
        wanted &= np.isin(index.level, list(named))
    rows = np.flatnonzero(wanted)
    hashes = draws.id_hashes(index.words("clip_id"))[rows]
    found = bucketing.assign(
        buckets, hashes, index.num_frames[rows], index.height[rows], index.width[rows], seed
    )
    left_out = {
        reason: rows[found.reason == number] for number, reason in enumerate(bucketing.REASONS) if number
    }
    is_video = np.array([bucket.num_frames > 1 for bucket in found.buckets], dtype=np.bool_)
    taken = found.bucket >= 0
    lacks_fps = taken & is_video[found.bucket] & np.isnan(index.fps[rows])
    left_out["unknown_fps"] = rows[lacks_fps]
    keep = np.flatnonzero(taken & ~lacks_fps)
    return order.make_plan(
        _cells(index, rows[keep], hashes[keep], found.bucket[keep], found.buckets, shares),
        seed=seed,
        micro_batches_per_step=micro_batches_per_step,
        left_out=left_out,
    )


def _level(name: str) -> int:
    if not name.isdecimal():
        raise InputError(f"weights name the level {name!r}; a level is a whole number.")
    return int(name)


def _check_levels(index: Index, wanted: NDArray[np.bool_], levels: Sequence[int], where: str) -> None:
    have = sorted(set(np.unique(index.level[wanted]).tolist()))
    for level in levels:
        if level not in have:
            raise InputError(
                f"{index.folder}: no clip of level {level} in {where}; there are levels "
                f"{', '.join(map(str, have)) or 'none'}."
            )


def _cells(
    index: Index,
    rows: order.Rows,
    hashes: draws.Words,
    bucket: NDArray[np.int32],
    buckets: Sequence[Bucket],
    weights: Mapping[int, float],
) -> list[order.Cell]:
    """Return a cell for each level and bucket that has clips."""
    level = index.level[rows]
    levels, counts = np.unique(level, return_counts=True)
    # How much oftener than equally often the clips of a level are shown.
    oftener = {int(number): Fraction(1) for number in levels}
    if weights:
        share = {name: Fraction(weight).limit_denominator(10**6) for name, weight in weights.items()}
        if min(share.values()) < 0 or not any(share.get(number) for number in oftener):
            raise InputError(
                f"weights are {weights}; they must be 0 or more, and above 0 for a level with clips."
            )
        oftener = {
            int(number): share.get(int(number), Fraction(0)) / int(count)
            for number, count in zip(levels, counts, strict=True)
        }
    together = level.astype(np.int64) * len(buckets) + bucket
    if together.max(initial=0) < 1 << 16:
        together = together.astype(np.uint16)  # numpy sorts these by radix
    by_cell = np.argsort(together, kind="stable")
    in_order = together[by_cell]
    starts = np.flatnonzero(in_order[1:] != in_order[:-1]) + 1
    parts: list[tuple[int, Bucket, NDArray[np.int64], Fraction]] = []
    for members in np.split(by_cell, starts) if len(by_cell) else []:
        number, its_bucket = int(level[members[0]]), buckets[bucket[members[0]]]
        size = min(its_bucket.micro_batch_size, len(members))
        if rate := oftener[number] * Fraction(len(members), size):
            parts.append((number, its_bucket, members, rate))
    scale = math.lcm(*(rate.denominator for *_, rate in parts))
    return [
        order.make_cell(
            f"level-{number}/{its_bucket.name}", its_bucket, rows[members], hashes[members], int(rate * scale)
        )
        for number, its_bucket, members, rate in parts
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClip:
    """One clip of a step: where it stands in the order, and what it is."""

    position: int
    slot: int
    cell: str
    row: int
    clip_id: str
    caption: str


def clips_of_step(plan: Plan, index: Index, step: int) -> tuple[PlannedClip, ...]:
    """Return the clips that the plan gives to a step, over all ranks, in the order of positions."""
    return tuple(
        PlannedClip(
            position=part.position,
            slot=slot,
            cell=plan.cells[part.cell].name,
            row=int(row),
            clip_id=index.word("clip_id", int(row)),
            caption=index.word("caption", int(row)),
        )
        for part in order.step_micro_batches(plan, step)
        for slot, row in enumerate(part.rows)
    )


def steps_of_clip(plan: Plan, index: Index, clip_id: str, *, count: int = 1) -> tuple[int, ...]:
    """Return the first `count` steps that show a clip; () when no cell holds it. Raises ShardError."""
    positions = order.positions_of_row(plan, find_clip(index, clip_id))
    return tuple(
        position // plan.micro_batches_per_step for position, _ in zip(positions, range(count), strict=False)
    )


def num_starts(index: Index, row: int, bucket: Bucket) -> int:
    """Return at how many frames a sample of this bucket can begin in a clip."""
    return int(index.num_frames[row]) - bucket.num_source_frames + 1


def decode_task(
    index: Index, row: int, bucket: Bucket, *, first_frame: int, caption: str = "caption"
) -> DecodeTask:
    """Return what a decode worker needs for one clip in the bucket's shape, from `first_frame` on."""
    return DecodeTask(
        clip_id=index.word("clip_id", row),
        shard=str(index.folder / index.shards[index.shard_number[row]]),
        json_offset=int(index.json_offset[row]),
        json_size=int(index.json_size[row]),
        video_offset=int(index.video_offset[row]),
        video_size=int(index.video_size[row]),
        video_crc32c=int(index.video_crc32c[row]),
        first_frame=first_frame,
        num_frames=bucket.num_frames,
        frame_stride=bucket.frame_stride,
        height=bucket.height,
        width=bucket.width,
        caption=caption,
    )
