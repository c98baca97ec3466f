"""Plan statistics: the mixture, buckets, rank balance and cropping of a plan.

All numbers come from the functions that the loader uses (`order`, `mixture`), so they include curricula,
accepted changes and the rank balance automatically. This reads the index and nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate.sampler import mixture, order
from vidcurate.sampler.buckets import BucketSpec, all_buckets
from vidcurate.sampler.plan import Cell, Plan
from vidcurate.shards.index import Index


@dataclass(frozen=True, slots=True, kw_only=True)
class CellShare:
    """Micro-batches of one cell before a step: by the weights (`asked`) and in the order (`given`)."""

    cell: str
    asked: float
    given: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Rank balance of some steps, in the costs with which the plan assigns micro-batches to ranks.

    `waste`: share of the ranks' time spent waiting when ranks synchronize once per step;
    `waste_in_lockstep`: when ranks synchronize at every micro-batch, as with sharded weights. `worst`: the
    largest cost of a rank in a step over the mean. `idle`: share of (step, rank) without a micro-batch.
    `cost` and `slowest_cost`: mean cost per step of all ranks and of the slowest rank, in the unit of the
    plan's costs.
    """

    world_size: int
    steps: int
    waste: float
    waste_in_lockstep: float
    worst: float
    idle: float
    cost: float
    slowest_cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTotal:
    """Bucket over all its cells: clips, and the micro-batches and clips that some steps read."""

    name: str
    clips: int
    micro_batches: int
    clips_read: int


def cell_shares(plan: Plan, step: int, skipped: Sequence[tuple[int, int]] = ()) -> tuple[CellShare, ...]:
    """Return `asked` and `given` of the steps before `step`, for each cell of the plan that is valid there.

    After an accepted change the counts begin at the change. `skipped`: (first step, step after the last) of
    each window of skipped steps, from 0; the windows do not touch and lie before `step`.
    """
    plan = order.at_step(plan, step)
    asked, given = _between(plan, plan.first_step, step)
    for first, end in skipped:
        not_asked, not_given = _between(plan, max(first, plan.first_step), max(end, plan.first_step))
        asked, given = asked - not_asked, given - not_given
    return tuple(
        CellShare(cell=cell.name, asked=float(due), given=int(turns))
        for cell, due, turns in zip(plan.cells, asked, given, strict=True)
    )


def _between(plan: Plan, first: int, end: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the micro-batches that each cell is due, and has, in the steps `first` … `end` (exclusive)."""
    before, until = (step * plan.micro_batches_per_step for step in (first, end))
    due = np.array(mixture.due(plan.mixture, until), dtype=np.float64)
    due -= np.array(mixture.due(plan.mixture, before), dtype=np.float64)
    turns = np.array(mixture.turns_before(plan.mixture, until), dtype=np.int64)
    return due, turns - np.array(mixture.turns_before(plan.mixture, before), dtype=np.int64)


def bucket_totals(plan: Plan, step: int) -> tuple[BucketTotal, ...]:
    """Return the buckets that hold clips, with the numbers that the steps before `step` read."""
    plan = order.at_step(plan, step)
    found: dict[str, tuple[int, int, int]] = {}
    for cell, count in zip(plan.cells, order.micro_batches_before(plan, step), strict=True):
        clips, batches, read = found.get(cell.bucket.name, (0, 0, 0))
        found[cell.bucket.name] = (
            clips + len(cell.rows),
            batches + count,
            read + count * cell.micro_batch_size,
        )
    return tuple(
        BucketTotal(name=name, clips=clips, micro_batches=batches, clips_read=read)
        for name, (clips, batches, read) in found.items()
    )


def empty_buckets(plan: Plan, spec: BucketSpec) -> tuple[str, ...]:
    """Return the names of the buckets without clips, the largest first."""
    held = {cell.bucket.name for cell in plan.cells}
    return tuple(bucket.name for bucket in all_buckets(spec) if bucket.name not in held)


def steps_spread(first: int, last: int, most: int) -> list[int]:
    """Return at most `most` steps, spread evenly over `first` … `last` (included)."""
    return sorted({round(step) for step in np.linspace(first, last, min(most, last - first + 1))})


def balance(plan: Plan, steps: Sequence[int], world_size: int) -> Balance:
    """Return the rank balance of these steps on `world_size` ranks."""
    total = spent = in_lockstep = worst = 0.0
    idle = 0
    for step in steps:
        now = order.at_step(plan, step)
        costs = now.costs or tuple(cell.cost for cell in now.cells)
        loads = [
            [float(costs[order.cell_at(now, position)[0]]) for position in own]
            for own in order.shares(now, step, world_size)
        ]
        by_rank = [sum(load) for load in loads]
        total += sum(by_rank)
        spent += world_size * max(by_rank)
        rounds = range(max(map(len, loads)))
        in_lockstep += world_size * sum(max(load[n] for load in loads if n < len(load)) for n in rounds)
        worst = max(worst, max(by_rank) * world_size / sum(by_rank))
        idle += sum(not load for load in loads)
    return Balance(
        world_size=world_size,
        steps=len(steps),
        waste=1 - total / spent,
        waste_in_lockstep=1 - total / in_lockstep,
        worst=worst,
        idle=idle / (len(steps) * world_size),
        cost=total / (len(steps) * world_size),
        slowest_cost=spent / (len(steps) * world_size),
    )


def cropped_share(index: Index, cell: Cell) -> float:
    """Return the mean share of the frame area that the crop to the bucket's shape removes."""
    ratios = index.height[cell.rows] / index.width[cell.rows]
    relative = ratios.astype(np.float64) / (cell.bucket.height / cell.bucket.width)
    return float(1 - np.minimum(relative, 1 / relative).mean())


def frames_used(index: Index, cell: Cell) -> float:
    """Return the mean share of a clip's length that one sample spans."""
    if cell.bucket.num_frames == 1:
        return 1.0
    return float(np.minimum(1, cell.bucket.num_source_frames / index.num_frames[cell.rows]).mean())


def steps_per_epoch(plan: Plan) -> int:
    """Return the number of steps of one epoch: the fewest that show as many clips as the plan holds."""
    return order.steps_for_epochs(plan, 1.0)


def ranks_of(plan: Plan, step: int, world_size: int) -> dict[int, int]:
    """Return position → rank for the micro-batches of a step."""
    shares: Iterable[tuple[int, tuple[int, ...]]] = enumerate(order.shares(plan, step, world_size))
    return {position: rank for rank, own in shares for position in own}
