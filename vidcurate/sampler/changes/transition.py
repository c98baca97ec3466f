"""One plan after another: from a step on the order is another one, and every cell goes on where it was.

`gone_on` takes up a new plan: clips that are new to a cell and clips that it lost, other weights, sizes or M.
`with_gaps` keeps the plan and only lets spares take the places of clips that were removed. Both leave every
micro-batch before the step as it was. The rows of both plans count in one index; see `journal`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import StateError
from vidcurate.sampler import epoch_shuffle, mixture, order
from vidcurate.sampler.plan import Cell, Past, Plan, Rows
from vidcurate.sampler.shard_blocks import Blocks


def continue_with(before: Plan, after: Plan, step: int) -> Plan:
    """Return the plan that is `before` up to `step` and `after` from there on.

    A cell that both have, by name, goes on in its stream: where neither its clips nor its micro-batch size
    changed, as if nothing had happened; else with a lead of what it has not shown yet. Its mixture is that of
    `after` as if it had been in force from step 0, so a curriculum is where its steps say. Raises StateError
    where a cell would begin or cease to be read in blocks of shards.
    """
    step = max(step, before.first_step)
    turns = mixture.turns_before(after.mixture, step * after.micro_batches_per_step)
    return replace(
        after,
        cells=tuple(
            replace(cell, past=_past(before, after, cell, step, turn))
            for cell, turn in zip(after.cells, turns, strict=True)
        ),
        first_step=step,
        first_position=order.positions(before, step).start,
        before=before,
        num_rows=before.num_rows,
        gone=before.gone,
    )


def _past(before: Plan, after: Plan, cell: Cell, step: int, turn: int) -> Past:
    """Return where `cell` of `after` goes on, whose mixture gives it `turn` turns before the step."""
    plan: Plan | None = before
    until = step
    while plan is not None:
        for number, old in enumerate(plan.cells):
            if old.name == cell.name:
                return _after(plan, number, until, cell, turn)
        until, plan = plan.first_step, plan.before
    stream = order.stream_of(after, cell)
    return Past(stream=stream, rows=cell.rows, skip=-turn, missing=epoch_shuffle.NONE)


def _after(plan: Plan, number: int, until: int, cell: Cell, turn: int) -> Past:
    """Return where `cell` goes on after what cell `number` of `plan` showed in the steps before `until`."""
    old = plan.cells[number]
    past = consumed(plan, old)
    _check_blocks(past.stream.blocks, cell)
    turns = mixture.turns_before(plan.mixture, until * plan.micro_batches_per_step)[number]
    had = turns + past.skip
    live = _live(past)
    lost = live[~_among(past.rows[live], cell.rows)]
    removed = np.union1d(lost, past.missing)
    added = cell.rows[~_among(cell.rows, past.rows[live])]
    if not len(removed) and not len(added) and cell.micro_batch_size == old.micro_batch_size:
        return replace(past, skip=had - turn)
    stream = epoch_shuffle.changed(
        past.stream,
        had * old.micro_batch_size,
        num_added=len(added),
        removed=removed,
        micro_batch_size=cell.micro_batch_size,
    )
    rows = np.concatenate([past.rows, added])
    return Past(stream=stream, rows=rows, skip=-turn, missing=epoch_shuffle.NONE)


def _check_blocks(begun: Blocks | None, cell: Cell) -> None:
    """Raise StateError for a cell that would now read in blocks and did not, or the other way round.

    A stream keeps the blocks that it began with, so the setting would be without effect.
    """
    before, now = (blocks.together if blocks else None for blocks in (begun, cell.blocks))
    if before != now:
        raise StateError(
            f"{cell.name} has been read with data.blocks.blocks_together={before} and the recipe has {now}; "
            "a run keeps the blocks that it began with. Set them back, or begin anew with "
            "--start-from-scratch."
        )


def consumed(plan: Plan, cell: Cell) -> Past:
    """Return what a cell goes on with, of a cell that nothing has happened to, too."""
    return cell.past or Past(
        stream=order.stream_of(plan, cell), rows=cell.rows, skip=0, missing=epoch_shuffle.NONE
    )


def _among(rows: Rows, others: Rows) -> NDArray[np.bool_]:
    """Return which rows are among the others; a table of bits is many times as fast as sorting."""
    return np.isin(rows, others, kind="table")


def _live(past: Past) -> Rows:
    """Return the ordinals that are neither dead nor missing."""
    return np.delete(np.arange(len(past.rows)), np.union1d(past.stream.dead, past.missing))


def with_removed_clips(before: Plan, removed: Rows, step: int) -> Plan | None:
    """Return the plan in which from `step` on spares fill the places of the clips at the rows `removed`.

    Nothing else changes. None when a cell would have fewer clips left than a micro-batch holds.
    """
    step = max(step, before.first_step)
    cells: list[Cell] = []
    for cell in before.cells:
        rows = cell.rows[~_among(cell.rows, removed)]
        if len(rows) < cell.micro_batch_size:
            return None
        if len(rows) < len(cell.rows):
            past = consumed(before, cell)
            live = _live(past)
            missing = np.union1d(past.missing, live[_among(past.rows[live], removed)])
            cell = replace(cell, rows=rows, past=replace(past, missing=missing))
        cells.append(cell)
    return replace(
        before,
        cells=tuple(cells),
        first_step=step,
        first_position=order.positions(before, step).start,
        before=before,
    )


def moved(plan: Plan, place: Rows, num_rows: int, gone: tuple[str, ...]) -> Plan:
    """Return a plan whose clips lie at other rows: row i at `place[i]`, from `num_rows` on those `gone`."""
    return replace(
        plan,
        cells=tuple(replace(cell, rows=place[cell.rows]) for cell in plan.cells),
        left_out={},
        num_rows=num_rows,
        gone=gone,
    )
