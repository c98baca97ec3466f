"""Plans over made-up clips, and what a step is to a test: its clips."""

from collections.abc import Sequence

import numpy as np

from vidcurate import draws, order
from vidcurate.buckets import Bucket
from vidcurate.order import Plan


def bucket(micro_batch_size: int, *, resolution: str = "32px", num_frames: int = 8, side: int = 32) -> Bucket:
    return Bucket(
        resolution=resolution,
        num_frames=num_frames,
        aspect="1.00",
        height=side,
        width=side,
        micro_batch_size=micro_batch_size,
    )


def plan(cells: Sequence[tuple[int, int, int]], *, micro_batches_per_step: int = 4, seed: int = 7) -> Plan:
    """Return the plan of cells given as (clips, micro-batch size, weight); rows count on over cells."""
    made: list[order.Cell] = []
    first = 0
    for number, (clips, size, weight) in enumerate(cells):
        rows = np.arange(first, first + clips)
        hashes = draws.id_hashes([f"clip-{row}" for row in rows])
        shape = bucket(size, num_frames=8 * (1 + number % 3))
        made.append(order.make_cell(f"cell-{number:02d}", shape, rows, hashes, weight))
        first += clips
    return order.make_plan(made, seed=seed, micro_batches_per_step=micro_batches_per_step)


def rows_of(plan: Plan, step: int) -> list[tuple[int, list[int]]]:
    """Return (position, rows) of every micro-batch of a step."""
    return [(batch.position, batch.rows.tolist()) for batch in order.step_micro_batches(plan, step)]
