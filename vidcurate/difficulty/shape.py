"""The levels' distributions as plain data: what a report draws."""

from typing import Any

import numpy as np
import polars as pl

BINS = 40
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def histograms(parts: list[pl.DataFrame], columns: list[str]) -> dict[str, dict[str, Any]]:
    """Return column → {edges, counts: one list a level, quantiles: one list a level}.

    The bins are those of all levels together: one a whole number where that makes 40 at most, else 40 of
    equal width up to the 99.9 % quantile, the last of them open above. Counts of a level sum to its clips
    whose value is known. `quantiles` are those of QUANTILES (linear), [] for a level without values.
    """
    found: dict[str, dict[str, Any]] = {}
    for column in columns:
        values = [part[column].drop_nulls().cast(pl.Float64).to_numpy() for part in parts]
        every = np.concatenate(values)
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
            "counts": [np.histogram(np.minimum(part, edges[-1]), bins=edges)[0].tolist() for part in values],
            "quantiles": [np.quantile(part, QUANTILES).tolist() if len(part) else [] for part in values],
        }
    return found
