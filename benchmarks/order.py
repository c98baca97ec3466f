"""How long until step t is known? And how long to plan 20 M clips?

    python benchmarks/order.py [--clips N] [--cells N]

A step is asked for far into a run, as after a restart: nothing is kept from steps before. The peer shuffles
as loaders do, one numpy permutation per pass and cell, and must make those that the step falls in.
Planning hashes the ids and puts every clip into its bucket of the published third stage; the peer is that
stage's own rule, row by row, timed on some rows and scaled. One process, one thread.
"""

import argparse
import tracemalloc
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rows import best_seconds, keep, row

from vidcurate import buckets, draws, order
from vidcurate.buckets import Bucket, BucketSpec

M = 64
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


def make_plan(num_clips: int, num_cells: int) -> order.Plan:
    """Return a plan of cells of equal size whose micro-batches hold 2 to 17 clips."""
    hashes = draws.mix(np.arange(num_clips, dtype=np.uint64))
    cells = []
    for number, rows in enumerate(np.array_split(np.arange(num_clips), num_cells)):
        shape = Bucket(
            resolution="240p",
            num_frames=51,
            aspect="0.56",
            height=240,
            width=426,
            micro_batch_size=2 + number % 16,
        )
        cells.append(order.make_cell(f"cell-{number:03d}", shape, rows, hashes[rows], 1 + 7 * number % 31))
    return order.make_plan(cells, seed=1, micro_batches_per_step=M)


def peer_step(plan: order.Plan, step: int) -> int:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=20_000_000)
    parser.add_argument("--cells", type=int, default=64)
    options = parser.parse_args()
    millions = f"{options.clips / 1e6:g} M clips"
    results = []

    plan = make_plan(options.clips, options.cells)
    steps = np.random.default_rng(0).integers(0, 10**9, 20).tolist()
    worst, spent = 0.0, []
    for step in steps:
        start = perf_counter()
        order.step_micro_batches(plan, step)
        worst = max(worst, perf_counter() - start)
        start = perf_counter()
        peer_step(plan, step)
        spent.append(perf_counter() - start)
    results.append(
        row(
            f"any step below 10^9 from cold, {millions}, {options.cells} cells, {M} micro-batches",
            worst * 1000,
            "ms",
            peer="numpy permutation per pass and cell",
            peer_value=float(np.median(spent)) * 1000,
            goal="<= 50 ms",
            higher_is_better=False,
        )
    )
    start = perf_counter()
    for rank in range(8):
        order.shares(plan, steps[0], 192)[rank]
    results.append(
        row(
            f"which of {M} micro-batches rank r of 192 runs",
            (perf_counter() - start) / 8 * 1000,
            "ms",
            peer="all of the step's clips",
            peer_value=worst * 1000,
            higher_is_better=False,
        )
    )
    del plan

    rng = np.random.default_rng(0)
    shapes = np.array(
        [(1080, 1920), (720, 1280), (480, 854), (360, 640), (1920, 1080), (200, 300)], dtype=np.int32
    )
    height, width = shapes[rng.integers(0, len(shapes), options.clips)].T.copy()
    frames = rng.integers(1, 900, options.clips, dtype=np.int32)
    ids = pc.binary_join_element_wise("clip", pc.cast(pa.array(np.arange(options.clips)), pa.string()), "-")
    spec = BucketSpec(table=TABLE)  # type: ignore[arg-type]
    seconds, found = best_seconds(lambda: buckets.assign(spec, ids, frames, height, width, 42), 2)
    few = slice(0, 20_000)
    old = spec.model_copy(update={"published": True})
    start = perf_counter()
    buckets.assign(old, ids[few], frames[few], height[few], width[few], 42)
    by_row = (perf_counter() - start) * options.clips / 20_000
    results.append(
        row(
            f"bucket of every clip, {millions}, ids hashed ({len(found.buckets)} buckets)",
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
    keep("order", results)


if __name__ == "__main__":
    main()
