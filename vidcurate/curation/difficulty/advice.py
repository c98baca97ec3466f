"""Curriculum advice: ramp length between levels, and how much hard tail to drop.

Both follow from the measured jumps by the formulas of docs/difficulty.md, not from guesses about a model.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.difficulty.jumps import MIN_CLIPS, TAIL, Jump
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.errors import counted

Floats = NDArray[np.float64]

MAX_SHIFT = 0.5  # largest shift of the mean per increment, pooled standard deviations: Cohen's medium effect
MAX_KS = 0.1  # largest KS distance of another column per increment
SURE = 3.0  # fence: an exponential tail exceeds it with probability 1 - exp(-exp(-3)) = 5 %
MIN_TAIL = 8  # fewest clips above the 99 % quantile for a tail estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Ramp from one level into the next: `increments` equal moves of the mixture, `steps` in all.

    `because` names the column and figure that need the most increments.
    """

    from_level: int
    to_level: int
    increments: int
    steps: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Clips beyond the fence: `share` of all levelled clips, each above `above`."""

    clips: int
    share: float
    above: float


def increments(found: Jump, spec: SplitSpec) -> int:
    """Return the number of equal moves of the mixture that keep each move small in the column of `found`.

    With share w of the harder level in the mixture, the mean moves by w times the jump and the cumulative
    distribution by w times the KS distance. Both are linear in w, so a jump of d needs d / limit moves, and
    at most 1 / MAX_KS (each then exchanges a tenth of the clips).
    """
    if found.ks_distance <= found.ks_noise:
        return 1  # chance alone explains the jump between levels of so few clips
    if found.column == spec.column and found.effect_size is not None:
        return min(round(1 / MAX_KS), max(1, math.ceil(abs(found.effect_size) / MAX_SHIFT)))
    return max(1, math.ceil(round(found.ks_distance / MAX_KS, 9)))


def _because(found: Jump, spec: SplitSpec) -> str:
    if found.ks_distance <= found.ks_noise:
        return f"chance alone explains the jump in {found.column}"
    if found.column == spec.column and found.effect_size is not None:
        return f"the mean of {found.column} moves {found.effect_size:.2f} deviations"
    return f"{found.column} shifts by a KS distance of {found.ks_distance:.2f}"


def ramps(jumps: Sequence[Jump], train_clips: dict[int, int], spec: SplitSpec) -> tuple[Ramp, ...]:
    """Return the ramp into each level but the first; `train_clips` is level → clips of its train fold."""
    made = []
    for to_level in sorted({found.to_level for found in jumps}):
        if _fewest(train_clips, to_level) < MIN_CLIPS:
            too_few = f"levels of fewer than {MIN_CLIPS} clips say nothing"
            made.append(
                Ramp(from_level=to_level - 1, to_level=to_level, increments=1, steps=0, because=too_few)
            )
            continue
        here = [found for found in jumps if found.to_level == to_level]
        worst = max(here, key=lambda found: increments(found, spec))  # on a tie the first: the difficulty
        count = increments(worst, spec)
        steps = (count - 1) * spec.steps_per_increment
        steps = min(steps, max(1, train_clips[to_level]))
        made.append(
            Ramp(
                from_level=to_level - 1,
                to_level=to_level,
                increments=count,
                steps=steps,
                because=_because(worst, spec),
            )
        )
    return tuple(made)


def _fewest(train_clips: dict[int, int], to_level: int) -> int:
    return min(train_clips[to_level - 1], train_clips[to_level])


def few_clips(train_clips: dict[int, int]) -> tuple[str, ...]:
    """Return what small levels leave untold, as a sentence, () where all have enough clips."""
    few = [level for level in sorted(train_clips) if train_clips[level] < MIN_CLIPS]
    if not few or len(train_clips) == 1:
        return ()
    named = f"level {few[0]}" if len(few) == 1 else f"levels {', '.join(map(str, few))}"
    verb = "has" if len(few) == 1 else "have"
    return (f"{named} {verb} fewer than {MIN_CLIPS} clips: no ramp is advised there. Set fewer levels.",)


def tail(values: Floats) -> Tail | None:
    """Return the outlying clips beyond the fitted tail of the values, None without any.

    The excess over the 99 % quantile u is modelled as exponential; its scale is the median excess / log 2, so
    that outliers do not affect the scale. The largest of n such clips is expected near u + scale · log n; the
    fence is 3 scales further.
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
    """Return the hardest clips of `high` to drop so that its tail ratio over `low` meets the limit.

    None when the ratio meets the limit already, when `low` has no tail to compare with, and when a level has
    fewer than MIN_TAIL clips above its 99 % quantile: such a quantile is the value of one clip. `total` is
    the number of levelled clips, the base of `share`.
    """
    if min(len(low), len(high)) * (1 - TAIL) < MIN_TAIL - 1e-6:
        return None
    allowed = spec.warn_tail_ratio * float(np.quantile(low, TAIL))
    ordered = np.sort(high)
    if allowed <= 0 or float(np.quantile(ordered, TAIL)) <= allowed:
        return None
    few, many = 0, len(ordered) - 1  # bisection: dropping `few` is too little, `many` leaves one clip
    while many - few > 1:
        middle = (few + many) // 2
        enough = float(np.quantile(ordered[: len(ordered) - middle], TAIL)) <= allowed
        few, many = (few, middle) if enough else (middle, many)
    above = float(ordered[len(ordered) - many - 1])
    clips = int(np.sum(ordered > above))
    return Tail(clips=clips, share=clips / total, above=above) if clips else None


def texts(made: Sequence[Ramp], cut: Tail | None, to_ratio: Tail | None, spec: SplitSpec) -> tuple[str, ...]:
    """Return the advice as sentences."""
    reported = []
    if cut is not None:
        reported.append(
            f"cut the hardest {100 * cut.share:.2g} % (drop_hardest: {drop_hardest(cut):g}): "
            f"{counted(cut.clips, 'clip')} with {spec.column} above {cut.above:g} "
            f"{'is' if cut.clips == 1 else 'are'} beyond the tail of the others."
        )
    if to_ratio is not None:
        reported.append(
            f"without the hardest {100 * to_ratio.share:.2g} % (drop_hardest: {drop_hardest(to_ratio):g}), "
            f"{counted(to_ratio.clips, 'clip')} with {spec.column} above {to_ratio.above:g}, the top 1 % of "
            f"the last level is {spec.warn_tail_ratio:g} times that of the one before."
        )
    for ramp in made:
        if ramp.increments > 1:
            reported.append(
                f"ramp into level {ramp.to_level} in {ramp.increments} increments ({ramp.steps:,} "
                f"steps): {ramp.because}."
            )
    return tuple(reported)


def empty_validation(draws: Floats, validation_fraction: float) -> tuple[str, ...]:
    """Return how to get a validation fold if the fraction takes none of the sources, () otherwise.

    `draws` [n]: a number in [0, 1) for each clip, equal within a source; those below the fraction validate.
    """
    if validation_fraction == 0 or (draws < validation_fraction).any():
        return ()
    sources = np.unique(draws)
    said = (
        f"the fold validation is empty: of {counted(len(sources), 'source')} validation_fraction "
        f"{validation_fraction:g}"
    )
    if len(sources) == 1:
        return (f"{said} takes none, and one source cannot be in both folds.",)
    wanted = math.ceil(len(sources) / 20)  # 5 % of the sources, one at least
    fraction = math.floor(100 * sources[wanted - 1] + 1) / 100
    taken = int((sources < fraction).sum())
    if taken == len(sources):
        return (f"{said} takes none. Set another seed.",)
    clips = int((draws < fraction).sum())
    named = f"{counted(taken, 'source')} ({counted(clips, 'clip')})"
    return (f"{said} takes none. For {named}: --set validation_fraction={fraction:g}.",)


def drop_hardest(cut: Tail) -> float:
    """Return the `drop_hardest` share that drops exactly these clips."""
    return float(f"{cut.share * (cut.clips - 0.5) / cut.clips:.6g}")


FRAGMENT = "levels.yaml"


def _stage(name: str, data: str, length: str) -> list[str]:
    return [f"  - name: {name}", f"    data: {{{data}}}", f"    {length}"]


def recipe_fragment(levels: int, ramps: tuple[Ramp, ...], spec: SplitSpec) -> str:
    """Return RUN/levels.yaml: the `stages` of a training recipe, one per level, with the advised ramps.

    A ramp of m increments is m - 1 stages whose `weights` move from one level to the next. Without
    `spec.buckets` the reader adds `buckets` to each stage.
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
        lines += _stage(f"level-{level}", data, f"epochs: {spec.epochs:g}")
    return "\n".join(lines) + "\n"
