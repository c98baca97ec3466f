"""What a plan amounts to on so many ranks: `python -m trainer.plan simulate`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.data import StageData, micro_batches
from trainer.planned import Planned
from vidcurate import decode_cost, order, plan_figures

PREFIXES = (1, 10, 100, 1_000, 10_000, 100_000)  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """For how many ranks, and what is known of their speed.

    `step_seconds`: None is not known. `clips_per_core_second`: what one core decodes; None: it is measured on
    `measure` clips of each cell, on none where that is 0. `most_steps` of a stage are dealt to the ranks,
    spread over it.
    """

    worlds: Sequence[int]
    step_seconds: float | None
    clips_per_core_second: float | None
    measure: int
    most_steps: int


def report(found: Planned, asked: Asked) -> dict[str, Any]:
    """Return the figures of every stage."""
    return {
        "name": found.recipe.name,
        "steps": found.num_steps,
        "step_seconds": asked.step_seconds,
        "stages": [_stage(stage, asked) for stage in found.stages],
    }


def _stage(stage: StageData, asked: Asked) -> dict[str, Any]:
    plan, last = stage.plan, stage.num_steps
    sample = plan_figures.steps_spread(0, last - 1, asked.most_steps)
    shown = plan_figures.mix(plan, last)
    counts = micro_batches(stage)
    cells = [
        {
            "name": cell.name,
            "clips": len(cell.rows),
            "clips_per_micro_batch": cell.micro_batch_size,
            "asked": share.asked,
            "given": share.given,
            "exposures": exposure,
            "cut_away": plan_figures.cut_away(stage.index, cell),
            "frames_used": plan_figures.frames_used(stage.index, cell),
        }
        for cell, share, exposure in zip(
            order.at_step(plan, last).cells, shown, order.exposures(plan, last), strict=True
        )
    ]
    return {
        "stage": stage.stage.name,
        "steps": last,
        "micro_batches_per_step": plan.micro_batches_per_step,
        "clips": plan.num_clips,
        "clips_a_step": order.clips_before(plan, last) / last,
        "steps_per_pass": plan_figures.steps_per_pass(plan),
        "phases": [stage.first_step + first + 1 for first in plan.phases],
        "mix": [_at(stage, step) for step in sorted(_prefixes(stage))],
        "cells": cells,
        "worlds": [_world(stage, sample, world) for world in asked.worlds],
        "decoding": None if stage.folder else _decoding(stage, counts, asked),
    }


def _world(stage: StageData, sample: Sequence[int], world_size: int) -> dict[str, Any]:
    """Return how evenly ranks share the steps, and the seconds of their micro-batches by a cost table."""
    found = plan_figures.balance(stage.plan, sample, world_size)
    seconds = None
    if stage.stage.data.buckets.cost_table is not None:
        seconds = {"mean_rank": 1e-6 * found.cost, "slowest_rank": 1e-6 * found.slowest_cost}
    return asdict(found) | {"seconds": seconds}


def _prefixes(stage: StageData) -> set[int]:
    """Return after how many steps the mixture is looked at: round numbers, a curriculum's phases, the end."""
    last = stage.num_steps
    return {step for step in (*PREFIXES, *stage.plan.phases) if 0 < step < last} | {last}


def _at(stage: StageData, step: int) -> dict[str, Any]:
    """Return asked and given of each group of cells after a step, and how far off the worst cell is."""
    shares = plan_figures.mix(stage.plan, step)
    total = max(1, sum(share.given for share in shares))
    groups: dict[str, list[float]] = {}
    for share in shares:
        group = groups.setdefault(share.cell.partition("/")[0], [0.0, 0.0])
        group[0] += share.asked / total
        group[1] += share.given / total
    return {
        "step": stage.first_step + step,
        "groups": {name: {"asked": asked, "given": given} for name, (asked, given) in groups.items()},
        "largest_error": max(abs(share.asked - share.given) for share in shares),
    }


def _decoding(stage: StageData, counts: Sequence[int], asked: Asked) -> dict[str, Any] | None:
    """Return the core seconds of a mean step and, with its seconds, the cores that keep up; None: unknown."""
    cells = order.at_step(stage.plan, stage.num_steps).cells
    if asked.clips_per_core_second:
        seconds = {cell.name: 1 / asked.clips_per_core_second for cell in cells}
    elif asked.measure:
        seconds = decode_cost.decode_seconds(stage.index, stage.plan, asked.measure)
    else:
        return None
    a_step = sum(
        count * cell.micro_batch_size * seconds.get(cell.name, 0.0)
        for cell, count in zip(cells, counts, strict=True)
    )
    a_step /= stage.num_steps
    return {
        "measured_here": not asked.clips_per_core_second,
        "core_seconds_a_clip": seconds,
        "core_seconds_a_step": a_step,
        "cores": a_step / asked.step_seconds if asked.step_seconds else None,
    }
