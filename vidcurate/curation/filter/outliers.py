"""Outlier rules: limits computed from the values, exact in any row order.

Quantiles are order statistics. Mean and deviation are exact sums (Shewchuk's, `math.fsum`): the number of
threads and the order of the rows do not change them. Only the column under test is in memory, 8 bytes per
clip.
"""

import math
from typing import Literal

import numpy as np
import polars as pl

from vidcurate.curation.filter.rules import UNKNOWN, Rule, text
from vidcurate.curation.filter.spec import OutlierRule

Limits = tuple[float | None, float | None]  # (lowest, highest) kept value


def _both(values: pl.Series, rule: OutlierRule) -> tuple[float, float]:
    """Return (lowest, highest) kept value; `values` are finite, one at least."""

    def quantile(share: float, how: Literal["lower", "higher", "linear"]) -> float:
        found = values.quantile(share, how)
        assert found is not None, "a column without nulls has quantiles"
        return found

    if rule.method == "absolute":
        return rule.value, rule.value
    if rule.method == "tail_quantile":
        return quantile(rule.value, "higher"), quantile(1 - rule.value, "lower")
    if rule.method == "iqr":
        first, third = quantile(0.25, "linear"), quantile(0.75, "linear")
        return first - rule.value * (third - first), third + rule.value * (third - first)
    if rule.method == "mad":
        middle = quantile(0.5, "linear")
        spread = 1.4826 * float((values - middle).abs().quantile(0.5, "linear") or 0.0)
        reach = rule.value * spread if spread > 0 else math.inf
        return middle - reach, middle + reach
    numbers = values.to_numpy()
    mean = math.fsum(numbers / len(numbers))
    with np.errstate(over="ignore"):
        far = np.abs(numbers - mean)
    most = float(far.max())  # scaled by this, squares cannot overflow
    if not 0 < most < math.inf:
        return mean - most, mean + most
    reach = rule.value * most * math.sqrt(math.fsum(np.square(far / most)) / len(numbers))
    return mean - reach, mean + reach


def limits(values: pl.Series, rule: OutlierRule) -> Limits:
    """Return the lowest and the highest of `values` that `rule` keeps; None for an open end.

    They are computed from the finite values: infinite ones would leave no limit, and are beyond each.
    """
    known = values.cast(pl.Float64)
    known = known.filter(known.is_finite())
    if known.is_empty():
        return None, None
    low, high = _both(known, rule)
    return (low if rule.side != "upper" else None, high if rule.side != "lower" else None)


def _beyond(value: pl.Expr, found: Limits) -> tuple[pl.Expr, str]:
    fails, words = pl.lit(value=False), []
    if found[0] is not None:
        fails = fails | (value < found[0])
        words.append(f">= {text(found[0])}")
    if found[1] is not None:
        fails = fails | (value > found[1])
        words.append(f"<= {text(found[1])}")
    return fails, " and ".join(words) or "known"


def outlier(passed: pl.DataFrame, rule: OutlierRule, value: pl.Expr) -> Rule:
    """Compute the limits over the rows that passed so far, and return the resulting rule."""
    if rule.per_source_dataset:
        known = passed.select("source_dataset", value.alias("value"))
        fails, threshold = pl.lit(value=False), pl.lit("known")
        for part in sorted(known.partition_by("source_dataset"), key=lambda part: str(part.item(0, 0))):
            here, words = _beyond(value, limits(part["value"], rule))
            mine = pl.col("source_dataset").eq_missing(pl.lit(part.item(0, 0), dtype=pl.String))
            fails = pl.when(mine).then(here).otherwise(fails)
            threshold = pl.when(mine).then(pl.lit(words)).otherwise(threshold)
    else:
        fails, words = _beyond(value, limits(passed.select(value.alias("value")).to_series(), rule))
        threshold = pl.lit(words)
    return Rule(
        stage="filter",
        measure=rule.column,
        name=pl.lit(f"outlier_{rule.column}_{rule.method}"),
        fails=pl.when(value.is_null()).then(pl.lit(value=True)).otherwise(fails),
        value=value.cast(pl.String).fill_null(UNKNOWN),
        threshold=threshold,
    )
