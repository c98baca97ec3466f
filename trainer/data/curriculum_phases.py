"""Curriculum phases of a stage: the updates at which they start.

A phase inside a skipped window (skipped on purpose, or by a rollback) is logged and left out. A phase that a
stage is too short to reach is refused.
"""

from typing import Any

from trainer.recipe import skip_windows
from trainer.recipe.recipe import Stage
from trainer.recipe.skip_windows import Windows
from vidcurate.errors import RecipeError
from vidcurate.sampler.plan import Plan


def skipped(plan: Plan, skip: Windows) -> dict[int, tuple[int, int]]:
    """Return number → first and last data step, from 1, of the phases that are skipped entirely.

    The last phase has no end, so it is never skipped entirely.
    """
    ends = zip(plan.phases, plan.phases[1:], strict=False)
    return {
        number: (first + 1, end)
        for number, (first, end) in enumerate(ends)
        if any(begin <= first + 1 and end <= last for begin, last in skip_windows.merged(skip))
    }


def first_updates(plan: Plan, skip: Windows) -> dict[int, int]:
    """Return number → the stage's update, from 1, at which each phase that is read starts."""
    left_out = skipped(plan, skip)
    return {
        number: skip_windows.steps_before(skip, first + 1) + 1
        for number, first in enumerate(plan.phases)
        if number not in left_out
    }


def check(stage: Stage, plan: Plan, num_steps: int) -> None:
    """Raise RecipeError for a phase that the stage is too short to reach."""
    for number, first in first_updates(plan, stage.skip).items():
        if first > num_steps:
            raise RecipeError(
                f"stage {stage.name}: curriculum.{number} starts at step {first} and the stage has "
                f"{num_steps}. Make the stage longer, or the earlier phases shorter."
            )


def notes(plan: Plan, skip: Windows) -> list[dict[str, Any]]:
    """Return the skipped phases, as events."""
    return [
        {"event": "phase_skipped", "phase": f"curriculum.{number}", "data_steps": list(steps)}
        for number, steps in skipped(plan, skip).items()
    ]
