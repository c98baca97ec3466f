"""What a plan amounts to, in numbers: the mixture asked and given, buckets, what ranks wait for, what is cut.

All of it comes from the functions that the loader itself asks (`order`, `interleave`), so a curriculum, a
change on purpose or another way of dealing to ranks shows here by itself. Nothing is read but the index.
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
    """Micro-batches of one cell before some step: what the weights ask for, and what the order gives."""

    cell: str
    asked: float
    given: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What a number of ranks makes of some steps; costs are those by which the plan deals.

    `waste`: the share of the ranks' time that is waiting, where they meet once a step; `waste_in_lockstep`:
    where they meet at every micro-batch, as with weights that are sharded. `worst`: the largest cost of a
    rank in a step over the mean. `idle`: the share of (step, rank) without a micro-batch. `cost` and
    `slowest_cost`: what a mean rank and the slowest of a step have to do, in the unit of the plan's costs.
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
    """A bucket over all its cells: clips, and the micro-batches and clips that some steps read."""

    name: str
    clips: int
    micro_batches: int
    clips_read: int


def mix(plan: Plan, step: int, skipped: Sequence[tuple[int, int]] = ()) -> tuple[CellShare, ...]:
    """Return asked and given of the steps before `step`, for each cell of the plan in force there.

    After a change on purpose it counts from the change on. `skipped`: the first step (from 0) and that behind
    the last of each window that is not read, apart from each other and before `step`.
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
    """Return the buckets that hold clips, with what the steps before `step` read of them."""
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
    """Return the buckets of the table that no clip is in, from the largest."""
    held = {cell.bucket.name for cell in plan.cells}
    return tuple(bucket.name for bucket in all_buckets(spec) if bucket.name not in held)


def steps_spread(first: int, last: int, most: int) -> list[int]:
    """Return at most `most` steps, spread evenly over `first` … `last` (included)."""
    return sorted({round(step) for step in np.linspace(first, last, min(most, last - first + 1))})


def balance(plan: Plan, steps: Sequence[int], world_size: int) -> Balance:
    """Return how evenly `world_size` ranks share these steps."""
    total = spent = in_lockstep = worst = 0.0
    idle = 0
    for step in steps:
        now = order.at_step(plan, step)
        costs = now.costs or tuple(cell.cost for cell in now.cells)
        loads = [
            [float(costs[order.turn(now, position)[0]]) for position in own]
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


def cut_away(index: Index, cell: Cell) -> float:
    """Return the mean share of a picture of these clips that is cut away to fit the bucket's shape."""
    ratios = index.height[cell.rows] / index.width[cell.rows]
    relative = ratios.astype(np.float64) / (cell.bucket.height / cell.bucket.width)
    return float(1 - np.minimum(relative, 1 / relative).mean())


def frames_used(index: Index, cell: Cell) -> float:
    """Return the mean share of these clips' length that one showing spans."""
    if cell.bucket.num_frames == 1:
        return 1.0
    return float(np.minimum(1, cell.bucket.num_source_frames / index.num_frames[cell.rows]).mean())


def steps_per_pass(plan: Plan) -> int:
    """Return the fewest steps that show as many clips as the plan holds."""
    return order.steps_for_passes(plan, 1.0)


def ranks_of(plan: Plan, step: int, world_size: int) -> dict[int, int]:
    """Return position → rank for the micro-batches of a step."""
    shares: Iterable[tuple[int, tuple[int, ...]]] = enumerate(order.shares(plan, step, world_size))
    return {position: rank for rank, own in shares for position in own}
