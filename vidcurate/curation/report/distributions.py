"""Distributions: a histogram per measured column, and the levels with their jumps."""

import math
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
from markupsafe import Markup

from vidcurate.curation.clip_table.schema import AGGREGATES, COLUMNS
from vidcurate.curation.report import histogram, svg
from vidcurate.curation.report.histogram import Bars, Series, Span
from vidcurate.curation.report.limits import Bound

_MOST_INKS = 5
_MOST_VALUES, _MOST_CHARACTERS = 6, 60  # of an own column of text

# The first histograms: title, unit, needed columns, and values.
_FIRST: dict[str, tuple[str, str, tuple[str, ...], pl.Expr]] = {
    "duration_seconds": ("Duration", "s", ("duration_seconds",), pl.col("duration_seconds")),
    "short_side": ("Short side", "px", ("width", "height"), pl.min_horizontal("width", "height")),
    "aspect_ratio": (
        "Aspect ratio (height / width)",
        "",
        ("width", "height"),
        pl.col("height") / pl.col("width"),
    ),
    "fps": ("Frame rate", "frames/s", ("fps",), pl.col("fps")),
    "num_frames": ("Frames", "", ("num_frames",), pl.col("num_frames")),
    "file_size_bytes": ("File size", "B", ("file_size_bytes",), pl.col("file_size_bytes")),
    "caption_num_words": ("Caption length", "words", ("caption_num_words",), pl.col("caption_num_words")),
    "noun_count": ("Nouns in the caption", "nouns", ("noun_count",), pl.col("noun_count")),
}
_SCORING = ("score", "frames", "models")
# This aggregate of a score is always visible; the others are in a collapsed section.
_IN_FRONT = "median"


def _measures(
    schema: pl.Schema, limited: Sequence[str], own: Collection[str]
) -> dict[str, tuple[str, str, pl.Expr, bool]]:
    """Return measure → (title, unit, values, whether always visible) of every measured column.

    Measured columns: sizes, scores of the stages, scores of the metadata, columns with a limit, and the `own`
    columns of the metadata that are numbers or true and false (1 and 0).
    """
    found = {
        name: (title, unit, value, True)
        for name, (title, unit, needed, value) in _FIRST.items()
        if all(one in schema for one in needed)
    }
    for name, dtype in schema.items():
        column = COLUMNS.get(name)
        is_score = column is not None and (
            column.stage in _SCORING or (column.stage == "ingest" and name.endswith("_score"))
        )
        is_own = name in own and (dtype.is_numeric() or dtype == pl.Boolean())
        if name in found or not (is_own or (dtype.is_numeric() and (is_score or name in limited))):
            continue
        stem, _, last = name.rpartition("_")
        is_aggregate = last in AGGREGATES and f"{stem}_{_IN_FRONT}" in schema
        unit = column.unit if column and column.unit != "share" else ""
        title = name if is_own else _titled(f"{stem} ({last})" if is_aggregate else name)
        in_front = name in limited or not is_aggregate or last == _IN_FRONT
        found[name] = (title, unit, pl.col(name), in_front)
    return found


def _titled(name: str) -> str:
    """Return a column's name as a title; its unit stands beside it."""
    words = re.sub(r"_px_per_frame|_seconds|_px(?=_|$)|^num_|_num(?=_)", "", name).replace("_", " ")
    return words[:1].upper() + words[1:]


def histograms(
    checked: pl.LazyFrame, every: Sequence[Bound], own: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return a histogram of each measure that has values: kept and rejected clips, with the limits.

    `own` are the own columns of the metadata. `only` is the value as text when all clips have the same. Loads
    one column at a time.
    """
    limited: dict[str, list[tuple[str, float]]] = {}
    for bound in every:
        limited.setdefault(bound.measure, []).append((bound.word, bound.value))
    drawn = []
    measures = _measures(checked.collect_schema(), list(limited), own)
    for name, (title, unit, value, in_front) in measures.items():
        frame = checked.select("is_kept", value.cast(pl.Float64).fill_nan(None).alias("value")).collect()
        known = frame.filter(pl.col("value").is_not_null())
        if known.is_empty():
            continue
        kept, dropped = (known.filter(is_in)["value"].to_numpy() for is_in in ("is_kept", ~pl.col("is_kept")))
        thresholds = limited.get(name, [])
        if unit == "B":
            divisor, unit = _bytes_unit(float(known["value"].max()))  # type: ignore[arg-type]
            kept, dropped = kept / divisor, dropped / divisor
            known = known.with_columns(pl.col("value") / divisor)
            thresholds = [(word, limit / divisor) for word, limit in thresholds]
        series = [
            Series(name="kept", ink="keep", values=kept),
            Series(name="rejected", ink="drop", values=dropped),
        ]
        low, high = float(known["value"].min()), float(known["value"].max())  # type: ignore[arg-type]
        only = svg.shown(low) + (f" {unit}" if unit else "") if low == high and not thresholds else ""
        drawn.append(
            {
                "name": name,
                "title": title,
                "unit": unit,
                "in_front": in_front,
                "svg": histogram.histogram(series, title=title, unit=unit, thresholds=thresholds),
                "only": only,
                "words": _as_text(kept, unit),
                "unknown": frame.height - known.height,
            }
        )
    return drawn


def own_texts(checked: pl.LazyFrame, own: Collection[str]) -> list[dict[str, Any]]:
    """Return the commonest values of each own column of text in which a value occurs twice.

    Each entry: name, num_values (different ones), unknown (clips without one), and values, each with the
    number of clips kept and rejected.
    """
    schema = checked.collect_schema()
    found = []
    for name in own:
        if schema.get(name) != pl.String():
            continue
        value = pl.col(name).str.slice(0, _MOST_CHARACTERS)
        counted = (
            checked.group_by(value.alias("value"))
            .agg(pl.len().alias("clips"), pl.col("is_kept").sum().alias("kept"))
            .sort("clips", "value", descending=[True, False])
            .collect(engine="streaming")
        )
        known = counted.filter(pl.col("value").is_not_null())
        if known.height and known["clips"][0] > 1:
            common = known.head(_MOST_VALUES)
            found.append(
                {
                    "name": name,
                    "num_values": known.height,
                    "unknown": sum(counted.filter(pl.col("value").is_null())["clips"]),
                    "values": list(
                        common.select("value", "kept", pl.col("clips") - pl.col("kept")).iter_rows()
                    ),
                }
            )
    return found


def _bytes_unit(most: float) -> tuple[float, str]:
    """Return (bytes, name) of the unit in which `most` bytes are at least one."""
    power = min(int(math.log(max(most, 1.0), 1024)), 4)
    return float(1024**power), ("B", "KiB", "MiB", "GiB", "TiB")[power]


def _as_text(values: histogram.Values, unit: str) -> str:
    values = values[np.isfinite(values)]
    if not values.size:
        return "nothing kept"
    # Of fewer than twenty clips 90 % is all but none, or all but one.
    is_few = values.size < 20
    # A count has no half: for whole numbers the quantiles are values that a clip has.
    method: Literal["nearest", "linear"] = "nearest" if (values == np.round(values)).all() else "linear"
    low, middle, high = (
        svg.shown(float(np.quantile(values, share, method=method)))
        for share in ((0.0, 0.5, 1.0) if is_few else (0.05, 0.5, 0.95))
    )
    share_within = "all" if is_few else "90 %"
    return f"kept: median {middle}{f' {unit}' if unit else ''}, {share_within} within {low} to {high}"


def measure_as_text(column: str) -> str:
    """Return the name of a column for use in a sentence."""
    title = _FIRST[column][0] if column in _FIRST else column.replace("_", " ")
    return title[:1].lower() + title[1:]


def _ink(level: int, levels: int) -> str:
    """Return the CSS class of a level: the page has five colours from light to dark."""
    return f"level-{1 + round((level - 1) * (_MOST_INKS - 1) / max(levels - 1, 1))}"


def levels(checked: pl.LazyFrame, reported: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the split's figures with charts: the difficulty, its ranges, and columns that shift with it."""
    if reported is None:
        return None
    column, rows = reported["column"], reported["levels"]
    inks = {row["level"]: _ink(row["level"], len(rows)) for row in rows}
    spans = [
        Span(
            name=f"level {row['level']}",
            ink=inks[row["level"]],
            low=row["min"],
            high=row["max"],
            mean=row["mean"],
            spread=row["standard_deviation"],
        )
        for row in rows
    ]
    title = column.replace("_", " ")
    counted = (reported.get("histograms") or {}).get("columns", {})
    return {
        **reported,
        "title": title,
        "histogram": _of_difficulty(checked, column, inks, title),
        "spans": histogram.spans(spans, title=f"{title} of each level"),
        "shifting": [
            {"title": measure_as_text(name), "svg": _of_counts(name, found, inks)}
            for name, found in counted.items()
            if name != column
        ],
        "inks": inks,
    }


def _of_difficulty(checked: pl.LazyFrame, column: str, inks: dict[int, str], title: str) -> Markup:
    frame = checked.filter(pl.col("level").is_not_null()).select("level", column).collect()
    series = [
        Series(
            name=f"in level {level}",
            ink=ink,
            values=frame.filter(pl.col("level") == level)[column].drop_nulls().cast(pl.Float64).to_numpy(),
        )
        for level, ink in inks.items()
    ]
    return histogram.histogram(series, title=f"{title} by level")


def _of_counts(name: str, found: dict[str, Any], inks: dict[int, str]) -> Markup:
    """Return a histogram as the split counted it: {edges, counts, quantiles} of levels.json."""
    edges, counts = np.array(found["edges"]), np.array(found["counts"], dtype=np.int64)
    is_whole = bool((edges == np.round(edges)).all() and (np.diff(edges) == 1).all())
    bars = Bars(edges=edges - 0.5 if is_whole else edges, counts=counts, is_whole=is_whole, num_beyond=0)
    middles = [row[len(row) // 2] if row else float("nan") for row in found["quantiles"]]
    medians = ", ".join(
        f"level {level}: median {svg.shown(middle)}" for level, middle in zip(inks, middles, strict=True)
    )
    names = [(f"in level {level}", ink) for level, ink in inks.items()]
    return histogram.counted_histogram(
        bars, names, description=f"{measure_as_text(name)} by level: {medians}"
    )
