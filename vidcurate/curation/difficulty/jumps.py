"""Jump between neighbouring levels: effect size, KS distance, tail ratio."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.difficulty.spec import SplitSpec

Floats = NDArray[np.float64]
TAIL = 0.99
MIN_CLIPS = 10  # fewest clips of either level for a figure or a warning: of fewer, single clips decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """Jump from the previous level to `to_level` in one column.

    `ks_noise`: the KS distance that two samples of these sizes from one distribution exceed once in twenty.
    """

    column: str
    from_level: int
    to_level: int
    effect_size: float | None
    ks_distance: float
    ks_noise: float
    tail_ratio: float | None
    warning: str | None


def jump(column: str, low: Floats, high: Floats, spec: SplitSpec, from_level: int) -> Jump:
    """Measure the jump from the values `low` to `high` (level `from_level` + 1), both ascending.

    With fewer than MIN_CLIPS on either side effect_size and tail_ratio are None. effect_size: difference of
    means over the pooled standard deviation (Cohen's d; None where neither level has a spread). ks_distance:
    the largest distance of the two cumulative distributions. tail_ratio: the 99 % quantile of `high` over
    that of `low` (None where that is 0). ks_noise: Smirnov's 5 % limit for samples of these sizes.
    """
    freedom = max(len(low) + len(high) - 2, 1)
    squares = np.sum((low - low.mean()) ** 2) + np.sum((high - high.mean()) ** 2)
    pooled = float(np.sqrt(squares / freedom))
    every = np.concatenate([low, high])
    below = [np.searchsorted(part, every, side="right") / len(part) for part in (low, high)]
    distance = float(np.max(np.abs(below[0] - below[1])))
    tails = [float(np.quantile(part, TAIL)) for part in (low, high)]
    is_enough = min(len(low), len(high)) >= MIN_CLIPS
    found = Jump(
        column=column,
        from_level=from_level,
        to_level=from_level + 1,
        effect_size=float(high.mean() - low.mean()) / pooled if is_enough and pooled > 0 else None,
        ks_distance=distance,
        ks_noise=float(1.358 * np.sqrt(1 / len(low) + 1 / len(high))),
        tail_ratio=tails[1] / tails[0] if is_enough and tails[0] > 0 else None,
        warning=None,
    )
    is_sure = is_enough and found.ks_distance > found.ks_noise
    return Jump(**{**asdict(found), "warning": _warning(found, spec) if is_sure else None})


def _warning(found: Jump, spec: SplitSpec) -> str | None:
    """Return the warning for a jump above a limit, None below all limits."""
    where = f"from level {found.from_level} to {found.to_level}"
    if found.column != spec.column:
        if found.ks_distance > spec.warn_ks_distance:
            return (
                f"{where} {found.column} shifts by a KS distance of {found.ks_distance:.2f} (limit "
                f"{spec.warn_ks_distance:g}): the levels differ in more than {spec.column}."
            )
        return None
    if found.tail_ratio is not None and found.tail_ratio > spec.warn_tail_ratio:
        return (
            f"{where} the top 1 % of {found.column} grows {found.tail_ratio:.2f} times (limit "
            f"{spec.warn_tail_ratio:g})."
        )
    if found.effect_size is not None and found.effect_size > spec.warn_effect_size:
        return (
            f"{where} the mean of {found.column} moves {found.effect_size:.2f} standard deviations (limit "
            f"{spec.warn_effect_size:g})."
        )
    return None


BINS = 40
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def histograms(values: Mapping[str, list[Floats]]) -> dict[str, dict[str, Any]]:
    """Return column → {edges, counts: one list per level, quantiles: one list per level}.

    `values` has the known values of each level, ascending, by column; a column without any is left out.

    All levels share the bins: one per whole number when that gives at most 40, else 40 of equal width up to
    the 99.9 % quantile, the last open above. The counts of a level sum to its clips with a known value.
    `quantiles` are those of QUANTILES (linear), [] for a level without values.
    """
    found: dict[str, dict[str, Any]] = {}
    for column, levels in values.items():
        every = np.concatenate(levels)
        if not len(every):
            continue
        low, high = float(every.min()), float(np.quantile(every, 0.999))
        is_whole = bool(np.all(every == np.round(every)))
        if is_whole and np.ceil(high) - low < BINS:
            edges = np.arange(low, np.ceil(high) + 2.0)
        elif high > low:
            edges = np.linspace(low, high, BINS + 1)
        else:
            edges = np.array([low, low + 1.0])
        found[column] = {
            "edges": edges.tolist(),
            "counts": [
                np.diff(np.searchsorted(part, edges[:-1]), append=len(part)).tolist() for part in levels
            ],
            "quantiles": [np.quantile(part, QUANTILES).tolist() if len(part) else [] for part in levels],
        }
    return found
