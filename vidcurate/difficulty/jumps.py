"""How far two neighbouring levels are apart, and what is too far."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate.difficulty.spec import SplitSpec

Floats = NDArray[np.float64]
TAIL = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """How far level `to_level` is from the one before it, in one column.

    `ks_noise` is the KS distance that two samples of this size from one distribution pass once in twenty.
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
    """Return how far the values `high` (of level `from_level` + 1) are from `low`.

    effect_size: difference of means over the pooled standard deviation (Cohen's d; None where neither level
    has a spread). ks_distance: the largest distance of the two cumulative distributions. tail_ratio: the 99 %
    quantile of `high` over that of `low` (None where that is 0). ks_noise: Smirnov's 5 % limit for samples of
    these sizes.
    """
    freedom = max(len(low) + len(high) - 2, 1)
    squares = np.sum((low - low.mean()) ** 2) + np.sum((high - high.mean()) ** 2)
    pooled = float(np.sqrt(squares / freedom))
    every = np.unique(np.concatenate([low, high]))
    below = [np.searchsorted(np.sort(part), every, side="right") / len(part) for part in (low, high)]
    distance = float(np.max(np.abs(below[0] - below[1])))
    tails = [float(np.quantile(part, TAIL)) for part in (low, high)]
    found = Jump(
        column=column,
        from_level=from_level,
        to_level=from_level + 1,
        effect_size=float(high.mean() - low.mean()) / pooled if pooled > 0 else None,
        ks_distance=distance,
        ks_noise=float(1.358 * np.sqrt(1 / len(low) + 1 / len(high))),
        tail_ratio=tails[1] / tails[0] if tails[0] > 0 else None,
        warning=None,
    )
    return Jump(**{**asdict(found), "warning": _warning(found, spec)})


def _warning(found: Jump, spec: SplitSpec) -> str | None:
    """Return what to say of a jump above the limits."""
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
