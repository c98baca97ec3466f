"""Step balance: predicted and measured time per rank and bucket.

The prediction uses the costs that assign micro-batches to ranks (`order.shares`): seconds from the recipe's
`cost_table`, or else FLOPs of forward and backward. Each micro-batch is timed where it runs, so a wrong cost
shows at its bucket, with one rank too. `python -m trainer report` shows both.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import stages as data_stages
from trainer.data.stages import StageData, StepPlan
from trainer.health.watch.throughput import OwnSeconds
from vidcurate.sampler import order

KEPT_RANKS = 64
"""number of ranks whose own values a metrics line lists; mean and maximum are over all ranks"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted cost of a step in `unit` (s or TFLOP): per micro-batch position, and per rank."""

    unit: str
    of_positions: dict[int, float]
    of_ranks: tuple[float, ...]


def predict(stage: StageData, stage_step: int, world_size: int) -> Prediction:
    """Return the predicted cost of the stage's update `stage_step` (from 0) on `world_size` ranks."""
    step = data_stages.data_step(stage, stage_step)
    plan = order.at_step(stage.plan, step)
    unit, scale = data_stages.cost_unit(stage, plan)
    costs = plan.costs or tuple(cell.cost for cell in plan.cells)
    of_positions = {
        position: scale * costs[order.cell_at(plan, position)[0]] for position in order.positions(plan, step)
    }
    return Prediction(
        unit=unit,
        of_positions=of_positions,
        of_ranks=tuple(
            sum(of_positions[position] for position in own) for own in order.shares(plan, step, world_size)
        ),
    )


def step_metrics(
    found: Prediction, plan: StepPlan, seconds: NDArray[np.float64], own: Sequence[OwnSeconds]
) -> dict[str, Any]:
    """Return the balance fields of a metrics line.

    `seconds` [n]: time of each clip's micro-batch. `bucket_seconds` has, per bucket, the number of
    micro-batches and clips, their predicted cost (in `cost_unit`) and their seconds. `rank_balance`, with
    several ranks, has mean and maximum of both over the ranks, and both values of the first ranks.
    """
    slots = list(plan.slots.items())
    ends = [first for _, first in slots[1:]] + [len(plan.clip_ids)]
    buckets: dict[str, list[float]] = {}
    for (position, first), end in zip(slots, ends, strict=True):
        sums = buckets.setdefault(plan.buckets[first], [0, 0, 0.0, 0.0])
        added = (1, end - first, found.of_positions[position], float(seconds[first]))
        sums[:] = [one + other for one, other in zip(sums, added, strict=True)]
    line: dict[str, Any] = {
        "cost_unit": found.unit,
        "bucket_seconds": {name: [_short(value) for value in sums] for name, sums in sorted(buckets.items())},
    }
    if len(own) > 1:
        took = [one.compute for one in own]
        line["rank_balance"] = {
            "ranks": len(own),
            "predicted": [_short(statistics.fmean(found.of_ranks)), _short(max(found.of_ranks))],
            "measured": [_short(statistics.fmean(took)), _short(max(took))],
            "of_ranks": [
                [_short(cost), _short(each)]
                for cost, each in itertools.islice(zip(found.of_ranks, took, strict=True), KEPT_RANKS)
            ],
        }
    return line


def _short(value: float) -> float:
    return float(f"{value:.6g}")
