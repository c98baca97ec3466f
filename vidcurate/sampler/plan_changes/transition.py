"""Transition to another plan at a step: every cell resumes where it was.

`continue_with` switches to a new plan: clips added to or removed from a cell, other weights, sizes or M.
`with_removed_clips` keeps the plan, and fallback clips take the places of removed clips. Neither changes a
micro-batch before the step. The rows of both plans refer to one index; see `change_log`.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import StateError
from vidcurate.sampler import mixture, order
from vidcurate.sampler.plan import Cell, CellStream, Plan, Rows
from vidcurate.sampler.plan_changes import changed_stream
from vidcurate.sampler.shard_blocks import Blocks


def continue_with(before: Plan, after: Plan, step: int) -> Plan:
    """Return the plan that is `before` up to `step` and `after` from there on.

    A cell of both plans, matched by name, resumes its stream: unchanged when neither its clips nor its
    micro-batch size changed; else with a partial epoch of the clips not shown yet. The mixture is that of
    `after`, as if valid from step 0, so a curriculum is at the phase of its steps. Raises StateError when a
    cell would start or stop reading in blocks of shards.
    """
    step = max(step, before.first_step)
    turns = mixture.turns_before(after.mixture, step * after.micro_batches_per_step)
    return replace(
        after,
        cells=tuple(
            replace(cell, resumed=_resumed(before, after, cell, step, turn))
            for cell, turn in zip(after.cells, turns, strict=True)
        ),
        first_step=step,
        first_position=order.positions(before, step).start,
        before=before,
        num_rows=before.num_rows,
        gone=before.gone,
    )


def _resumed(before: Plan, after: Plan, cell: Cell, step: int, turn: int) -> CellStream:
    """Return the stream with which `cell` of `after`, which has `turn` turns before the step, resumes."""
    plan: Plan | None = before
    until = step
    while plan is not None:
        for number, old in enumerate(plan.cells):
            if old.name == cell.name:
                return _after(plan, number, until, cell, turn)
        until, plan = plan.first_step, plan.before
    return replace(order.stream_of(after, cell), skip=-turn)


def _after(plan: Plan, number: int, until: int, cell: Cell, turn: int) -> CellStream:
    """Return the stream with which `cell` resumes after the steps before `until` of cell `number`."""
    old = plan.cells[number]
    resumed = order.stream_of(plan, old)
    _check_blocks(resumed.stream.blocks, cell)
    turns = mixture.turns_before(plan.mixture, until * plan.micro_batches_per_step)[number]
    had = turns + resumed.skip
    live = _live(resumed)
    lost = live[~_among(resumed.rows[live], cell.rows)]
    removed = np.union1d(lost, resumed.missing)
    added = cell.rows[~_among(cell.rows, resumed.rows[live])]
    if not len(removed) and not len(added) and cell.micro_batch_size == old.micro_batch_size:
        return replace(resumed, skip=had - turn)
    stream = changed_stream.changed(
        resumed.stream,
        had * old.micro_batch_size,
        num_added=len(added),
        removed=removed,
        micro_batch_size=cell.micro_batch_size,
    )
    rows = np.concatenate([resumed.rows, added])
    return CellStream(stream=stream, rows=rows, skip=-turn)


def _check_blocks(begun: Blocks | None, cell: Cell) -> None:
    """Raise StateError when a cell would start or stop reading in blocks.

    A stream keeps its first blocks, so a new setting would have no effect.
    """
    before, now = (blocks.together if blocks else None for blocks in (begun, cell.blocks))
    if before != now:
        raise StateError(
            f"{cell.name}: the run uses data.blocks.blocks_together={before}, the recipe has {now}, and a "
            "run cannot change its blocks. Set the old value, or start a new order with --start-from-scratch."
        )


def _among(rows: Rows, others: Rows) -> NDArray[np.bool_]:
    """Return the mask of rows among the others; a lookup table is many times as fast as sorting."""
    return np.isin(rows, others, kind="table")


def _live(resumed: CellStream) -> Rows:
    """Return the ordinals of clips that are still there: neither dead nor missing."""
    return np.delete(np.arange(len(resumed.rows)), np.union1d(resumed.stream.dead, resumed.missing))


def with_removed_clips(before: Plan, removed: Rows, step: int) -> Plan | None:
    """Return the plan in which fallback clips replace the clips at rows `removed` from `step` on.

    Nothing else changes. None when a cell would have fewer clips left than a micro-batch holds.
    """
    step = max(step, before.first_step)
    cells: list[Cell] = []
    for cell in before.cells:
        rows = cell.rows[~_among(cell.rows, removed)]
        if len(rows) < cell.micro_batch_size:
            return None
        if len(rows) < len(cell.rows):
            resumed = order.stream_of(before, cell)
            live = _live(resumed)
            missing = np.union1d(resumed.missing, live[_among(resumed.rows[live], removed)])
            cell = replace(cell, rows=rows, resumed=replace(resumed, missing=missing))
        cells.append(cell)
    return replace(
        before,
        cells=tuple(cells),
        first_step=step,
        first_position=order.positions(before, step).start,
        before=before,
    )
