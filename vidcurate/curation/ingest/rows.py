"""Adapter rows: text cells under table names, parsed to numbers or a bad value.

An adapter hands on cells as text (or as numbers that it worked out itself) under the names of CELLS. What
does not parse is never dropped: the row's `bad` says which column held what.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

# Columns that an adapter may fill, and their dtype in the table. `bad` and `note` may come beside them.
CELLS: dict[str, pl.DataType] = {
    "clip_id": pl.String(),
    "source_dataset": pl.String(),
    "source_id": pl.String(),
    "video_path": pl.String(),
    "caption": pl.String(),
    "start_seconds": pl.Float64(),
    "end_seconds": pl.Float64(),
    "width": pl.Int32(),
    "height": pl.Int32(),
    "fps": pl.Float64(),
    "num_frames": pl.Int64(),
    "duration_seconds": pl.Float64(),
    "aesthetic_score": pl.Float64(),
    "motion_score": pl.Float64(),
    "temporal_consistency_score": pl.Float64(),
    "matching_score": pl.Float64(),
    "clarity_score": pl.Float64(),
    "suitability_score": pl.Float64(),
    "camera_motion": pl.String(),
    "desirable_filtering": pl.String(),
}
MEASURES = ("width", "height", "fps", "num_frames", "duration_seconds")
TIMES = ("start_seconds", "end_seconds", "duration_seconds")
# The largest time (s, 31 years) or rate (frames/s): a frame's number, their product, is then an integer.
_LARGEST = 1e9
_BOUNDED = (*TIMES, "fps")
BETWEEN_BAD = "\x1f"  # parts several bad cells of a row
_NUMBER = "number:"  # number:fps is the column of rows that holds the number parsed from the text in fps
_PAIR = r"""^\s*[\[(]\s*['"]?([0-9:.]+)['"]?\s*,\s*['"]?([0-9:.]+)['"]?\s*[\])]\s*$"""
_CLOCK = r"^(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)$"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCell:
    """Own column: `part` is its column in an adapter's rows, `value` the typed cells of that column."""

    part: str
    name: str
    source: str
    value: pl.Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """An adapter's rows. `labels` maps our column to the name that messages use (the source's own).

    Beside CELLS the frame has the parts of the `own` columns, and further captions: either `caption:NAME` for
    each named one, or captions and caption_name as in the table.
    """

    frame: pl.LazyFrame
    own: tuple[OwnCell, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def seconds(text: pl.Expr) -> pl.Expr:
    """Return `H:M:S.f`, `M:S` or plain seconds as seconds (Float64); null where it is none of these."""
    has_colon = text.str.contains(":", literal=True)
    clock = pl.when(has_colon).then(text).str.extract_groups(_CLOCK)  # quick where there is none
    hours, minutes, rest = (clock.struct.field(str(part)).cast(pl.Float64) for part in (1, 2, 3))
    return (
        pl.when(has_colon)
        .then(hours.fill_null(0) * 3600 + minutes * 60 + rest)
        .otherwise(text.cast(pl.Float64, strict=False))
    )


def clock_pair(text: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return the two times of a cell such as `['0:00:05.005', '0:01:00.0']` in seconds, or nulls."""
    pair = text.str.extract_groups(_PAIR)
    return seconds(pair.struct.field("1")), seconds(pair.struct.field("2"))


def bad_cell(is_bad: pl.Expr, label: str, text: pl.Expr) -> pl.Expr:
    """Return `label=text` (cut to 80 characters) where `is_bad`, else null."""
    return pl.when(is_bad).then(pl.concat_str(pl.lit(f"{label}="), text.cast(pl.String).str.slice(0, 80)))


def _number(name: str, dtype: pl.DataType) -> tuple[pl.Expr, pl.Expr]:
    """Return (value, is bad) of the text column `name` as `dtype`, from the column of its parsed number."""
    number = pl.col(f"{_NUMBER}{name}")
    good = number.is_finite()
    if name in MEASURES or name in TIMES:
        good = good & (number >= 0)
    if name in _BOUNDED:
        good = good & (number <= _LARGEST)
    if dtype.is_integer():
        largest = 2**31 - 1 if dtype == pl.Int32() else 2**53
        good = good & (number == number.floor()) & (number <= largest)
    good = good.fill_null(False)
    return pl.when(good).then(number).cast(dtype), pl.col(name).is_not_null() & ~good


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """An adapter's rows with their numbers: expressions over `frame`.

    `cells`: our columns in the table's dtypes. `is_bad`: whether a cell of the row does not parse. `bad`:
    `column=value` for each of those cells, else null; that text costs as much as parsing the numbers, so ask
    for the text of bad rows only.
    """

    frame: pl.LazyFrame
    cells: Mapping[str, pl.Expr]
    is_bad: pl.Expr
    bad: pl.Expr


def typed(rows: Rows) -> Typed:
    """Parse the text cells of `rows`. Zero is kept: tools write it for a video that they could not open."""
    schema = rows.frame.collect_schema()
    cells: dict[str, pl.Expr] = {}
    numbers: dict[
        str, pl.Expr
    ] = {}  # parsed once, in columns: polars repeats an expression that is used twice
    flags: list[pl.Expr] = [pl.col("bad").fill_null("") != ""] if "bad" in schema else []
    bad: list[pl.Expr] = [pl.col("bad")] if "bad" in schema else []

    def flag(is_bad: pl.Expr, name: str) -> None:
        flags.append(is_bad)
        bad.append(bad_cell(is_bad, rows.labels.get(name, name), pl.col(name)))

    for name, dtype in CELLS.items():
        if name not in schema:
            cells[name] = pl.lit(None, dtype=dtype)
        elif dtype == pl.String() or schema[name] != pl.String():
            cells[name] = pl.col(name).cast(dtype)
            if name in _BOUNDED:  # worked out by the adapter, from numbers of any size
                is_bad = (cells[name] > _LARGEST).fill_null(value=False)  # NaN is larger than any number
                cells[name] = pl.when(~is_bad).then(cells[name])
                flag(is_bad, name)
        else:
            text = pl.col(name)
            numbers[f"{_NUMBER}{name}"] = (
                seconds(text) if name in TIMES else text.cast(pl.Float64, strict=False)
            )
            cells[name], is_bad = _number(name, dtype)
            flag(is_bad, name)
    if "start_seconds" in schema and "end_seconds" in schema:
        is_empty = cells["end_seconds"] <= cells["start_seconds"].fill_null(0.0)
        flag(is_empty.fill_null(value=False), "end_seconds")
    return Typed(
        frame=rows.frame.with_columns(**numbers),
        cells=cells,
        is_bad=pl.any_horizontal(flags) if flags else pl.lit(value=False),
        bad=pl.concat_str(bad, separator=BETWEEN_BAD, ignore_nulls=True) if bad else pl.lit(""),
    )


def best_known(cells: Mapping[str, pl.Expr]) -> dict[str, pl.Expr]:
    """Return width, height, fps, num_frames and duration as far as the metadata tells; zero tells nothing."""
    known: dict[str, pl.Expr] = {name: pl.when(cells[name] > 0).then(cells[name]) for name in MEASURES}
    known["duration_seconds"] = pl.coalesce(
        known["duration_seconds"],
        known["num_frames"] / known["fps"],
        cells["end_seconds"] - cells["start_seconds"].fill_null(0.0),
    )
    return known
