"""Loss scores of a step: clips and buckets compared with the stage history.

A clip's loss depends on its bucket and its timestep. Its logarithm is therefore compared with the median of
its own cell (bucket × tenth of the timesteps), in units of 1.4826 · MAD, the robust standard deviation. A
cell with fewer than LEAST_CELL losses falls back to its whole bucket; a bucket with fewer than LEAST_BUCKET
is not checked, so a new bucket is no spike. A step's score, over all clips and per bucket, is the sum of its
clips' z over √n. Losses have heavier tails than a normal distribution, and the clips of a step share the
weights; the score is therefore compared with the median and MAD of its own last steps, which gives the z that
the recipe's threshold refers to.

Source: median/MAD z-scores: Iglewicz & Hoaglin (1993); the sum over √n: Stouffer.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.training.guard.history import StageHistory, StepStats

MAD = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
LEAST_CELL, LEAST_BUCKET = 12, 24
LEAST_SCORES = 16  # steps before a score is checked
LEAST_SPREAD = 0.02  # of logarithms: smaller differences are ignored

Values = NDArray[np.float64]


def spread(values: Values) -> tuple[float, float]:
    """Return median and robust standard deviation."""
    middle = float(np.median(values))
    return middle, MAD * float(np.median(np.abs(values - middle)))


def clip_scores(memory: StageHistory, stats: StepStats) -> tuple[Values, Values]:
    """Return each clip's z and log(loss / expected loss); NaN where the history is too short."""
    logs = logarithms(stats.losses)
    z, over = np.full(len(logs), np.nan), np.full(len(logs), np.nan)
    known: dict[str, tuple[float, float] | None] = {}
    for place, (bucket, timestep) in enumerate(zip(stats.buckets, stats.bins, strict=True)):
        name = f"{bucket}|{timestep}"
        if name not in known:
            known[name] = _expected(memory, bucket, name)
        expected = known[name]
        if expected is not None:
            over[place] = logs[place] - expected[0]
            z[place] = over[place] / max(expected[1], LEAST_SPREAD)
    return z, over


def logarithms(losses: Values) -> Values:
    logs: Values = np.log(np.maximum(losses, 1e-12))
    return logs


def _expected(memory: StageHistory, bucket: str, name: str) -> tuple[float, float] | None:
    own = memory.cells.get(name, [])
    if len(own) >= LEAST_CELL:
        return spread(np.array(own))
    whole = [
        value for cell, values in memory.cells.items() if cell.startswith(f"{bucket}|") for value in values
    ]
    return spread(np.array(whole)) if len(whole) >= LEAST_BUCKET else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far a step's loss is from the expected loss.

    `score` is Σz/√n, `z` that score in units of its own history, `ratio` the geometric mean of loss over
    expected loss, `clips` the clips' positions.
    """

    name: str
    score: float
    z: float
    ratio: float
    clips: tuple[int, ...]


def scores(memory: StageHistory, stats: StepStats) -> tuple[Score, ...]:
    """Return the scores of a finite step: over all checked clips (named "") and per bucket."""
    each, over = clip_scores(memory, stats)
    groups: dict[str, list[int]] = {}
    for place, bucket in enumerate(stats.buckets):
        if not math.isnan(each[place]):
            groups.setdefault("", []).append(place)
            groups.setdefault(bucket, []).append(place)
    found = []
    for name, places in groups.items():
        total = float(each[places].sum() / math.sqrt(len(places)))
        past, z = np.array(memory.scores.get(name, [])), 0.0
        if len(past) >= LEAST_SCORES:
            middle, deviation = spread(past)
            z = (total - middle) / max(deviation, 1.0)
        ratio = math.exp(float(over[places].mean()))
        found.append(Score(name=name, score=total, z=z, ratio=ratio, clips=tuple(places)))
    return tuple(found)
