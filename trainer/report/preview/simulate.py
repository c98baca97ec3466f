"""Plan simulation: balance, mixture and decoding for given numbers of ranks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.data.open_stage import micro_batches
from trainer.data.stages import StageData, cost_unit, data_step, summary, unread
from trainer.report.preview.stages import RunStages
from vidcurate.loader.decode import decode_cost
from vidcurate.sampler import order, plan_stats

PREFIXES = (1, 10, 100, 1_000, 10_000, 100_000)  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Numbers of ranks to simulate, and their known speed.

    `step_seconds`: None if unknown. `clips_per_core_second`: what one core decodes; None: measure `measure`
    clips of each cell (0: none). `most_steps` of a stage are assigned to ranks, spread over the stage.
    """

    worlds: Sequence[int]
    step_seconds: float | None
    clips_per_core_second: float | None
    measure: int
    most_steps: int


def report(found: RunStages, asked: Asked) -> dict[str, Any]:
    """Return the statistics of every stage, without skipped data steps."""
    return {
        "name": found.recipe.name,
        "steps": found.num_steps,
        "step_seconds": asked.step_seconds,
        "stages": [_stage(stage, asked) for stage in found.stages],
    }


def _stage(stage: StageData, asked: Asked) -> dict[str, Any]:
    plan, last = stage.plan, stage.num_steps
    end = data_step(stage, last)
    sample = [data_step(stage, step) for step in plan_stats.steps_spread(0, last - 1, asked.most_steps)]
    shown = _mix(stage, last)
    counts = micro_batches(stage)
    read_clips = sum(
        count * cell.micro_batch_size
        for cell, count in zip(order.at_step(plan, end).cells, counts, strict=True)
    )
    cells = [
        {
            "name": cell.name,
            "clips": len(cell.rows),
            "clips_per_micro_batch": cell.micro_batch_size,
            "asked": share.asked,
            "given": share.given,
            "exposures": exposure,
            "cut_away": plan_stats.cropped_share(stage.index, cell),
            "frames_used": plan_stats.frames_used(stage.index, cell),
        }
        for cell, share, exposure in zip(
            order.at_step(plan, end).cells,
            shown,
            order.exposures(plan, end, unread(stage, end)),
            strict=True,
        )
    ]
    return {
        "stage": stage.stage.name,
        "steps": last,
        "micro_batches_per_step": plan.micro_batches_per_step,
        "clips": plan.num_clips,
        "clips_a_step": read_clips / last,
        "steps_per_pass": plan_stats.steps_per_epoch(plan),
        "phases": summary(stage)["phases"],
        "mix": [_at(stage, step) for step in sorted(_prefixes(stage))],
        "cells": cells,
        "worlds": [_world(stage, sample, world) for world in asked.worlds],
        "decoding": None if stage.folder else _decoding(stage, counts, asked),
    }


def _world(stage: StageData, sample: Sequence[int], world_size: int) -> dict[str, Any]:
    """Return how evenly ranks share the steps, and the seconds of their micro-batches by a cost table."""
    found = plan_stats.balance(stage.plan, sample, world_size)
    unit, scale = cost_unit(stage, stage.plan)
    seconds = None
    if unit == "s":
        seconds = {"mean_rank": scale * found.cost, "slowest_rank": scale * found.slowest_cost}
    return asdict(found) | {"seconds": seconds}


def _prefixes(stage: StageData) -> set[int]:
    """Return the steps at which to check the mixture: round numbers, curriculum phases, the end."""
    last = stage.num_steps
    phases = [first - 1 - stage.first_step for first in summary(stage)["phases"]]
    return {step for step in (*PREFIXES, *phases) if 0 < step < last} | {last}


def _mix(stage: StageData, updates: int) -> tuple[plan_stats.CellShare, ...]:
    """Return requested and given shares of the first updates, without skipped data steps."""
    end = data_step(stage, updates)
    return plan_stats.cell_shares(stage.plan, end, unread(stage, end))


def _at(stage: StageData, step: int) -> dict[str, Any]:
    """Return requested and given shares of each group of cells after a step, and the worst cell's error."""
    shares = _mix(stage, step)
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
    """Return the core seconds of a mean step and, with its seconds, the number of cores; None: unknown."""
    cells = order.at_step(stage.plan, data_step(stage, stage.num_steps)).cells
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
