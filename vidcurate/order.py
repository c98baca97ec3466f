"""The order of training, computed and not iterated: the clips of micro-batch k are a function of (plan, k).

Micro-batches are counted from 0 without end; optimizer step t is the M of them from t·M on, however many
ranks share them. A cell holds the clips of one level (or source) in one bucket. `interleave` says which cell
has turn k; a cell's turns read its clips in exact passes, each in an order of its own, without a break
between passes. There is no epoch, no iterator and no buffer: so no state but the step.

A light module: plain numpy, no reading of files.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate import curriculum, draws, interleave, passes
from vidcurate.block_order import Blocks
from vidcurate.buckets import Bucket
from vidcurate.curriculum import Leg
from vidcurate.errors import InputError

ALGORITHM_VERSION = 1  # raised when any plan's order changes; the golden vectors in the tests hold it

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Clips that may stand in one micro-batch. `rows` (n,) are their rows of the index, in a lasting order.

    `weight`: micro-batches of this cell against those of other cells, where no curriculum says it.
    `micro_batch_size` is the bucket's, or n where the cell has fewer clips. `blocks`: how its clips lie in
    blocks of shards, where passes keep to these.
    """

    name: str
    bucket: Bucket
    rows: Rows
    weight: int
    micro_batch_size: int
    digest: str  # of the clip ids
    blocks: Blocks | None = None

    @property
    def cost(self) -> int:
        """Pixels of a micro-batch."""
        return self.micro_batch_size * self.bucket.num_frames * self.bucket.height * self.bucket.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that the order depends on. `fingerprint` covers cells, weights, sizes and M; not seed and version.

    `left_out`: reason → rows of clips that no cell holds. `notes`: what had to be adapted, as events.
    `costs`: what a micro-batch of each cell costs, in any unit, where pixels are no measure of it. Ranks are
    balanced by it; it changes who reads a micro-batch and nothing of what is read. `run`: so many
    micro-batches in a row are of one cell. `phases`: the first step of each phase of the curriculum.
    """

    algorithm_version: int
    seed: int
    cells: tuple[Cell, ...]
    micro_batches_per_step: int
    fingerprint: str
    mixture: interleave.Mixture
    left_out: Mapping[str, Rows]
    notes: tuple[dict[str, object], ...]
    costs: tuple[int, ...] | None = None
    run: int = 1
    phases: tuple[int, ...] = (0,)

    @property
    def num_clips(self) -> int:
        return sum(len(cell.rows) for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchPlan:
    """Micro-batch `position`: the clips at `rows` (m,) of the index, all of cell number `cell`.

    `passes` (m,): in which pass over the cell each of them stands, from 0.
    """

    position: int
    cell: int
    rows: Rows
    passes: Rows


def make_cell(
    name: str,
    bucket: Bucket,
    rows: Rows,
    hashes: draws.Words,
    weight: int,
    *,
    block: Rows | None = None,
    blocks_together: int = 1,
) -> Cell:
    """Return the cell of the clips at `rows` whose ids have these `draws.id_hashes`.

    The clips are put in the order of their hashes, so that it does not matter how they lie in the shards;
    unless `block`, the number of each clip's block of shards, is given: then blocks come first.
    """
    order = np.argsort(hashes) if block is None else np.lexsort((hashes, block))
    ranked = hashes[order]
    if np.any(ranked[1:] == ranked[:-1]):  # two ids in 10^5 data sets of 20 M clips
        order = np.lexsort((rows, hashes) if block is None else (rows, hashes, block))
    return Cell(
        name=name,
        bucket=bucket,
        rows=rows[order].astype(np.int64),
        weight=weight,
        micro_batch_size=min(bucket.micro_batch_size, len(rows)),
        digest=draws.hash_bytes(ranked.astype("<u8").tobytes()),
        blocks=None if block is None else Blocks(np.bincount(block).astype(np.int64), blocks_together),
    )


def make_plan(
    cells: Sequence[Cell],
    *,
    seed: int,
    micro_batches_per_step: int,
    left_out: Mapping[str, Rows] | None = None,
    legs: Sequence[Leg] = (),
    run: int = 1,
    notes: Sequence[dict[str, object]] = (),
) -> Plan:
    """Return the plan over these cells (any order; names must differ).

    `legs`: weights that change with the turn, instead of those of the cells. `run`: micro-batches in a row
    that are of one cell; M must be a multiple. A cell with fewer clips than its bucket's micro-batch gets
    smaller ones, and a note says so: a clip is never twice in a micro-batch. Raises InputError when there is
    no clip, M is below 1 or no multiple of `run`.
    """
    if micro_batches_per_step < 1:
        raise InputError(f"micro_batches_per_step is {micro_batches_per_step}; it must be 1 or more.")
    if micro_batches_per_step % run:
        raise InputError(
            f"micro_batches_per_step is {micro_batches_per_step}; it must be a multiple of {run}, as so many "
            "micro-batches in a row are of one bucket."
        )
    cells = sorted((cell for cell in cells if len(cell.rows)), key=lambda cell: cell.name)
    if not cells:
        reasons = ", ".join(f"{len(rows)} {reason}" for reason, rows in (left_out or {}).items() if len(rows))
        raise InputError(f"no clip fits any bucket ({reasons or 'there are none'}); change the bucket table.")
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise InputError(
            f"two cells are called {next(n for n in names if names.count(n) > 1)!r}; names must differ."
        )
    if legs:
        mixture = curriculum.mixture(legs, names, run=run)
    else:
        divisor = math.gcd(*(cell.weight for cell in cells))
        mixture = interleave.mixture([cell.weight // divisor for cell in cells], run=run)
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
        phases=tuple(leg.first // micro_batches_per_step for leg in legs) or (0,),
    )


def _fingerprint(cells: Sequence[Cell], mixture: interleave.Mixture, per_step: int, run: int) -> str:
    """Return the hash of all that decides the order but the seed; what is as ever adds nothing to it."""
    (_, first_weights), *_ = mixture.spans[0].pieces
    facts = [str(per_step)]
    for cell, weight in zip(cells, first_weights, strict=True):
        facts += [cell.name, repr(cell.bucket), str(weight), str(len(cell.rows)), cell.digest]
        if cell.blocks:
            facts.append(f"blocks {cell.blocks.facts}")
    if run > 1:
        facts.append(f"run {run}")
    pieces = [(span.first, first, weights) for span in mixture.spans for first, weights in span.pieces]
    return draws.hash_text([*facts, *(f"from {piece}" for piece in pieces[1:])])


# ── which clips ─────────────────────────────────────────────────────────────────────────────────────────────


def stream_of(plan: Plan, cell: Cell) -> passes.Stream:
    """Return the endless stream of a cell's clips."""
    return passes.Stream(
        seed=plan.seed,
        name=cell.name,
        count=len(cell.rows),
        micro_batch_size=cell.micro_batch_size,
        blocks=cell.blocks,
    )


def micro_batch(plan: Plan, position: int) -> MicroBatchPlan:
    """Return micro-batch number `position` of the whole run, from 0; it costs the same for any position."""
    number, occurrence = interleave.turn(plan.mixture, position)
    cell = plan.cells[number]
    ordinals, in_pass = passes.micro_batch(stream_of(plan, cell), occurrence)
    return MicroBatchPlan(position=position, cell=number, rows=cell.rows[ordinals], passes=in_pass)


def step_micro_batches(plan: Plan, step: int) -> tuple[MicroBatchPlan, ...]:
    """Return all micro-batches of an optimizer step, in the order of their positions."""
    first = step * plan.micro_batches_per_step
    return tuple(micro_batch(plan, first + number) for number in range(plan.micro_batches_per_step))


def positions_of_row(plan: Plan, row: int) -> Iterator[int]:
    """Yield the positions of the micro-batches with the clip at `row`; none without a cell.

    There is no end of them, unless the weight of its cell becomes 0.
    """
    homes = [(number, np.flatnonzero(cell.rows == row)) for number, cell in enumerate(plan.cells)]
    homes = [(number, found) for number, found in homes if len(found)]
    if not homes:
        return
    number, found = homes[0]
    for occurrence in passes.occurrences(stream_of(plan, plan.cells[number]), int(found[0])):
        position = interleave.position_of(plan.mixture, number, occurrence)
        if position is None:
            return
        yield position


def spares(plan: Plan, batch: MicroBatchPlan, slot: int) -> Iterator[int]:
    """Yield the rows that may stand in for slot `slot`, in a fixed order, none of them in the micro-batch.

    First those of the same cell, then those of other cells of the same bucket.
    """
    own = plan.cells[batch.cell]
    others = [cell for cell in plan.cells if cell.bucket == own.bucket and cell is not own]
    taken = set(batch.rows.tolist())
    for cell in [own, *others]:
        spare_key = draws.key("spare", plan.seed, cell.name, batch.position, slot)
        for place in range(len(cell.rows)):
            row = int(cell.rows[draws.permute(len(cell.rows), spare_key, np.array([place]))[0]])
            if row not in taken:
                yield row


def slot_seed(seed: int, position: int, slot: int, purpose: str) -> int:
    """Return the 64-bit seed of one choice about one clip of one micro-batch (its start frame, noise, …).

    It belongs to the place in the order, never to a rank, a worker or what was drawn before.
    """
    return draws.key("slot", seed, position, slot, purpose)


# ── who reads them ──────────────────────────────────────────────────────────────────────────────────────────


def shares(plan: Plan, step: int, world_size: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each rank, the positions of the step's micro-batches that it runs, the costliest first.

    Every position is in exactly one share, and the shares are balanced by cost: from the costliest on, each
    goes to the rank with the least so far (LPT; Graham 1969). Pixels are a rough cost, so by them the shares
    differ by at most one micro-batch; with the plan's `costs` these alone decide. Where micro-batches of one
    cell come in runs of n and the ranks are a multiple of n, whole runs are dealt to groups of n ranks, the
    nodes: so all ranks of a node always run the same shape. With other numbers of ranks, each goes its way.
    """
    first = step * plan.micro_batches_per_step
    together = plan.run if world_size % plan.run == 0 else 1
    units = range(first, first + plan.micro_batches_per_step, together)
    num_nodes = world_size // together
    costs = plan.costs or tuple(cell.cost for cell in plan.cells)
    cost = {p: costs[interleave.turn(plan.mixture, p)[0]] for p in units}
    least, extra = divmod(len(units), num_nodes)
    if plan.costs:
        least = len(units)
    given: list[list[int]] = [[] for _ in range(num_nodes)]
    heap = [(0, node) for node in range(num_nodes)]
    for unit in sorted(units, key=lambda p: (-cost[p], p)):
        while True:
            load, node = heapq.heappop(heap)
            if len(given[node]) < least:
                break
            if len(given[node]) == least and extra:
                extra -= 1
                break
        given[node].append(unit)
        heapq.heappush(heap, (load + cost[unit], node))
    return tuple(tuple(unit + rank for unit in own) for own in given for rank in range(together))


def share(plan: Plan, step: int, rank: int, world_size: int) -> tuple[MicroBatchPlan, ...]:
    """Return the micro-batches of a step that a rank runs, in the order in which it runs them."""
    return tuple(micro_batch(plan, position) for position in shares(plan, step, world_size)[rank])


def finite_pass(plan: Plan, rank: int = 0, world_size: int = 1) -> Iterator[MicroBatchPlan]:
    """Yield every clip exactly once over all ranks, cell by cell: for evaluation.

    A cell's last micro-batch may be smaller. Positions count from 0; rank r has those with position mod
    `world_size` = r.
    """
    position = 0
    for number, cell in enumerate(plan.cells):
        for first in range(0, len(cell.rows), cell.micro_batch_size):
            if position % world_size == rank:
                offsets = np.arange(first, min(first + cell.micro_batch_size, len(cell.rows)))
                ordinals = passes.ordinals_at(stream_of(plan, cell), offsets)
                first_pass = np.zeros(len(ordinals), dtype=np.int64)
                yield MicroBatchPlan(
                    position=position, cell=number, rows=cell.rows[ordinals], passes=first_pass
                )
            position += 1


# ── what it amounts to ──────────────────────────────────────────────────────────────────────────────────────


def micro_batches_before(plan: Plan, step: int) -> list[int]:
    """Return how many micro-batches of each cell the steps before `step` have."""
    return interleave.turns_before(plan.mixture, step * plan.micro_batches_per_step)


def exposures(plan: Plan, step: int) -> list[tuple[int, int]]:
    """Return, per cell, how often the steps before `step` show its least and its most shown clip."""
    shown = [
        count * cell.micro_batch_size
        for count, cell in zip(micro_batches_before(plan, step), plan.cells, strict=True)
    ]
    return [(n // len(cell.rows), -(-n // len(cell.rows))) for n, cell in zip(shown, plan.cells, strict=True)]


def steps_for_passes(plan: Plan, passes: float) -> int:
    """Return the fewest steps that show at least `passes` x the number of clips; for a stage's length."""

    def shown(step: int) -> int:
        counts = micro_batches_before(plan, step)
        return sum(n * cell.micro_batch_size for n, cell in zip(counts, plan.cells, strict=True))

    wanted = passes * plan.num_clips
    high = 1
    while shown(high) < wanted:
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) >= wanted else (middle + 1, high)
    return low


def rolling_hash(previous: str, clip_ids: Iterable[str]) -> str:
    """Return the hash of all clips up to a step from that of the step before ("" at first) and its clips.

    The clips are those of the whole step in the order of positions. Two runs that log the same hash at a step
    have read the same clips in the same order up to there.
    """
    return draws.hash_text([previous, *clip_ids])
