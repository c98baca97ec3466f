"""Histograms and counts by value, over the rows that the filters let through."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.report.histogram import Bars, Series, bars
from vidcurate.curation.review.clip_rows import ClipRows
from vidcurate.curation.review.query import Mask, Query, matching

FACETS = ("is_kept", "reject_rule", "source_dataset", "level", "fold", "duplicate_kind")


class Histograms:
    """Bars of the columns of one table, each row's bar found once."""

    def __init__(self, rows: ClipRows) -> None:
        self._rows = rows
        self._found: dict[str, tuple[Bars, NDArray[np.uint8]]] = {}

    def _bars(self, name: str) -> tuple[Bars, NDArray[np.uint8]]:
        """Return the bars over all rows, and each row's bar (255: no finite value)."""
        if name not in self._found:
            values = self._rows.values(name)
            known = bars([Series(name=name, ink="", values=values)])
            place = np.searchsorted(known.edges, values, side="right") - 1
            bar = np.clip(place, 0, len(known.edges) - 2).astype(np.uint8)
            bar[~np.isfinite(values)] = 255
            self._found[name] = (known, bar)
        return self._found[name]

    def of(self, name: str, query: Query) -> dict[str, Any]:
        """Return edges, counts of all rows and of those that the other filters let through; low and high.

        The last bar also counts the `beyond` values above its edge. Raises ColumnError.
        """
        found, place = self._bars(name)
        size = len(found.edges) - 1
        mask = matching(self._rows, query, without=name)
        shown = np.bincount(place[mask], minlength=256)
        every = np.bincount(place, minlength=256)
        values = self._rows.values(name)
        finite = values[np.isfinite(values)]
        return {
            "name": name,
            "edges": [float(edge) for edge in found.edges],
            "all": [int(count) for count in every[:size]],
            "shown": [int(count) for count in shown[:size]],
            "unknown": int(every[255]),
            "beyond": found.num_beyond,
            "low": float(finite.min()) if len(finite) else None,
            "high": float(finite.max()) if len(finite) else None,
        }


def facets(rows: ClipRows, query: Query, mask: Mask) -> dict[str, list[dict[str, Any]]]:
    """Return column → its values with their number of rows, of the columns of FACETS that the table has.

    A column that the query itself narrows is counted without its own filter, so that other values stay in
    sight.
    """
    found = {}
    for name in FACETS:
        groups = rows.groups(name) if name in rows.schema else None
        if groups is None or len(groups.names) == 1:
            continue
        own = matching(rows, query, without=name) if name in query.words else mask
        counted = np.bincount(groups.place[own], minlength=len(groups.names))
        found[name] = [
            {"value": label, "rows": int(counted[at])}
            for at, label in enumerate(groups.names)
            if counted[at] or label in query.words.get(name, ())
        ]
    return found
