"""Cells: clips of one level or source in one bucket, and their mixture weights.

A recipe's weight counts clips, a mixture counts micro-batches: a cell's mixture weight is (n / m) × its
oversampling factor, for n clips in micro-batches of m. All arithmetic is in fractions.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.errors import InputError, counted
from vidcurate.sampler import plan
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.curriculum import Phase
from vidcurate.sampler.spec import PhaseSpec, PlanSpec
from vidcurate.shards.index import Index

Rows = NDArray[np.int64]
Groups = dict[str, int]  # level or source → clips in cells


@dataclass(frozen=True, slots=True, kw_only=True)
class CellClips:
    """Clips of a future cell: the index rows `members` (n,)."""

    group: str
    bucket: Bucket
    bucket_number: int
    members: Rows
    by: str

    @property
    def name(self) -> str:
        return f"{self.by}-{self.group}/{self.bucket.name}"

    @property
    def clips_per_turn(self) -> int:
        return min(self.bucket.micro_batch_size, len(self.members))


def groups_of(index: Index, by: Literal["level", "source"]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the group number of every clip (n,), and the names of the groups: levels or sources."""
    if by == "level":
        low, high = (int(end(index.level, initial=0)) for end in (np.min, np.max))
        if high - low < 1 << 16:  # np.unique would take longer than all other work here
            level, span = index.level, high - low + 1
            counts = np.sum(
                rng.by_chunks(len(level), lambda rows: np.bincount(level[rows] - low, minlength=span)),
                axis=0,
            )
            numbers = np.cumsum(counts > 0, dtype=np.int32) - np.int32(1)
            found = np.empty(len(level), dtype=np.int32)
            rng.by_chunks(len(level), lambda rows: numbers.take(level[rows] - low, out=found[rows]))
            return found, tuple(map(str, (np.flatnonzero(counts) + low).tolist()))
        levels = np.unique(index.level)
        return np.searchsorted(levels, index.level).astype(np.int32), tuple(map(str, levels.tolist()))
    words = index.words("source_dataset")
    known = [name or "unknown" for name in words.dictionary.to_pylist()]
    names = sorted({*known, "unknown"})
    places = np.array([*(names.index(name) for name in known), names.index("unknown")], dtype=np.int32)
    numbers = words.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    return places[numbers], tuple(names)


def split_cells(
    groups: NDArray[Any], names: Sequence[str], bucket: NDArray[np.int32], buckets: Sequence[Bucket], by: str
) -> list[CellClips]:
    """Return the clips of each group and bucket; `groups` and `bucket` are (n,), bucket -1 for none."""
    kind: Any = (
        np.uint16 if len(names) * len(buckets) < 1 << 16 else np.int64
    )  # numpy uses radix sort for 16 bits

    def shared_out(stretch: slice) -> dict[int, Rows]:
        rows = np.flatnonzero(bucket[stretch] >= 0) + stretch.start
        together = groups[rows].astype(kind) * kind(len(buckets)) + bucket[rows].astype(kind)
        by_cell = np.argsort(together, kind="stable")
        in_order, rows = together[by_cell], rows[by_cell]
        starts = [0, *(np.flatnonzero(in_order[1:] != in_order[:-1]) + 1).tolist(), len(rows)]
        return {
            int(in_order[start]): rows[start:end] for start, end in itertools.pairwise(starts) if start < end
        }

    found: dict[int, list[Rows]] = {}
    for shares in rng.by_chunks(len(bucket), shared_out):
        for cell, rows in shares.items():
            found.setdefault(cell, []).append(rows)
    return [
        CellClips(
            group=names[cell // len(buckets)],
            bucket=buckets[cell % len(buckets)],
            bucket_number=cell % len(buckets),
            members=np.concatenate(pieces),
            by=by,
        )
        for cell, pieces in sorted(found.items())
    ]


# ── small cells ─────────────────────────────────────────────────────────────────────────────────────────────


def _distance(small: CellClips, other: CellClips, buckets: Sequence[Bucket]) -> tuple[float, ...] | None:
    """Return the distance from a small cell's bucket to another bucket; None when its clips do not fit there.

    Clips fit no larger resolution and no longer length. The nearest bucket has the same resolution, then the
    same length, then the nearest aspect ratio.
    """
    own, its = small.bucket, other.bucket
    resolutions = list(dict.fromkeys(bucket.resolution for bucket in buckets))  # from the largest
    lower = resolutions.index(its.resolution) - resolutions.index(own.resolution)
    shorter = own.num_frames - its.num_frames
    if lower < 0 or shorter < 0 or (its.num_frames == 1) != (own.num_frames == 1):
        return None
    turned = abs(math.log(its.height / its.width) - math.log(own.height / own.width))
    return (lower, shorter, turned, other.bucket_number)


def resolve_small_cells(
    parts: Sequence[CellClips], buckets: Sequence[Bucket], choice: Literal["shrink", "merge"]
) -> tuple[list[CellClips], list[dict[str, object]]]:
    """Merge or shrink cells with fewer clips than a micro-batch; return the cells and notes.

    merge: each small cell, the smallest first, goes to the nearest bucket of the same group. shrink: small
    cells stay (with smaller micro-batches). Raises InputError for a small cell that fits no
    other bucket.
    """
    left = list(parts)
    notes: list[dict[str, object]] = []
    while choice != "shrink":
        small = [part for part in left if len(part.members) < part.bucket.micro_batch_size]
        if not small:
            break
        least = min(small, key=lambda part: (len(part.members), part.name))
        near = [
            (distance, part)
            for part in left
            if part is not least and part.group == least.group
            if (distance := _distance(least, part, buckets)) is not None
        ]
        if not near:
            raise InputError(
                f"{least.name} has {counted(len(least.members), 'clip')}, fewer than a micro-batch of "
                f"{least.bucket.micro_batch_size}, and they fit no other bucket that has clips; set "
                "small_cells to shrink, or change the buckets."
            )
        _, into = min(near, key=lambda found: found[0])
        left = [part for part in left if part is not least and part is not into]
        left.append(replace(into, members=np.concatenate([into.members, least.members])))
        notes.append(
            {"event": "merged_cell", "cell": least.name, "clips": len(least.members), "into": into.name}
        )
    return left, notes


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────


def _rates(parts: Sequence[CellClips], oversampling: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Return cell → relative number of micro-batches, without cells of weight 0."""
    return {
        part.name: oversampling[part.group] * Fraction(len(part.members), part.clips_per_turn)
        for part in parts
        if oversampling.get(part.group)
    }


def _whole(rates: Mapping[str, Fraction]) -> dict[str, int]:
    scale = math.lcm(*(rate.denominator for rate in rates.values()))
    return {name: int(rate * scale) for name, rate in rates.items()}


def _oversampling(weights: Mapping[str, float], counts: Groups) -> dict[str, Fraction]:
    """Return group → how much oftener than equally often its clips are shown."""
    share = {name: Fraction(weight).limit_denominator(10**6) for name, weight in weights.items()}
    if min(share.values()) < 0 or not any(share.get(name) for name in counts):
        raise InputError(
            f"weights are {dict(weights)}; they must be 0 or more, and above 0 for a level with clips."
        )
    return {name: share.get(name, Fraction(0)) / count for name, count in counts.items()}


def weights_of(parts: Sequence[CellClips], weights: Mapping[str, float]) -> dict[str, int]:
    """Return cell → mixture weight; without `weights`, every clip equally often. Raises InputError."""
    counts = _counts(parts)
    oversampling = _oversampling(weights, counts) if weights else dict.fromkeys(counts, Fraction(1))
    return _whole(_rates(parts, oversampling))


def _counts(parts: Sequence[CellClips]) -> Groups:
    counts: Groups = {}
    for part in parts:
        counts[part.group] = counts.get(part.group, 0) + len(part.members)
    return counts


def _phase_rates(parts: Sequence[CellClips], counts: Groups, phase: PhaseSpec) -> dict[str, Fraction]:
    if phase.weights:
        return _rates(parts, _oversampling(phase.weights, counts))
    return _rates(parts, {name: Fraction(1) for name in phase.names if name in counts})


def phases_of(parts: Sequence[CellClips], spec: PlanSpec) -> list[Phase]:
    """Return the curriculum's phases. Raises InputError for a phase without clips or too long a ramp."""
    counts, sizes = _counts(parts), {part.name: part for part in parts}
    phases: list[Phase] = []
    step = 0
    for number, phase in enumerate(spec.curriculum):
        rates = _phase_rates(parts, counts, phase)
        if not rates:
            raise InputError(
                f"curriculum.{number}: no clip of {', '.join(phase.names)} fits a bucket. Change the bucket "
                "table or the phase."
            )
        phases.append(
            Phase(
                first=step * spec.micro_batches_per_step,
                weights=_whole(rates),
                ramp_turns=phase.ramp_steps * spec.micro_batches_per_step,
                ramp=phase.ramp,
            )
        )
        steps = phase.steps
        if phase.epochs is not None:
            shown = sum(rate * sizes[name].clips_per_turn for name, rate in rates.items())
            per_step = spec.micro_batches_per_step * shown / sum(rates.values())
            clips = sum(len(sizes[name].members) for name in rates)
            steps = math.ceil(Fraction(phase.epochs).limit_denominator(10**6) * clips / per_step)
            if phase.ramp_steps > steps:
                raise InputError(
                    f"curriculum.{number} has a ramp of {phase.ramp_steps} steps, but {phase.epochs:g} "
                    f"epochs are {steps} steps; make the ramp shorter or the phase longer."
                )
        step += steps or 0
    return phases


def cells_of(
    index: Index, hashes: rng.Words, parts: Sequence[CellClips], spec: PlanSpec
) -> tuple[list[plan.Cell], list[Phase]]:
    """Return the cells and phases. `hashes`: of the ids of all clips of the index."""
    phases = phases_of(parts, spec) if spec.curriculum else []
    weights = {name: weight for phase in phases for name, weight in phase.weights.items() if weight}
    weights = weights or weights_of(parts, spec.weights)
    block: Rows | None = None
    num_blocks = together = 1
    if spec.blocks:
        shards = np.unique(np.concatenate([index.shard_number[part.members] for part in parts]))
        place = np.searchsorted(
            shards, index.shard_number
        )  # undefined, but unused, for shards without planned clips
        block = (place // spec.blocks.shards_per_block).astype(np.int64)
        num_blocks, together = -(-len(shards) // spec.blocks.shards_per_block), spec.blocks.blocks_together

    def made(part: CellClips) -> plan.Cell:
        return plan.make_cell(
            part.name,
            part.bucket,
            part.members,
            hashes[part.members],
            weights[part.name],
            block=None if block is None else block[part.members],
            num_blocks=num_blocks,
            blocks_together=together,
        )

    with ThreadPoolExecutor(rng.MOST_THREADS) as threads:  # numpy sorts without the GIL
        return list(threads.map(made, [part for part in parts if part.name in weights])), phases
