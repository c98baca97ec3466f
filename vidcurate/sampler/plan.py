"""Plan: cells with their clips, mixture, seed and M; the whole input of the order.

`order` computes steps from a plan. A light module: plain numpy, reads no files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.errors import InputError
from vidcurate.sampler import curriculum, epoch_shuffle
from vidcurate.sampler import mixture as sampler_mixture
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.curriculum import Phase
from vidcurate.sampler.shard_blocks import Blocks

ALGORITHM_VERSION = 1  # raise when any plan's order changes; golden orders in the tests check this

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellStream:
    """Endless stream of a cell's clips, and the index row of every ordinal.

    `skip` and `missing` are of streams after an accepted change: turn j of the cell is micro-batch j + `skip`
    of the stream; `missing` (sorted) are ordinals of removed clips that keep their places, each of which a
    fallback clip takes.
    """

    stream: epoch_shuffle.Stream
    rows: Rows
    skip: int = 0
    missing: Rows = field(default_factory=lambda: epoch_shuffle.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Clips that may share a micro-batch: n index rows in a stable order, `rows` (n,).

    `weight`: relative number of micro-batches, used without a curriculum. `micro_batch_size` is the
    bucket's, or n when the cell has fewer clips. `blocks`: blocks of shards, when epochs read block by block.
    `resumed`: stream with which the cell resumes after a change.
    """

    name: str
    bucket: Bucket
    rows: Rows
    weight: int
    micro_batch_size: int
    digest: str  # of the clip ids
    blocks: Blocks | None = None
    resumed: CellStream | None = None

    @property
    def cost(self) -> int:
        """Number of pixels of a micro-batch."""
        return self.micro_batch_size * self.bucket.num_frames * self.bucket.height * self.bucket.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Input of the order. `fingerprint` covers cells, weights, sizes and M; not seed and version.

    `left_out`: reason → rows of clips without a cell. `notes`: events about adapted cells. `costs`: cost of
    a micro-batch of each cell, in any unit, for balancing ranks when pixels are too rough; the costs change
    which rank reads a micro-batch, never its clips. `run`: number of consecutive micro-batches of one cell.
    `phases`: first step of each phase of the curriculum.

    Valid from `first_step` on, whose first micro-batch is `first_position`; earlier steps follow `before`.
    Rows from `num_rows` on are clips that have left the index; `gone` lists their ids in this order.
    """

    algorithm_version: int
    seed: int
    cells: tuple[Cell, ...]
    micro_batches_per_step: int
    fingerprint: str
    mixture: sampler_mixture.Mixture
    left_out: Mapping[str, Rows]
    notes: tuple[dict[str, object], ...]
    costs: tuple[int, ...] | None = None
    run: int = 1
    phases: tuple[int, ...] = (0,)
    first_step: int = 0
    first_position: int = 0
    before: "Plan | None" = None
    num_rows: int = 0
    gone: tuple[str, ...] = ()

    @property
    def num_clips(self) -> int:
        return sum(len(cell.rows) for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchPlan:
    """Micro-batch `position`: the clips at index rows `rows` (m,), all of cell number `cell`.

    `epochs` (m,): epoch of the cell in which each clip is shown, from 0.
    """

    position: int
    cell: int
    rows: Rows
    epochs: Rows


def make_cell(
    name: str,
    bucket: Bucket,
    rows: Rows,
    hashes: rng.Words,
    weight: int,
    *,
    block: Rows | None = None,
    num_blocks: int = 1,
    blocks_together: int = 1,
) -> Cell:
    """Return the cell of the clips at `rows`, whose ids have the `rng.id_hashes` `hashes`.

    `make_cell` sorts the clips by hash, so their order in the shards does not matter. With `block` (n,),
    each clip's block of shards (0 … `num_blocks` − 1), `make_cell` sorts by block first, and an epoch
    shuffles `blocks_together` blocks at a time.
    """
    order = rng.sort_by_hash(hashes) if block is None else np.lexsort((hashes, block))
    ranked = hashes[order]
    if np.any(ranked[1:] == ranked[:-1]):  # two ids in 10^5 data sets of 20 M clips
        order = np.lexsort((rows, hashes) if block is None else (rows, hashes, block))
    return Cell(
        name=name,
        bucket=bucket,
        rows=rows[order].astype(np.int64, copy=False),
        weight=weight,
        micro_batch_size=min(bucket.micro_batch_size, len(rows)),
        digest=rng.hash_bytes(ranked.astype("<u8", copy=False).data),
        blocks=None if block is None else Blocks(np.bincount(block, minlength=num_blocks), blocks_together),
    )


def make_plan(
    cells: Sequence[Cell],
    *,
    seed: int,
    micro_batches_per_step: int,
    left_out: Mapping[str, Rows] | None = None,
    phases: Sequence[Phase] = (),
    run: int = 1,
    notes: Sequence[dict[str, object]] = (),
) -> Plan:
    """Return the plan over these cells (in any order; names must differ).

    `phases`: weights that change with the turn, instead of the cells' weights. `run`: number of consecutive
    micro-batches of one cell; M must be a multiple. A cell with fewer clips than its bucket's micro-batch
    gets smaller micro-batches and a note, so no micro-batch holds a clip twice. Raises InputError when there
    is no clip, M is below 1 or no multiple of `run`.
    """
    if micro_batches_per_step < 1:
        raise InputError(f"micro_batches_per_step is {micro_batches_per_step}; it must be 1 or more.")
    if micro_batches_per_step % run:
        raise InputError(
            f"micro_batches_per_step is {micro_batches_per_step}; it must be a multiple of {run}, the number "
            "of consecutive micro-batches of one bucket."
        )
    cells = sorted((cell for cell in cells if len(cell.rows)), key=lambda cell: cell.name)
    if not cells:
        reasons = ", ".join(f"{len(rows)} {reason}" for reason, rows in (left_out or {}).items() if len(rows))
        raise InputError(f"no clip fits any bucket ({reasons or 'no clips'}); change the bucket table.")
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise InputError(
            f"two cells are called {next(n for n in names if names.count(n) > 1)!r}; names must differ."
        )
    if phases:
        mixture = curriculum.mixture(phases, names, run=run)
    else:
        divisor = math.gcd(*(cell.weight for cell in cells))
        mixture = sampler_mixture.mixture([cell.weight // divisor for cell in cells], run=run)
    small = [
        {
            "event": "small_cell",
            "cell": cell.name,
            "clips": len(cell.rows),
            "micro_batch_size_asked": cell.bucket.micro_batch_size,
            "micro_batch_size": cell.micro_batch_size,
        }
        for cell in cells
        if cell.micro_batch_size < cell.bucket.micro_batch_size
    ]
    return Plan(
        algorithm_version=ALGORITHM_VERSION,
        seed=seed,
        cells=tuple(cells),
        micro_batches_per_step=micro_batches_per_step,
        fingerprint=_fingerprint(cells, mixture, micro_batches_per_step, run),
        mixture=mixture,
        left_out=left_out or {},
        notes=(*notes, *small),
        run=run,
        phases=tuple(phase.first // micro_batches_per_step for phase in phases) or (0,),
    )


def _fingerprint(cells: Sequence[Cell], mixture: sampler_mixture.Mixture, per_step: int, run: int) -> str:
    """Return the hash of the order's inputs without the seed; default settings add nothing to the hash."""
    (_, first_weights), *_ = mixture.spans[0].pieces
    facts = [str(per_step)]
    for cell, weight in zip(cells, first_weights, strict=True):
        facts += [cell.name, repr(cell.bucket), str(weight), str(len(cell.rows)), cell.digest]
        if cell.blocks:
            facts.append(f"blocks {cell.blocks.facts}")
    if run > 1:
        facts.append(f"run {run}")
    pieces = [(span.first, first, weights) for span in mixture.spans for first, weights in span.pieces]
    return rng.hash_text([*facts, *(f"from {piece}" for piece in pieces[1:])])
