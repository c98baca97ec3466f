"""Clip rows in memory for the review app; each column is read at first use."""

import math
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.clip_table.schema import COLUMNS, STAGES
from vidcurate.curation.filter.rules import columns_of, number
from vidcurate.curation.report import counts, facts
from vidcurate.errors import ColumnError

Places = NDArray[np.uint32]
MEASURES = ("short_side", "aspect_ratio")
# Columns of one card of the grid, as far as the table has them.
CARD = (
    "clip_id", "caption", "source_dataset", "video_path", "width", "height", "fps", "duration_seconds",
    "num_frames", "start_seconds", "end_seconds", "ingest_problem", "container", "codec", "pixel_format",
    "is_kept", "reject_stage", "reject_rule", "reject_value", "reject_threshold", "level", "fold",
    "duplicate_cluster", "duplicate_rank",
)  # fmt: skip
_SLICE_ROWS = 4096  # captions of rows so near to one another are read from the file alone
_MOST_WORDS = 200  # a text column of more different values is searched, not listed


def signature(run: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of the run's tables: these change when a stage writes a table anew."""
    found = []
    for path in (*(table.stage_path(run, stage) for stage in STAGES), run / rejection_ledger.LEDGER):
        try:
            stat = path.stat()
        except OSError:
            continue
        found.append((path.name, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def plain(value: Any) -> Any:
    """Return a value of a cell as JSON holds it: NaN and infinities are null, other objects text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def stable_order(values: NDArray[np.float64]) -> Places:
    """Return the places (N,) of float64 values in rising order, equal values by place, NaN last.

    numpy's stable sort takes eight times as long as its fast one: equal values are put in order afterwards.
    """
    order = np.argsort(values)
    ranked = values[order]
    is_new = np.ones(len(order), dtype=np.int64)
    is_new[1:] = ranked[1:] != ranked[:-1]
    groups = np.cumsum(is_new)
    groups[np.isnan(ranked)] = len(order) + 1  # one group, though NaN differs from NaN
    key = groups * len(order) + order
    return (np.sort(key) % max(len(order), 1)).astype(np.uint32)


class ClipRows:
    """The newest table of a run, one row per clip, with the verdict columns of `facts.verdicts`.

    A row is named by its place in the table, from 0. Raises StageError, TableError.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.signature = signature(run)
        self.stage = table.newest_stage(run)
        frame, self.is_filtered = facts.verdicts(table.scan(run, self.stage))
        self._frame = facts.with_unwritten(run, frame)
        ingested = table.stage_path(run, STAGES[0])
        self._words = table.column_words(ingested) if ingested.exists() else {}
        self.schema: dict[str, pl.DataType] = dict(self._frame.collect_schema())
        self.height: int = self._frame.select(pl.len()).collect().item()
        self._columns: dict[str, pl.Series] = {}
        self._groups: dict[str, counts.Groups | None] = {}
        self._orders: dict[str, Places] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self.height

    def numeric(self) -> list[str]:
        """Return the columns and measures that are numbers, in the table's order."""
        found = [name for name, kind in self.schema.items() if kind.is_numeric()]
        return [*found, *(name for name in MEASURES if {"width", "height"} <= set(self.schema))]

    def texts(self) -> list[str]:
        """Return the columns of text and of truth values, in the table's order."""
        return [name for name, kind in self.schema.items() if kind in (pl.String, pl.Boolean)]

    def column(self, name: str) -> pl.Series:
        """Return a column or a measure (short_side, aspect_ratio). Raises ColumnError for an unknown one."""
        with self._lock:
            if name not in self._columns:
                if any(one not in self.schema for one in columns_of(name)):
                    raise ColumnError(f"{self.run}: no column {name}. Columns: {', '.join(self.schema)}.")
                value = number(self.schema, name, self.run, name) if name in MEASURES else pl.col(name)
                frame = self._frame.select(value.alias(name)).collect(engine="streaming")
                self._columns[name] = frame[name].rechunk()
            return self._columns[name]

    def values(self, name: str) -> NDArray[np.float64]:
        """Return a numeric column as float64 (N,), null as NaN. Raises ColumnError for text."""
        key = f"{name} as float64"
        with self._lock:
            if key not in self._columns:
                column = self.column(name)
                if not column.dtype.is_numeric() and column.dtype != pl.Boolean:
                    raise ColumnError(f"{self.run}: {name} is {column.dtype}; a number is needed.")
                self._columns[key] = column.cast(pl.Float64).fill_null(math.nan)
            return self._columns[key].to_numpy()

    def groups(self, name: str) -> counts.Groups | None:
        """Return the rows grouped by a column's text (null: `unknown`); None for more than 200 groups."""
        with self._lock:
            if name not in self._groups:
                column = self.column(name)
                few = not column.dtype.is_nested() and column.n_unique() <= _MOST_WORDS
                self._groups[name] = counts.by_value(column) if few else None
            return self._groups[name]

    def ascending(self, name: str) -> Places:
        """Return the places of all rows by rising value of a column; equal rows in the table's order.

        Rows without a value come last.
        """
        with self._lock:
            if name not in self._orders:
                column = self.column(name)
                if column.dtype.is_nested():
                    raise ColumnError(f"{self.run}: {name} holds lists; sort by another column.")
                if column.dtype.is_numeric():
                    found = stable_order(self.values(name))
                else:
                    order = pl.DataFrame({"value": column}).with_row_index("place")
                    found = order.sort("value", "place", nulls_last=True)["place"].to_numpy()
                self._orders[name] = found
            return self._orders[name]

    def num_unknown(self, name: str) -> int:
        """Return the number of rows without a value in a column."""
        column = self.column(name)
        return int((column.fill_nan(None) if column.dtype.is_float() else column).null_count())

    def rows(self, places: Places, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return the cells of `names` (those the table has) of some rows, as plain values, with `row`."""
        wanted = [name for name in dict.fromkeys(names) if name in self.schema or name in MEASURES]
        low, high = (int(places.min()), int(places.max())) if len(places) else (0, 0)
        held = {}
        for name in wanted:
            if name == "caption" and name not in self._columns and high - low < _SLICE_ROWS:
                part = self._frame.select(name).slice(low, high - low + 1).collect()[name]
                held[name] = part.gather(places - low)
            else:
                held[name] = self.column(name).gather(places)
        cells = {name: [plain(value) for value in one.to_list()] for name, one in held.items()}
        return [
            {"row": int(place), **{name: cells[name][at] for name in wanted}}
            for at, place in enumerate(places)
        ]

    def row(self, place: int) -> dict[str, Any]:
        """Return every cell of one row but lists of more than 16 entries. Raises IndexError."""
        if not 0 <= place < self.height:
            raise IndexError(place)
        found = self._frame.slice(place, 1).collect().row(0, named=True)
        return {
            name: plain(value)
            for name, value in found.items()
            if not name.startswith("perceptual_") and not (isinstance(value, list) and len(value) > 16)
        }

    def described(self) -> list[dict[str, Any]]:
        """Return name, kind (number, words, text, list), unit, meaning and stage of every column."""
        found = []
        for name in [*self.schema, *(one for one in self.numeric() if one in MEASURES)]:
            kind = self.schema.get(name, pl.Float64())
            known, own = COLUMNS.get(name), self._words.get(name, {})
            found.append(
                {
                    "name": name,
                    "kind": "list"
                    if kind.is_nested()
                    else "number"
                    if kind.is_numeric()
                    else "words"
                    if kind == pl.Boolean
                    else "text",
                    "is_whole": kind.is_integer(),
                    "unit": known.unit if known else own.get("unit", ""),
                    "meaning": known.meaning if known else own.get("meaning", ""),
                    "stage": known.stage if known else "own",
                }
            )
        return found
