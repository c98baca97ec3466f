"""Optimizer settings of a stage and learning-rate schedules.

A learning rate is a pure function of the recipe and the step, so there is no schedule state to save or to
restart.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator
from pydantic.fields import FieldInfo

from vidcurate.recipe.recipe import Recipe

MOST_STEPS = 10**9  # of a warm-up or a cool-down; at ten steps a second, three years


@dataclass(frozen=True)
class _Check(AfterValidator):
    """Check of a number; `ge` and `le` tell the page of recipe keys its bounds."""

    ge: float = 0.0
    le: float = 0.0


def _between(least: float, most: float, why: str) -> tuple[AfterValidator, FieldInfo]:
    """Return the bounds of a number, with the reason that the refusal names."""

    def check(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(f"give {least:g} to {most:g}: {why}")
        return value

    extra: dict[str, JsonValue] = {"minimum": least, "maximum": most}
    return _Check(check, ge=least, le=most), Field(json_schema_extra=extra)


_MOVES = "AdamW moves each weight by about this much a step"
LearningRate = Annotated[float, *_between(1e-12, 1.0, _MOVES)]
EndRate = Annotated[float, *_between(0.0, 1.0, _MOVES)]
Decay = Annotated[float, *_between(0.0, 10.0, "a step takes lr times this share of each weight away")]
Beta = Annotated[float, *_between(0.0, 1 - 1e-6, "it averages over 1 / (1 - beta) steps, in float32")]
Epsilon = Annotated[float, *_between(1e-20, 1.0, "it is added to the root of a squared gradient, in float32")]
Norm = Annotated[float, *_between(1e-6, 1e6, "a gradient's norm is near 1")]
Ratio = Annotated[float, *_between(1e-3, 1e3, "it multiplies lr")]
RampSteps = Annotated[int, *_between(0, MOST_STEPS, "no run lasts longer")]


class OptimSpec(Recipe):
    """How one stage changes the weights. Steps are counted from the stage's beginning.

    `schedule` is `constant` (after the warm-up), `cosine` (down to `min_lr` at the stage's end) or `bump`
    (from `min_lr` up to `max_lr` at `warmup_steps`, down to `lr` over `cooldown_steps`, then constant).
    """

    lr: LearningRate = 1e-4
    """learning rate after the warm-up"""
    schedule: Literal["constant", "cosine", "bump"] = "constant"
    """constant, cosine, or bump (up to max_lr, down to lr, then constant)"""
    warmup_steps: RampSteps = 0
    """steps of the warm-up"""
    cooldown_steps: RampSteps = 0
    """steps from max_lr down to lr, with bump"""
    min_lr: EndRate = 0.0
    """where bump begins and cosine ends"""
    max_lr: LearningRate | None = None
    """top of bump"""
    weight_decay: Decay = 0.0
    """decay of every trained tensor, as published"""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's two decays"""
    eps: Epsilon = 1e-8
    """AdamW's epsilon"""
    grad_clip: Norm | None = 1.0
    """largest norm of the gradient; null: no limit"""
    muon: Ratio | None = None
    """update the blocks' matrices by Muon, the rest by AdamW: the matrices' learning rate over the rest's,
    such as 1.0; null: AdamW updates all"""

    @model_validator(mode="after")
    def _words_fit_the_schedule(self) -> Self:
        if self.schedule == "bump":
            if self.max_lr is None or self.warmup_steps < 1 or self.cooldown_steps < 1:
                raise ValueError(
                    "the schedule bump needs max_lr, and warmup_steps and cooldown_steps of at least 1"
                )
            if not self.min_lr <= self.lr <= self.max_lr:
                raise ValueError(
                    "the schedule bump needs min_lr <= lr <= max_lr; "
                    f"they are {self.min_lr:g}, {self.lr:g}, {self.max_lr:g}"
                )
            return self
        if self.max_lr is not None or self.cooldown_steps:
            raise ValueError(f"max_lr and cooldown_steps belong to the schedule bump, not to {self.schedule}")
        if self.min_lr and self.schedule == "constant":
            raise ValueError("min_lr belongs to the schedules cosine and bump, not to constant")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr is {self.min_lr:g}; it must not be above lr, {self.lr:g}")
        return self


def _ease(start: float, end: float, part: float) -> float:
    """Return the half cosine from `start` (part 0) to `end` (part 1)."""
    return start + (end - start) * (1 - math.cos(math.pi * part)) / 2


def learning_rate(spec: OptimSpec, step: int, num_steps: int) -> float:
    """Return the learning rate of update number `step` (from 0) of a stage of `num_steps` updates.

    The linear warm-up is lr·(step+1)/(warmup_steps+1), as in Open-Sora 1.2, so the first update is not lost.
    `bump` is the published 1-cycle of the 28k-hour run (min_lr at 0, max_lr at warmup_steps).
    """
    if spec.schedule == "bump":
        assert spec.max_lr is not None
        if step < spec.warmup_steps:
            return _ease(spec.min_lr, spec.max_lr, step / spec.warmup_steps)
        part = min(1.0, (step - spec.warmup_steps) / spec.cooldown_steps)
        return _ease(spec.max_lr, spec.lr, part)
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / (spec.warmup_steps + 1)
    if spec.schedule == "cosine":
        part = (step - spec.warmup_steps) / max(1, num_steps - spec.warmup_steps)
        return _ease(spec.lr, spec.min_lr, min(1.0, part))
    return spec.lr
