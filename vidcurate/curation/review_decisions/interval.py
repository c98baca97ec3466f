"""Confidence intervals of shares, in one stratum (exact) and over several.

`stratum_interval` inverts the hypergeometric distribution, which is the finite-population form of the
interval of Clopper and Pearson (Biometrika 26, 1934): its coverage is never below the level, and a stratum
that was reviewed whole has no uncertainty. `weighted_interval` is the interval of Korn and Graubard (Survey
Methodology 24, 1998): Clopper-Pearson at the effective sample size of a stratified sample.
"""

import math
from collections.abc import Callable, Sequence

_STEPS = 60  # of a bisection


def _log_choose(total: int, some: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(some + 1) - math.lgamma(total - some + 1)


def _at_most(count: int, wrong: int, population: int, drawn: int) -> float:
    """Return the probability of at most `count` wrong clips among `drawn`, with `wrong` in the population."""
    low, high = max(0, drawn - (population - wrong)), min(drawn, wrong, count)
    every = _log_choose(population, drawn)
    return math.fsum(
        math.exp(_log_choose(wrong, found) + _log_choose(population - wrong, drawn - found) - every)
        for found in range(low, high + 1)
    )


def _first(low: int, high: int, is_there: Callable[[int], bool]) -> int:
    """Return the smallest number in [low, high] for which the monotone `is_there` holds, else `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_there(middle) else (middle + 1, high)
    return low


def stratum_interval(count: int, drawn: int, population: int, level: float) -> tuple[float, float]:
    """Return the ends of the share of wrong clips in a population of which `drawn` were reviewed.

    `count` of them were wrong; `level` is the confidence, such as 0.95. Without a review it is (0, 1).
    """
    if drawn == 0:
        return 0.0, 1.0
    tail = (1 - level) / 2
    least, most = count, population - (drawn - count)
    low = _first(least, most, lambda wrong: 1 - _at_most(count - 1, wrong, population, drawn) > tail)
    high = _first(least, most + 1, lambda wrong: _at_most(count, wrong, population, drawn) <= tail) - 1
    return low / population, max(low, high) / population


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (Lentz; Numerical Recipes 6.4)."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    found = d
    for m in range(1, 400):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 + step * d, 1 + step / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            found *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return found


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def _beta_quantile(share: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if beta_cdf(middle, a, b) < share else (low, middle)
    return (low + high) / 2


def clopper_pearson(count: float, drawn: float, level: float) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson; `count` and `drawn` need not be whole."""
    tail = (1 - level) / 2
    low = _beta_quantile(tail, count, drawn - count + 1) if count > 0 else 0.0
    high = _beta_quantile(1 - tail, count + 1, drawn - count) if count < drawn else 1.0
    return low, high


def weighted_interval(
    strata: Sequence[tuple[int, int, int]], level: float
) -> tuple[float, float, float] | None:
    """Return (share, low, high) over strata (wrong, drawn, population); None where one has no review.

    The share weighs each stratum by its population. The variance of a stratum is taken at
    (wrong + 1) / (drawn + 2), so that a stratum without a wrong clip has one, too.
    """
    if not strata or any(drawn == 0 for _, drawn, _ in strata):
        return None
    total = sum(population for _, _, population in strata)
    share = sum(population / total * count / drawn for count, drawn, population in strata)
    variance = center = 0.0
    for count, drawn, population in strata:
        weight, guess = population / total, (count + 1) / (drawn + 2)
        left = (population - drawn) / max(1, population - 1)  # finite population
        variance += weight**2 * guess * (1 - guess) / drawn * left
        center += weight * guess
    if variance == 0:
        return share, share, share
    effective = center * (1 - center) / variance
    low, high = clopper_pearson(share * effective, effective, level)
    return share, low, high
