"""Order of training: the clips of micro-batch k as a pure function of (plan, k).

Micro-batches are numbered from 0 without end; optimizer step t is the M micro-batches from t·M on, however
many ranks share them. A cell holds the clips of one level (or source) in one bucket. `mixture` says which
cell micro-batch k reads; `epoch_shuffle` shuffles the clips of each cell anew for every epoch over them,
without a break between epochs. There is no global epoch, no iterator and no buffer, so the step is the only
state.

After an accepted change of clips or recipe, a plan keeps the plan `before` its first step; every function
here uses the plan that is valid at the step. `changes.change_log` makes such plans.

A light module: plain numpy, reads no files.
"""

import dataclasses
import heapq
from collections.abc import Iterable, Iterator

import numpy as np

from vidcurate import rng
from vidcurate.sampler import epoch_shuffle, mixture, rank_balance
from vidcurate.sampler.plan import Cell, CellStream, MicroBatchPlan, Plan

# ── position → clips ────────────────────────────────────────────────────────────────────────────────────────


def at_step(plan: Plan, step: int) -> Plan:
    """Return the plan that is valid at a step: this one, or one before it."""
    while plan.before is not None and step < plan.first_step:
        plan = plan.before
    return plan


def at_position(plan: Plan, position: int) -> Plan:
    """Return the plan that is valid at a micro-batch."""
    while plan.before is not None and position < plan.first_position:
        plan = plan.before
    return plan


def step_of(plan: Plan, position: int) -> int:
    """Return the step of a micro-batch."""
    plan = at_position(plan, position)
    return plan.first_step + (position - plan.first_position) // plan.micro_batches_per_step


def positions(plan: Plan, step: int) -> range:
    """Return the micro-batches of a step."""
    plan = at_step(plan, step)
    first = plan.first_position + (step - plan.first_step) * plan.micro_batches_per_step
    return range(first, first + plan.micro_batches_per_step)


def _mixture_begins(plan: Plan) -> int:
    """Return the position of the mixture's turn 0, had the plan been valid from step 0 on."""
    return plan.first_position - plan.first_step * plan.micro_batches_per_step


def cell_at(plan: Plan, position: int) -> tuple[int, int]:
    """Return (cell number, turn of the cell) of a micro-batch, in the plan that is valid there."""
    plan = at_position(plan, position)
    return mixture.stream_at(plan.mixture, position - _mixture_begins(plan))


def cell_of(plan: Plan, batch: MicroBatchPlan) -> Cell:
    """Return the cell of a micro-batch, in the plan that is valid there."""
    return at_position(plan, batch.position).cells[batch.cell]


def stream_of(plan: Plan, cell: Cell) -> CellStream:
    """Return the endless stream of a cell's clips."""
    if cell.resumed:  # after an accepted change, see `changes`
        return cell.resumed
    stream = epoch_shuffle.Stream(
        seed=plan.seed,
        name=cell.name,
        count=len(cell.rows),
        micro_batch_size=cell.micro_batch_size,
        blocks=cell.blocks,
    )
    return CellStream(stream=stream, rows=cell.rows)


def micro_batch(plan: Plan, position: int) -> MicroBatchPlan:
    """Return micro-batch number `position` of the run, from 0; every position costs the same."""
    plan = at_position(plan, position)
    number, turn = cell_at(plan, position)
    of_cell = stream_of(plan, plan.cells[number])
    ordinals, epochs = epoch_shuffle.micro_batch(of_cell.stream, turn + of_cell.skip)
    batch = MicroBatchPlan(position=position, cell=number, rows=of_cell.rows[ordinals], epochs=epochs)
    _put_fallbacks(plan, batch, ordinals, of_cell.missing)
    return batch


def _put_fallbacks(
    plan: Plan, batch: MicroBatchPlan, ordinals: epoch_shuffle.Ordinals, missing: epoch_shuffle.Ordinals
) -> None:
    """Replace the clips at the `missing` ordinals, which have left the data, with fallback clips."""
    if len(missing):
        for slot in np.flatnonzero(np.isin(ordinals, missing)).tolist():
            batch.rows[slot] = next(row for row in fallback_clips(plan, batch, slot) if row not in batch.rows)


def step_micro_batches(plan: Plan, step: int) -> tuple[MicroBatchPlan, ...]:
    """Return all micro-batches of an optimizer step, in the order of their positions.

    The same micro-batches as from `micro_batch`, but computed once per cell.
    """
    plan = at_step(plan, step)
    turns: dict[int, list[tuple[int, int]]] = {}
    for position in positions(plan, step):
        number, turn = cell_at(plan, position)
        turns.setdefault(number, []).append((position, turn))
    found: list[MicroBatchPlan] = []
    for number, its_turns in turns.items():
        of_cell = stream_of(plan, plan.cells[number])
        asked = np.array([turn for _, turn in its_turns]) + of_cell.skip
        both = epoch_shuffle.micro_batches(of_cell.stream, asked)
        for (position, _), ordinals, epochs in zip(its_turns, *both, strict=True):
            batch = MicroBatchPlan(position=position, cell=number, rows=of_cell.rows[ordinals], epochs=epochs)
            _put_fallbacks(plan, batch, ordinals, of_cell.missing)
            found.append(batch)
    return tuple(sorted(found, key=lambda batch: batch.position))


def positions_of_row(plan: Plan, row: int) -> Iterator[int]:
    """Yield the positions of the micro-batches with the clip at `row`; none for a clip without a cell.

    Endless, unless the weight of its cell becomes 0. Leaves out the positions where the clip is a fallback
    for another.
    """
    chain = [plan]
    while chain[0].before is not None:
        chain.insert(0, chain[0].before)
    for this, following in zip(chain, [*chain[1:], None], strict=True):
        for number, cell in enumerate(this.cells):
            of_cell = stream_of(this, cell)
            found = np.setdiff1d(np.flatnonzero(of_cell.rows == row), of_cell.missing)
            yield from heapq.merge(*(_positions_of(this, following, number, int(o)) for o in found))


def _positions_of(plan: Plan, following: Plan | None, number: int, ordinal: int) -> Iterator[int]:
    """Yield the positions of one ordinal of one cell while the plan is valid."""
    begins, of_cell = _mixture_begins(plan), stream_of(plan, plan.cells[number])
    for occurrence in epoch_shuffle.occurrences(of_cell.stream, ordinal):
        turn = occurrence - of_cell.skip
        if turn < 0:
            continue
        position = mixture.position_of(plan.mixture, number, turn)
        if position is None or (following and position + begins >= following.first_position):
            return
        if position + begins >= plan.first_position:
            yield position + begins


def fallback_clips(plan: Plan, batch: MicroBatchPlan, slot: int) -> Iterator[int]:
    """Yield the rows of fallback clips for slot `slot`, in a fixed order, none of them in the micro-batch.

    First clips of the same cell, then clips of other cells of the same bucket.
    """
    plan = at_position(plan, batch.position)
    own = plan.cells[batch.cell]
    others = [cell for cell in plan.cells if cell.bucket == own.bucket and cell is not own]
    taken = set(batch.rows.tolist())
    for cell in [own, *others]:
        fallback_key = rng.key("spare", plan.seed, cell.name, batch.position, slot)
        for place in range(len(cell.rows)):
            row = int(cell.rows[rng.permute(len(cell.rows), fallback_key, np.array([place]))[0]])
            if row not in taken:
                yield row


def slot_seed(seed: int, position: int, slot: int, purpose: str) -> int:
    """Return the 64-bit seed of one choice about one clip of one micro-batch (start frame, noise, …).

    The seed depends on the position in the order, never on a rank, a worker or earlier draws.
    """
    return rng.key("slot", seed, position, slot, purpose)


# ── position → rank ─────────────────────────────────────────────────────────────────────────────────────────


def shares(plan: Plan, step: int, world_size: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each rank, the positions of the step's micro-batches that it runs, the costliest first.

    Every position is in exactly one share. With the plan's `costs`, `rank_balance` makes the shares as equal
    in cost as it can. Without `costs`, pixels are a rough cost: each micro-batch, the largest first, goes to
    the rank with the fewest pixels so far, and the numbers of micro-batches differ by at most one. When
    micro-batches of one cell come in runs of n and the number of ranks is a multiple of n, `shares` assigns
    whole runs to groups of n ranks, the nodes: so all ranks of a node always run the same shape. With other
    numbers of ranks, `shares` assigns each micro-batch separately.
    """
    plan = at_step(plan, step)
    together = plan.run if world_size % plan.run == 0 else 1
    units = positions(plan, step)[::together]
    num_nodes = world_size // together
    if plan.costs:
        costs = [plan.costs[cell_at(plan, position)[0]] for position in units]
        given = [[units[number] for number in own] for own in rank_balance.assign_to_ranks(costs, num_nodes)]
    else:
        given = _by_pixels(plan, units, num_nodes)
    return tuple(tuple(unit + rank for unit in own) for own in given for rank in range(together))


def _by_pixels(plan: Plan, units: range, num_nodes: int) -> list[list[int]]:
    cost = {p: plan.cells[cell_at(plan, p)[0]].cost for p in units}
    least, extra = divmod(len(units), num_nodes)
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
    return given


def rank_share(plan: Plan, step: int, rank: int, world_size: int) -> tuple[MicroBatchPlan, ...]:
    """Return a rank's micro-batches of a step, in the order in which the rank runs them."""
    return tuple(micro_batch(plan, position) for position in shares(plan, step, world_size)[rank])


def one_epoch(plan: Plan, rank: int = 0, world_size: int = 1) -> Iterator[MicroBatchPlan]:
    """Yield one epoch: every clip exactly once over all ranks, cell by cell, for evaluation.

    A cell's last micro-batch may be smaller. Positions count from 0; rank r has the positions with position
    mod `world_size` = r.
    """
    position = 0
    for number, cell in enumerate(plan.cells):
        for first in range(0, len(cell.rows), cell.micro_batch_size):
            if position % world_size == rank:
                offsets = np.arange(first, min(first + cell.micro_batch_size, len(cell.rows)))
                stream = stream_of(plan, dataclasses.replace(cell, resumed=None)).stream
                ordinals = epoch_shuffle.ordinals_at(stream, offsets)
                first_epoch = np.zeros(len(ordinals), dtype=np.int64)
                yield MicroBatchPlan(
                    position=position, cell=number, rows=cell.rows[ordinals], epochs=first_epoch
                )
            position += 1


# ── totals ──────────────────────────────────────────────────────────────────────────────────────────────────


def _totals(plan: Plan, step: int) -> dict[str, tuple[int, int]]:
    """Return cell → (micro-batches, clips) of the steps before `step`, with cells of earlier plans."""
    plan = at_step(plan, step)
    totals = _totals(plan.before, plan.first_step) if plan.before else {}
    since, until = (
        mixture.turns_before(plan.mixture, first * plan.micro_batches_per_step)
        for first in (plan.first_step, step)
    )
    for cell, had, has in zip(plan.cells, since, until, strict=True):
        batches, clips = totals.get(cell.name, (0, 0))
        totals[cell.name] = (batches + has - had, clips + (has - had) * cell.micro_batch_size)
    return totals


def micro_batches_before(plan: Plan, step: int) -> list[int]:
    """Return the number of micro-batches before `step` of each cell of the plan that is valid there."""
    totals = _totals(plan, step)
    return [totals[cell.name][0] for cell in at_step(plan, step).cells]


def clips_before(plan: Plan, step: int) -> int:
    """Return the number of clips that the steps before `step` show, with repeats."""
    return sum(clips for _, clips in _totals(plan, step).values())


def exposures(plan: Plan, step: int, skipped: Iterable[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Return, per cell, how often the steps before `step` show its least and its most shown clip.

    `skipped`: (first step, step after the last) of each window of skipped steps, from 0; the windows do not
    touch and lie before `step`.
    """
    plan, windows = at_step(plan, step), tuple(skipped)
    turns = mixture.turns_before(plan.mixture, step * plan.micro_batches_per_step)
    found: list[tuple[int, int]] = []
    for cell, count in zip(plan.cells, turns, strict=True):
        if cell.resumed is None and not windows:
            shown = count * cell.micro_batch_size
            found.append((shown // len(cell.rows), -(-shown // len(cell.rows))))
            continue
        times = _times_shown(plan, cell.name, step)
        for first, behind in windows:
            for number, sign in ((behind, -1), (first, 1)):
                unread = _times_shown(plan, cell.name, number)
                times[: len(unread)] += sign * unread
        of_cell = stream_of(plan, cell)
        times = np.delete(times, np.union1d(of_cell.stream.dead, of_cell.missing))
        found.append((int(times.min()), int(times.max())))
    return found


def _times_shown(plan: Plan, name: str, step: int) -> epoch_shuffle.Ordinals:
    """Return how often the steps before `step` show each clip of a cell, by ordinal."""
    plan = at_step(plan, step)
    turns = mixture.turns_before(plan.mixture, step * plan.micro_batches_per_step)
    for cell, count in zip(plan.cells, turns, strict=True):
        if cell.name == name:
            of_cell = stream_of(plan, cell)
            place = (count + of_cell.skip) * cell.micro_batch_size
            return epoch_shuffle.times_shown(of_cell.stream, place)
    return epoch_shuffle.NONE


def steps_for_epochs(plan: Plan, epochs: float) -> int:
    """Return the fewest steps that show at least `epochs` x the number of clips: a stage's length."""
    wanted = epochs * plan.num_clips
    high = 1
    while clips_before(plan, high) < wanted:
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if clips_before(plan, middle) >= wanted else (middle + 1, high)
    return low


def rolling_hash(previous: str, clip_ids: Iterable[str]) -> str:
    """Return the hash of all clips up to a step, from the `previous` step's hash ("" at first) and its clips.

    `clip_ids` are the clips of the whole step in the order of positions. Two runs that log the same hash at
    a step have read the same clips in the same order up to there.
    """
    return rng.hash_text([previous, *clip_ids])
