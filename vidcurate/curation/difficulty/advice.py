"""What to do about the jumps: how long to ramp into a level, and how much of the hard tail to cut.

Both follow from the measured figures by the formulas of docs/difficulty.md; nothing here is a guess at what a
model can bear.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.difficulty.jumps import TAIL, Jump
from vidcurate.curation.difficulty.spec import SplitSpec

Floats = NDArray[np.float64]

MAX_SHIFT = 0.5  # pooled standard deviations that the mean may move in an increment: Cohen's medium effect
MAX_KS = 0.1  # KS distance that another column may move in an increment
SURE = 3.0  # the largest of an exponential tail passes the fence with a chance of 1 - exp(-exp(-3)): 5 %
MIN_TAIL = 8  # clips above the 99 % quantile that a tail is judged by


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """How to go from a level into the next: `increments` equal moves of the mixture, `steps` in all.

    `because` names the column and the figure that ask for the most. `share_of_pass`: of one pass over the
    level; None when `clips_per_step` is not set.
    """

    from_level: int
    to_level: int
    increments: int
    steps: int
    share_of_pass: float | None
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The clips beyond the fence: `share` of all that are levelled, each above `above`."""

    clips: int
    share: float
    above: float


def increments(found: Jump, spec: SplitSpec) -> int:
    """Return how many equal moves of the mixture keep each of them small in the column of `found`.

    In a mixture with share w of the harder level the mean lies w of the way, and the cumulative distribution
    moves by w times the KS distance: both are linear in w, so a jump of d needs d / limit moves. More than
    1 / MAX_KS are never needed: each then exchanges a tenth of the clips.
    """
    if found.column == spec.column and found.effect_size is not None:
        return min(round(1 / MAX_KS), max(1, math.ceil(abs(found.effect_size) / MAX_SHIFT)))
    if found.column == spec.column or found.ks_distance > found.ks_noise:
        return max(1, math.ceil(round(found.ks_distance / MAX_KS, 9)))
    return 1


def _because(found: Jump, spec: SplitSpec) -> str:
    if found.column == spec.column and found.effect_size is not None:
        return f"the mean of {found.column} moves {found.effect_size:.2f} deviations"
    return f"{found.column} shifts by a KS distance of {found.ks_distance:.2f}"


def ramps(jumps: Sequence[Jump], train_clips: dict[int, int], spec: SplitSpec) -> tuple[Ramp, ...]:
    """Return the ramp into each level but the first; `train_clips` is level → clips of its train fold."""
    made = []
    for to_level in sorted({found.to_level for found in jumps}):
        here = [found for found in jumps if found.to_level == to_level]
        worst = max(here, key=lambda found: increments(found, spec))  # of equals the difficulty, it is first
        count = increments(worst, spec)
        steps = (count - 1) * spec.steps_per_increment
        in_a_pass = max(1, train_clips[to_level] // (spec.clips_per_step or 1))
        steps = min(steps, in_a_pass)
        made.append(
            Ramp(
                from_level=to_level - 1,
                to_level=to_level,
                increments=count,
                steps=steps,
                share_of_pass=steps / in_a_pass if spec.clips_per_step else None,
                because=_because(worst, spec),
            )
        )
    return tuple(made)


def tail(values: Floats) -> Tail | None:
    """Return the clips that are too hard to belong to the tail of the others, None when there are none.

    Above the 99 % quantile u the excess over u is held against an exponential tail, whose scale is the median
    excess over log 2 (so that the far end does not set its own measure). Of n such clips the largest is
    expected near u + scale · log n; the fence lies 3 scales further.
    """
    if not len(values):
        return None
    start = float(np.quantile(values, TAIL, method="lower"))
    excess = np.sort(values[values > start]) - start
    if len(excess) < MIN_TAIL:
        return None
    scale = float(np.median(excess)) / math.log(2)
    fence = start + scale * (math.log(len(excess)) + SURE)
    beyond = int(np.sum(values > fence))
    if not beyond:
        return None
    inside = float(values[values <= fence].max())
    return Tail(clips=beyond, share=beyond / len(values), above=inside)


def tail_to_ratio(low: Floats, high: Floats, total: int, spec: SplitSpec) -> Tail | None:
    """Return the hardest clips of `high` without which its tail ratio over `low` is at the limit.

    None when it is there already, or when `low` has no tail to hold it against. `total` is the number of all
    clips that are levelled, of which `share` is taken.
    """
    allowed = spec.warn_tail_ratio * float(np.quantile(low, TAIL))
    ordered = np.sort(high)
    if allowed <= 0 or float(np.quantile(ordered, TAIL)) <= allowed:
        return None
    few, many = 0, len(ordered) - 1  # dropping `few` is not enough, dropping `many` leaves one clip
    while many - few > 1:
        middle = (few + many) // 2
        enough = float(np.quantile(ordered[: len(ordered) - middle], TAIL)) <= allowed
        few, many = (few, middle) if enough else (middle, many)
    above = float(ordered[len(ordered) - many - 1])
    clips = int(np.sum(ordered > above))
    return Tail(clips=clips, share=clips / total, above=above) if clips else None


def texts(made: Sequence[Ramp], cut: Tail | None, to_ratio: Tail | None, spec: SplitSpec) -> tuple[str, ...]:
    """Return the advice in words."""
    reported = []
    if cut is not None:
        reported.append(
            f"cut the hardest {100 * cut.share:.2g} % (drop_hardest: {drop_hardest(cut):g}): {cut.clips:,} "
            f"clips with {spec.column} above {cut.above:g} lie beyond the tail of the others."
        )
    if to_ratio is not None:
        reported.append(
            f"without the hardest {100 * to_ratio.share:.2g} % (drop_hardest: {drop_hardest(to_ratio):g}), "
            f"{to_ratio.clips:,} clips with {spec.column} above {to_ratio.above:g}, the top 1 % of the last "
            f"level is {spec.warn_tail_ratio:g} times that of the one before."
        )
    for ramp in made:
        if ramp.increments > 1:
            share = "" if ramp.share_of_pass is None else f", {100 * ramp.share_of_pass:.0f} % of a pass"
            reported.append(
                f"ramp into level {ramp.to_level} in {ramp.increments} increments ({ramp.steps:,} steps"
                f"{share}): {ramp.because}."
            )
    return tuple(reported)


def drop_hardest(cut: Tail) -> float:
    """Return the setting that cuts these clips: between those of one clip fewer and of as many."""
    return float(f"{cut.share * (cut.clips - 0.5) / cut.clips:.6g}")


FRAGMENT = "levels.yaml"


def _stage(name: str, data: str, length: str) -> list[str]:
    return [f"  - name: {name}", f"    data: {{{data}}}", f"    {length}"]


def recipe_fragment(levels: int, ramps: tuple[Ramp, ...], spec: SplitSpec) -> str:
    """Return RUN/levels.yaml: the `stages` of a training recipe, level after level with the advised ramps.

    A ramp of m increments is m - 1 stages whose `weights` move from one level to the next. Without
    `spec.buckets` each stage still needs its `buckets`.
    """
    table = (
        "" if spec.buckets is None else json.dumps(spec.buckets.model_dump(mode="json", exclude_unset=True))
    )
    lines = [
        "# Stages for a training recipe, made by `vidcurate split-by-difficulty`: its levels in turn, with",
        "# the advised ramps between them. `shards` is relative to the folder of this file.",
    ]
    if spec.buckets is None:
        lines.append("# Add `buckets` to the data of each stage (or set `buckets` in the split).")
    lines.append("stages:")
    first = True

    def buckets() -> str:
        nonlocal first
        if not table:
            return ""
        text = f", buckets: &buckets {table}" if first else ", buckets: *buckets"
        first = False
        return text

    into = {ramp.to_level: ramp for ramp in ramps}
    for level in range(1, levels + 1):
        ramp = into.get(level)
        if ramp is not None and ramp.increments > 1 and ramp.steps > 0:
            mixed = ramp.increments - 1
            for number in range(1, mixed + 1):
                steps = ramp.steps * number // mixed - ramp.steps * (number - 1) // mixed
                if not steps:
                    continue
                weights = f'{{"{level - 1}": {ramp.increments - number}, "{level}": {number}}}'
                data = f"shards: shards, levels: [{level - 1}, {level}], weights: {weights}{buckets()}"
                lines += _stage(f"ramp-{level - 1}-{level}-{number}", data, f"steps: {steps}")
        data = f"shards: shards, levels: [{level}]{buckets()}"
        lines += _stage(f"level-{level}", data, f"passes: {spec.passes:g}")
    return "\n".join(lines) + "\n"
