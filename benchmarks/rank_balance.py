"""Rank balance of simulated ranks: how long the slowest takes, over the mean."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from vidcurate.sampler import mixture
from vidcurate.sampler import plan as sampler_plan

Assign = Callable[[sampler_plan.Plan, int, int], Sequence[Sequence[int]]]


def in_turn(plan: sampler_plan.Plan, step: int, ranks: int) -> list[range]:
    """Return each rank's positions as the published sampler assigns them: position i to rank i mod ranks."""
    first = step * plan.micro_batches_per_step
    return [range(first + rank, first + plan.micro_batches_per_step, ranks) for rank in range(ranks)]


def imbalance(
    plan: sampler_plan.Plan, seconds: Sequence[float], ranks: int, assign: Assign, steps: int
) -> float:
    """Return the mean over `steps` steps, spread over the stage, of the slowest rank's time over the mean."""
    slowest = mean = 0.0
    for number in range(steps):
        step = number * 37
        loads = [
            sum(seconds[mixture.stream_at(plan.mixture, position)[0]] for position in positions)
            for positions in assign(plan, step, ranks)
        ]
        slowest, mean = slowest + max(loads), mean + sum(loads) / ranks
    return slowest / mean


def larger(plan: sampler_plan.Plan, times: float) -> sampler_plan.Plan:
    """Return the plan with steps of so many times more micro-batches."""
    return dataclasses.replace(plan, micro_batches_per_step=round(plan.micro_batches_per_step * times))
