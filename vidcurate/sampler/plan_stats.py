"""Plan statistics: buckets, length of an epoch and ranks of a plan.

All numbers come from the functions that the loader uses (`order`), so they include curricula,
accepted changes and the rank balance. This reads the index and nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from vidcurate.sampler import order
from vidcurate.sampler.buckets import BucketSpec, all_buckets
from vidcurate.sampler.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTotal:
    """Bucket over all its cells: clips, and the micro-batches and clips that some steps read."""

    name: str
    clips: int
    micro_batches: int
    clips_read: int


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


def steps_per_epoch(plan: Plan) -> int:
    """Return the number of steps of one epoch: the fewest that show as many clips as the plan holds."""
    return order.steps_for_epochs(plan, 1.0)


def ranks_of(plan: Plan, step: int, world_size: int) -> dict[int, int]:
    """Return position → rank for the micro-batches of a step."""
    shares: Iterable[tuple[int, tuple[int, ...]]] = enumerate(order.shares(plan, step, world_size))
    return {position: rank for rank, own in shares for position in own}
