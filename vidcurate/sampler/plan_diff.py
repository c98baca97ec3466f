"""Plan diff: clips, cells and the first step that differ between two plans.

`index_diff` compares the indexes. A clip of both indexes differs when its cell, or its reason for being left
out, differs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from vidcurate.sampler import order
from vidcurate.sampler.plan import Plan
from vidcurate.shards import index_diff
from vidcurate.shards.index import Index

NAMED = 10  # most clip ids listed for each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """Number of clips, and the first ids."""

    count: int
    clip_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Clips that moved between cells; a reason in brackets stands for clips without a cell."""

    old: str
    new: str
    clips: Clips


@dataclass(frozen=True, slots=True, kw_only=True)
class CellChange:
    """Cell of either plan, (old, new); None where it does not exist. `share`: of the first micro-batches."""

    name: str
    clips: tuple[int | None, int | None]
    micro_batch_size: tuple[int | None, int | None]
    share: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """Difference of two plans. `first_step` (from 0) reads other clips; None: no compared step does."""

    added: Clips
    removed: Clips
    edited: Clips
    reshaped: Clips
    moved: tuple[Move, ...]
    cells: tuple[CellChange, ...]
    first_step: int | None
    steps_compared: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_plans(old: tuple[Index, Plan], new: tuple[Index, Plan], steps: int) -> PlanDifference:
    """Return how `new` differs from `old`; compares the order of the first `steps` steps."""
    (old_index, old_plan), (new_index, new_plan) = old, new
    found = index_diff.compare_indexes(old_index, new_index)
    return PlanDifference(
        added=_clips(new_index, found.added),
        removed=_clips(old_index, found.removed),
        edited=_clips(new_index, found.edited),
        reshaped=_clips(new_index, found.reshaped),
        moved=_moved(old, new),
        cells=_cells(old_plan, new_plan),
        first_step=_first_step(old, new, steps),
        steps_compared=steps,
    )


def _clips(index: Index, rows: NDArray[np.int64]) -> Clips:
    return Clips(count=len(rows), clip_ids=tuple(index_diff.clip_ids(index, rows[:NAMED])))


def _places(index: Index, plan: Plan) -> tuple[NDArray[np.int32], list[str]]:
    """Return the cell (or reason) number of every row of the index, and the names."""
    names = ["(not asked for)"]
    place = np.zeros(len(index), dtype=np.int32)
    for name, rows in (
        *((f"({reason})", rows) for reason, rows in plan.left_out.items()),
        *((cell.name, cell.rows) for cell in plan.cells),
    ):
        place[rows[rows < len(index)]] = len(names)  # rows beyond the index are removed clips
        names.append(name)
    return place, names


def _moved(old: tuple[Index, Plan], new: tuple[Index, Plan]) -> tuple[Move, ...]:
    (old_place, old_names), (new_place, new_names) = _places(*old), _places(*new)
    partner = pc.index_in(new[0].words("clip_id"), old[0].words("clip_id"))
    row = pc.fill_null(partner, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    both = np.flatnonzero(row >= 0)
    renumbered = np.array([new_names.index(n) if n in new_names else -1 for n in old_names])
    before, after = old_place[row[both]], new_place[both]
    changed = np.flatnonzero(renumbered[before] != after)
    pairs, which = np.unique(np.stack([before[changed], after[changed]]), axis=1, return_inverse=True)
    moves = [
        Move(old=old_names[a], new=new_names[b], clips=_clips(new[0], both[changed[which.ravel() == number]]))
        for number, (a, b) in enumerate(pairs.T.tolist())
    ]
    return tuple(sorted(moves, key=lambda move: -move.clips.count))


def _facts(plan: Plan) -> dict[str, tuple[int, int, float]]:
    (_, weights), *_ = plan.mixture.spans[0].pieces
    return {
        cell.name: (len(cell.rows), cell.micro_batch_size, weight / sum(weights))
        for cell, weight in zip(plan.cells, weights, strict=True)
    }


def _cells(old: Plan, new: Plan) -> tuple[CellChange, ...]:
    before, after = _facts(old), _facts(new)
    nothing: tuple[int | None, int | None, float | None] = (None, None, None)
    changes: list[CellChange] = []
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name, nothing), after.get(name, nothing)
        if one != other:
            changes.append(
                CellChange(
                    name=name,
                    clips=(one[0], other[0]),
                    micro_batch_size=(one[1], other[1]),
                    share=(one[2], other[2]),
                )
            )
    return tuple(changes)


def _first_step(old: tuple[Index, Plan], new: tuple[Index, Plan], steps: int) -> int | None:
    return next((step for step in range(steps) if _read(*old, step) != _read(*new, step)), None)


def _read(index: Index, plan: Plan, step: int) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the bucket and the clips of every micro-batch of a step."""
    now = order.at_step(plan, step)
    return [
        (now.cells[part.cell].bucket.name, _ids(index, now, part.rows))
        for part in order.step_micro_batches(plan, step)
    ]


def _ids(index: Index, plan: Plan, rows: NDArray[np.int64]) -> Sequence[str]:
    if rows.max() < len(index):
        return index_diff.clip_ids(index, rows)
    return [
        index.word("clip_id", row) if row < len(index) else plan.gone[row - plan.num_rows]
        for row in rows.tolist()
    ]
