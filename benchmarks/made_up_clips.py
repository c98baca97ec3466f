"""Made-up clips: lengths and sizes from a distribution, the order as in training."""

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.recipe.recipe import Stage
from vidcurate import rng
from vidcurate.sampler import buckets, plan


def shares_of(text: str) -> list[tuple[str, float]]:
    """Return [(what, its share)] of "what:percent,…", the shares summing to 1."""
    parts = [part.rsplit(":", 1) for part in text.split(",")]
    total = sum(float(percent) for _, percent in parts)
    return [(what, float(percent) / total) for what, percent in parts]


def made_up_plan(stage: Stage, clips: int, given: argparse.Namespace, pieces: int = 1) -> plan.Plan:
    """Return the order of a stage over `clips` made-up clips.

    With `pieces` above 1 its micro-batches are that many times smaller, but for those of fewer clips, and a
    step has as many more of them that it shows as many clips.
    """
    source = np.random.default_rng(given.seed)
    ranges, sizes = shares_of(given.durations), shares_of(given.sizes)
    edges = np.array([[float(end) for end in what.split("-")] for what, _ in ranges])
    kind = source.choice(len(ranges), size=clips, p=[share for _, share in ranges])
    seconds = edges[kind, 0] + source.random(clips) * (edges[kind, 1] - edges[kind, 0])
    size = np.array([[int(side) for side in what.split("x")] for what, _ in sizes])
    shape = size[source.choice(len(sizes), size=clips, p=[share for _, share in sizes])]
    frames = np.floor(seconds * given.fps).astype(np.int64)
    hashes = rng.mix(np.arange(clips, dtype=np.uint64))
    found = buckets.assign(stage.data.buckets, hashes, frames, shape[:, 1], shape[:, 0], given.seed)
    cells, whole, cut = [], 0.0, 0.0
    for number in np.unique(found.bucket[found.bucket >= 0]).tolist():
        rows = np.flatnonzero(found.bucket == number)
        bucket = found.buckets[number]
        whole += len(rows) / bucket.micro_batch_size
        bucket = dataclasses.replace(bucket, micro_batch_size=max(1, bucket.micro_batch_size // pieces))
        cut += len(rows) / bucket.micro_batch_size
        weight = round(1e6 * len(rows) / bucket.micro_batch_size)
        cells.append(plan.make_cell(bucket.name, bucket, rows, hashes[rows], max(1, weight)))
    per_step = round(stage.data.micro_batches_per_step * cut / whole)
    return plan.make_plan(cells, seed=given.seed, micro_batches_per_step=per_step)
