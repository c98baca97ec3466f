"""Order: time to know any step t, and to plan 20 M clips.

    python benchmarks/order.py [--clips N] [--cells N] [--steps-only] [--out NAME]

A step is asked for far into a run, as after a restart: nothing is kept from steps before. So it is for a plan
of constant weights, for one in the middle of a ramp from one level to the next, and for one over blocks of
shards. The peer shuffles as loaders do, one numpy permutation per pass and cell, and must make those that the
step falls in. Planning hashes the ids and puts every clip into its bucket of the published third stage; the
peer is that stage's own rule, row by row, timed on some rows and scaled. One process, one thread; times are
its processor time, which is what a clock shows where nothing else runs.
"""

import argparse
import math
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import process_time
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rows import Row, keep, row

from vidcurate import rng as vidcurate_rng
from vidcurate.sampler import buckets, order, shard_blocks
from vidcurate.sampler import plan as sampler_plan
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.buckets import BucketSpec
from vidcurate.sampler.curriculum import Phase

M = 64
T = TypeVar("T")
TABLE = {
    "144p": {"1": (1.0, 475), "51": (1.0, 51), "102": (1.0, 27), "204": (1.0, 13), "408": (1.0, 6)},
    "256": {"1": (1.0, 297), "51": (0.5, 20), "102": (0.5, 10), "204": (0.5, 5), "408": ((0.5, 0.5), 2)},
    "240p": {"1": (1.0, 297), "51": (0.5, 20), "102": (0.5, 10), "204": (0.5, 5), "408": ((0.5, 0.4), 2)},
    "360p": {"1": (1.0, 141), "51": (0.5, 8), "102": (0.5, 4), "204": (0.5, 2), "408": ((0.5, 0.3), 1)},
    "512": {"1": (1.0, 141), "51": (0.5, 8), "102": (0.5, 4), "204": (0.5, 2), "408": ((0.5, 0.2), 1)},
    "480p": {"1": (1.0, 89), "51": (0.5, 5), "102": (0.5, 3), "204": ((0.5, 0.5), 1), "408": (0.0, None)},
    "720p": {"1": (0.3, 36), "51": (0.2, 2), "102": (0.1, 1), "204": (0.0, None)},
    "1024": {"1": (0.3, 36), "51": (0.1, 2), "102": (0.1, 1), "204": (0.0, None)},
    "1080p": {"1": (0.1, 5)},
    "2048": {"1": (0.05, 5)},
}


CLIPS_PER_SHARD, SHARDS_PER_BLOCK, BLOCKS_TOGETHER = 1000, 4, 8
RAMP_STEPS = 10**6


def make_cells(num_clips: int, num_cells: int, *, in_blocks: bool = False) -> list[sampler_plan.Cell]:
    """Return cells of equal size whose micro-batches hold 2 to 17 clips, each with clips in every shard."""
    hashes = vidcurate_rng.mix(np.arange(num_clips, dtype=np.uint64))
    cells = []
    num_blocks = -(-num_clips // (CLIPS_PER_SHARD * SHARDS_PER_BLOCK))
    for number, rows in enumerate(np.array_split(np.arange(num_clips), num_cells)):
        shape = Bucket(
            resolution="240p",
            num_frames=51,
            aspect="0.56",
            height=240,
            width=426,
            micro_batch_size=2 + number % 16,
        )
        cells.append(
            sampler_plan.make_cell(
                f"cell-{number:03d}",
                shape,
                rows,
                hashes[rows],
                1 + 7 * number % 31,
                block=np.arange(len(rows)) * num_blocks // len(rows) if in_blocks else None,
                num_blocks=num_blocks,
                blocks_together=BLOCKS_TOGETHER,
            )
        )
    return cells


def phases_of(cells: Sequence[sampler_plan.Cell]) -> list[Phase]:
    """Return a curriculum of four levels, a quarter of the cells each, that lead over to each other."""
    levels = [cells[number::4] for number in range(4)]
    return [
        Phase(
            first=number * RAMP_STEPS * M,
            weights={cell.name: cell.weight for cell in level},
            ramp_turns=RAMP_STEPS * M if number else 0,
            ramp="cosine",
        )
        for number, level in enumerate(levels)
    ]


def best(function: Callable[[], T]) -> tuple[float, T]:
    """Return the least processor time of three calls, in seconds, and the last result."""
    least = math.inf
    for _ in range(3):
        start = process_time()
        result = function()
        least = min(least, process_time() - start)
    return least, result


def cold_steps(plan: sampler_plan.Plan, steps: Sequence[int]) -> float:
    """Return the seconds of the slowest of these steps: of each the best of three, all caches empty."""

    def cold(step: int) -> None:
        for cached in (vidcurate_rng._small_permutation, shard_blocks._order, shard_blocks._group_starts):
            cached.cache_clear()
        order.step_micro_batches(plan, step)

    return max(best(partial(cold, step))[0] for step in steps)


def blocks_read(plan: sampler_plan.Plan, block: NDArray[np.int64], num_steps: int) -> float:
    """Return the share of all blocks that so many steps in a row read from; `block` is that of each row."""
    rows = [batch.rows for step in range(num_steps) for batch in order.step_micro_batches(plan, step)]
    return len(np.unique(block[np.concatenate(rows)])) / (int(block.max()) + 1)


def peer_step(plan: sampler_plan.Plan, step: int) -> int:
    """Find a step's clips with a permutation per cell and pass, given that the cells' turns are known."""
    counts = order.micro_batches_before(plan, step)
    after = order.micro_batches_before(plan, step + 1)
    found = 0
    for number, cell in enumerate(plan.cells):
        if counts[number] == after[number]:
            continue
        first, offset = divmod(counts[number] * cell.micro_batch_size, len(cell.rows))
        shuffled = np.random.default_rng(plan.seed + first).permutation(len(cell.rows))
        found += len(cell.rows[shuffled[offset : offset + cell.micro_batch_size]])
    return found


def step_row(what: str, seconds: float, of_peer: float) -> Row:
    """Return the row of the slowest of some steps, against the peer's median."""
    return row(
        f"{what}, processor time",
        seconds * 1000,
        "ms",
        peer="numpy permutation per pass and cell",
        peer_value=of_peer,
        goal="<= 50 ms",
        higher_is_better=False,
    )


def locality_row(cells: Sequence[sampler_plan.Cell], size: str) -> Row:
    """Return the row of how many shards 200 steps read from, every clip shown equally often."""
    even = [replace(cell, weight=math.lcm(*range(2, 18)) // cell.micro_batch_size) for cell in cells]
    block = np.empty(sum(len(cell.rows) for cell in even), dtype=np.int64)
    for cell in even:
        assert cell.blocks
        block[cell.rows] = np.repeat(np.arange(len(cell.blocks.sizes)), cell.blocks.sizes)
    shares = [
        blocks_read(sampler_plan.make_plan(kind, seed=1, micro_batches_per_step=M), block, 200)
        for kind in (even, [replace(cell, blocks=None) for cell in even])
    ]
    return row(
        f"shards that 200 steps read from, over blocks, {size}",
        100 * shares[0],
        "%",
        peer="a shuffle over all clips",
        peer_value=100 * shares[1],
        higher_is_better=False,
    )


def planning_rows(num_clips: int, millions: str) -> list[Row]:
    """Return the rows of putting so many clips into their buckets: seconds, and memory."""
    results = []
    rng = np.random.default_rng(0)
    shapes = np.array(
        [(1080, 1920), (720, 1280), (480, 854), (360, 640), (1920, 1080), (200, 300)], dtype=np.int32
    )
    height, width = shapes[rng.integers(0, len(shapes), num_clips)].T.copy()
    frames = rng.integers(1, 900, num_clips, dtype=np.int32)
    ids = pc.binary_join_element_wise("clip", pc.cast(pa.array(np.arange(num_clips)), pa.string()), "-")
    spec = BucketSpec(table=TABLE)  # type: ignore[arg-type]
    seconds, found = best(lambda: buckets.assign(spec, ids, frames, height, width, 42))
    few = slice(0, 20_000)
    old = spec.model_copy(update={"published": True})
    start = process_time()
    buckets.assign(old, ids[few], frames[few], height[few], width[few], 42)
    by_row = (process_time() - start) * num_clips / 20_000
    results.append(
        row(
            f"bucket of every clip, {millions}, ids hashed ({len(found.buckets)} buckets), processor time",
            seconds,
            "s",
            peer="the published rule row by row, one process, from 20,000 rows",
            peer_value=by_row,
            goal="<= 5 s",
            higher_is_better=False,
        )
    )
    tracemalloc.start()
    buckets.assign(spec, ids, frames, height, width, 42)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    results.append(
        row(
            f"memory of that above its input, {millions}",
            peak / 1e6,
            "MB",
            peer="the input columns",
            peer_value=(frames.nbytes + height.nbytes + width.nbytes + ids.nbytes) / 1e6,
            goal="<= 1000 MB",
            higher_is_better=False,
        )
    )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=20_000_000)
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--steps-only", action="store_true", help="leave out the planning")
    parser.add_argument("--out", default="order")
    options = parser.parse_args()
    millions = f"{options.clips / 1e6:g} M clips"
    size = f"{millions}, {options.cells} cells, {M} micro-batches"
    results = []

    cells = make_cells(options.clips, options.cells)
    plan = sampler_plan.make_plan(cells, seed=1, micro_batches_per_step=M)
    steps = np.random.default_rng(0).integers(0, 10**9, 20).tolist()
    spent = []
    for step in steps[:7]:
        start = process_time()
        peer_step(plan, step)
        spent.append(process_time() - start)
    of_peer = float(np.median(spent)) * 1000
    worst = cold_steps(plan, steps)
    results.append(step_row(f"any step below 10^9 from cold, {size}", worst, of_peer))

    start = process_time()
    drifting = sampler_plan.make_plan(cells, seed=1, micro_batches_per_step=M, phases=phases_of(cells))
    made = process_time() - start
    in_ramp = [RAMP_STEPS + step % (3 * RAMP_STEPS) for step in steps]
    results.append(
        step_row(f"any step of three ramps from cold, {size}", cold_steps(drifting, in_ramp), of_peer)
    )
    results.append(
        row(
            f"a plan with three ramps, {size}",
            made * 1000,
            "ms",
            peer="any step of it",
            peer_value=cold_steps(drifting, in_ramp) * 1000,
            higher_is_better=False,
        )
    )
    del drifting, cells

    cells = make_cells(options.clips, options.cells, in_blocks=True)
    blocked = sampler_plan.make_plan(cells, seed=1, micro_batches_per_step=M)
    what = f"{SHARDS_PER_BLOCK} shards a block, {BLOCKS_TOGETHER} together"
    results.append(
        step_row(f"any step from cold over blocks, {what}, {size}", cold_steps(blocked, steps), of_peer)
    )
    results.append(locality_row(cells, size))
    del blocked, cells
    assigning = best(lambda: order.shares(plan, steps[0], 192))[0]
    results.append(
        row(
            f"which of {M} micro-batches rank r of 192 runs",
            assigning * 1000,
            "ms",
            peer="all of the step's clips",
            peer_value=worst * 1000,
            higher_is_better=False,
        )
    )

    if not options.steps_only:
        results += planning_rows(options.clips, millions)
    keep(options.out, results)


if __name__ == "__main__":
    main()
