"""Loss-spike and divergence detection, by robust statistics of the previous steps.

`spike_scores` compares a step's losses with the history; this file turns scores, gradient norms, learning
rate and weight norms into findings, and adds a step to the history.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.recipe.guard_spec import SUSPICIOUS_STEPS, Kind, Thresholds
from trainer.training.guard.history import (
    CELL_VALUES,
    CHANGES,
    DIGITS,
    GRADIENTS,
    LOUD_STEPS,
    SCORES,
    Smoothed,
    StageHistory,
    StepStats,
    keep,
)
from trainer.training.guard.spike_scores import (
    LEAST_SCORES,
    LEAST_SPREAD,
    clip_scores,
    logarithms,
    scores,
    spread,
)
from vidcurate.errors import counted

LEAST_GRADIENTS = 32
LEAST_CHANGES = 8
LOUD = 0.5  # of the threshold: the step is remembered as loud
QUIET_STEPS = 3  # at most, between two loud steps of one problem
DIVERGING = 1.5  # median score of the last steps: the loss was rising before
SAME = 1e-6  # relative difference below which two learning rates are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding. `shape` separates similar ones, such as an instant spike and one of a divergence.

    `first_step`: the first suspicious step, counted from 1. `clips`: positions among the step's clips.
    """

    kind: Kind
    reason: str
    first_step: int
    shape: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    clips: tuple[int, ...] = ()


# ── findings before the update ──────────────────────────────────────────────────────────────────────────────


def find_problems(memory: StageHistory, stats: StepStats, limits: Thresholds) -> tuple[Problem, ...]:
    """Return the findings about a step before its update."""
    if not stats.is_finite:
        return (_nonfinite(stats),)
    found = [_spike(memory, stats, limits), _gradient(memory, stats, limits)]
    found.append(_divergence(memory, limits))
    return tuple(each for each in found if each is not None)


def _nonfinite(stats: StepStats) -> Problem:
    places = tuple(np.flatnonzero(~np.isfinite(stats.losses)).tolist())
    ranks = [rank for rank, norm in enumerate(stats.rank_norms) if not math.isfinite(norm)]
    bad = f"the loss of {counted(len(places), 'clip')}" if places else "the gradient"
    where = f", of rank {', '.join(map(str, ranks))}" if ranks else ""
    return Problem(
        kind="nonfinite",
        reason=f"{bad} is not finite{where}",
        first_step=stats.step,
        figures={
            "loss": float(np.mean(stats.losses)),
            "grad_norm": stats.grad_norm,
            "rank_norms": list(stats.rank_norms),
            "ranks": ranks,
        },
        clips=places,
    )


def _spike(memory: StageHistory, stats: StepStats, limits: Thresholds) -> Problem | None:
    over = [
        score
        for score in scores(memory, stats)
        if score.z >= limits.spike_z and score.ratio >= limits.spike_ratio
    ]
    if not over:
        return None
    worst = max(over, key=lambda score: score.z)
    each, _ = clip_scores(memory, stats)
    places = sorted(worst.clips, key=lambda place: -each[place])
    is_diverging = _is_diverging(memory, limits)
    return Problem(
        kind="spike",
        reason=f"the loss{f' of {worst.name}' if worst.name else ''} is {worst.ratio:.3g} times what its "
        f"buckets and timesteps had (z {worst.z:.1f}); "
        + (
            "the loss was rising before: such a spike seldom recovers"
            if is_diverging
            else "the spike came at once: such a spike tends to recover"
        ),
        first_step=first_suspicious(memory, stats.step),
        shape="diverging" if is_diverging else "instant",
        figures={
            "z": round(worst.z, 2),
            "ratio": round(worst.ratio, 4),
            "bucket": worst.name or None,
            "loss": float(np.mean(stats.losses)),
            "grad_norm": stats.grad_norm,
        },
        clips=tuple(place for place in places if each[place] >= 3.0) or tuple(places[:1]),
    )


def _is_diverging(memory: StageHistory, limits: Thresholds) -> bool:
    """Return whether the loss was rising before this step, by the last scores or the smoothed loss."""
    last = memory.scores.get("", [])[-LEAST_SCORES:]
    if len(last) == LEAST_SCORES and float(np.median(last)) >= DIVERGING:
        return True
    rise, error, _ = rise_of(memory, limits)
    return rise >= 0.5 * math.log1p(limits.divergence_rise) and rise >= limits.divergence_z * error > 0


def first_suspicious(memory: StageHistory, step: int) -> int:
    """Return where the problem of `step` begins: loud steps with few quiet ones between them."""
    first = step
    for loud, _ in sorted(memory.loud, reverse=True):
        if loud >= step:
            continue
        if first - loud > QUIET_STEPS + 1 or step - loud > SUSPICIOUS_STEPS:
            break
        first = loud
    return first


def _gradient(memory: StageHistory, stats: StepStats, limits: Thresholds) -> Problem | None:
    past = np.array(memory.gradients)
    if len(past) < LEAST_GRADIENTS or stats.grad_norm <= 0:
        return None
    middle, deviation = spread(past)
    over = math.log(stats.grad_norm) - middle
    z = over / max(deviation, LEAST_SPREAD)
    if z < limits.gradient_z or over < math.log(limits.gradient_ratio):
        return None
    return Problem(
        kind="gradient",
        reason=f"the gradient's norm is {stats.grad_norm:.3g}, {math.exp(over):.3g} times its median "
        f"(z {z:.1f})",
        first_step=first_suspicious(memory, stats.step),
        figures={
            "z": round(z, 2),
            "ratio": round(math.exp(over), 4),
            "grad_norm": stats.grad_norm,
            "rank_norms": list(stats.rank_norms),
        },
    )


def rise_of(memory: StageHistory, limits: Thresholds) -> tuple[float, float, int]:
    """Return how far the smoothed loss is above its best (log), its standard error, and since which step.

    Each bucket is smoothed separately, by the median of the last `divergence_window` steps that read it, so a
    changed mixture is no rise. The rises of all buckets are averaged.
    """
    rises, errors, begins = [], [], []
    for smooth in memory.smoothed.values():
        if smooth.best is None or len(smooth.values) < limits.divergence_window:
            continue
        now, deviation = spread(np.array(smooth.values))
        rises.append(now - smooth.best)
        # Of a median of n values: 1.2533 σ/√n; of the difference of two of them √2 as much.
        errors.append(1.2533 * math.sqrt(2) * deviation / math.sqrt(len(smooth.values)))
        begins.append(smooth.best_step)
    if not rises:
        return 0.0, 0.0, 0
    error = math.sqrt(sum(value * value for value in errors)) / len(errors)
    return float(np.mean(rises)), error, begins[int(np.argmax(rises))]


def _divergence(memory: StageHistory, limits: Thresholds) -> Problem | None:
    rise, error, since = rise_of(memory, limits)
    if rise < math.log1p(limits.divergence_rise) or rise < limits.divergence_z * error:
        return None
    quarter = limits.divergence_window // 4
    full = [each.values for each in memory.smoothed.values() if len(each.values) >= limits.divergence_window]
    continuing = float(np.mean([np.median(each[-quarter:]) - np.median(each) for each in full]))
    if continuing < -error:
        return None  # falling again
    after_spike = since < memory.spike_step
    how = (
        f"after the spike of step {memory.spike_step}, which did not recover"
        if after_spike
        else "slowly, without a spike before: such a rise seldom recovers"
    )
    return Problem(
        kind="divergence",
        reason=f"the smoothed loss is {math.exp(rise):.3g} times its best, of step {since}; it rose {how}",
        first_step=max(1, since),
        shape="after_spike" if after_spike else "slow",
        figures={
            "rise": round(math.expm1(rise), 4),
            "z": round(rise / error, 2) if error else None,
            "since": since,
        },
    )


# ── findings around the update ──────────────────────────────────────────────────────────────────────────────


def learning_rate(step: int, last: float | None, of_schedule: float) -> Problem | None:
    """Return a finding if the last update's learning rate differs from the current schedule's for it."""
    if last is None or abs(last - of_schedule) <= SAME * max(abs(last), abs(of_schedule)):
        return None
    return Problem(
        kind="lr",
        reason=f"the last update used the learning rate {last:.6g}; the current schedule gives "
        f"{of_schedule:.6g}: the schedule was changed or restarted",
        first_step=step,
        figures={"last_lr": last, "lr_of_schedule": of_schedule},
    )


def weight_norm(memory: StageHistory, step: int, norm: float, limits: Thresholds) -> Problem | None:
    """Return a finding if the weights' norm jumped since the last check; `step` is the update just made."""
    if memory.weight is None or step <= memory.weight[0]:
        return None
    before_step, before = memory.weight
    if not math.isfinite(norm) or norm <= 0:
        return Problem(
            kind="weights",
            reason=f"the weights' norm is {norm}",
            first_step=before_step + 1,
            figures={"weight_norm": norm, "weight_norm_before": before},
        )
    if len(memory.weight_changes) < LEAST_CHANGES:
        return None
    change = math.log(norm / before)
    middle, deviation = spread(np.array(memory.weight_changes))
    z = (abs(change) / (step - before_step) - middle) / max(deviation, 0.1 * middle, 1e-9)
    if z < limits.weight_z or abs(change) < math.log1p(limits.weight_change):
        return None
    return Problem(
        kind="weights",
        reason=f"the weights' norm changed from {before:.6g} (step {before_step}) to {norm:.6g}, {z:.1f} "
        "deviations more per step than before",
        first_step=before_step + 1,
        figures={"z": round(z, 2), "weight_norm": norm, "weight_norm_before": before},
    )


# ── the history ─────────────────────────────────────────────────────────────────────────────────────────────


def update_history(
    memory: StageHistory, stats: StepStats, found: Sequence[Problem], limits: Thresholds
) -> None:
    """Add a finite step to the history."""
    of_step = scores(memory, stats)
    loudest = max((score.z for score in of_step), default=0.0)
    if loudest >= LOUD * limits.spike_z or any(each.kind == "gradient" for each in found):
        memory.loud.append((stats.step, round(loudest, DIGITS)))
    memory.loud[:] = [(step, z) for step, z in memory.loud if step > stats.step - LOUD_STEPS]
    for each in found:
        if each.kind == "spike" and each.shape == "instant":  # a spike of a divergence does not cause it
            memory.spike_step = stats.step
        if each.kind == "divergence":
            for smooth in memory.smoothed.values():  # reported; the next one counts from here
                smooth.best = None
    for score in of_step:
        keep(memory.scores.setdefault(score.name, []), score.score, SCORES)
    logs = logarithms(stats.losses)
    for bucket, timestep, value in zip(stats.buckets, stats.bins, logs.tolist(), strict=True):
        keep(memory.cells.setdefault(f"{bucket}|{timestep}", []), value, CELL_VALUES)
    of_bucket: dict[str, list[float]] = {}
    for bucket, value in zip(stats.buckets, logs.tolist(), strict=True):
        of_bucket.setdefault(bucket, []).append(value)
    for bucket, values in of_bucket.items():
        _smooth(memory.smoothed.setdefault(bucket, Smoothed()), stats.step, float(np.mean(values)), limits)
    if stats.grad_norm > 0:
        keep(memory.gradients, math.log(stats.grad_norm), GRADIENTS)


def _smooth(smooth: Smoothed, step: int, value: float, limits: Thresholds) -> None:
    keep(smooth.values, value, limits.divergence_window)
    if len(smooth.values) == limits.divergence_window:
        now = round(float(np.median(smooth.values)), DIGITS)
        if smooth.best is None or now < smooth.best:
            smooth.best, smooth.best_step = now, step


def update_weight_history(memory: StageHistory, step: int, norm: float) -> None:
    """Add the weights' norm after update `step` to the history."""
    if not math.isfinite(norm) or norm <= 0:
        return
    if memory.weight is not None and step > memory.weight[0]:
        change = abs(math.log(norm / memory.weight[1])) / (step - memory.weight[0])
        memory.weight_changes.append(float(f"{change:.6g}"))
        del memory.weight_changes[:-CHANGES]
    memory.weight = (step, norm)
