"""Preference among duplicates: which clip is kept, and why."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.errors import ColumnError

PIXELS = "pixels"
FEWER_CUTS = "fewer_cuts"
HEALTHY = "healthy"
BARS = tuple(f"letterbox_{side}_px" for side in ("top", "bottom", "left", "right"))
# Power of the share of a clip's pixels that are picture. With 1 only the picture would count, but edges of
# bars are measured to a few px, and of clips with the same picture that with less around it is to be kept.
_POWER = 1.5
# Names that are no columns of the table, with the columns that they need.
_NEEDS = {PIXELS: {"width", "height"}, FEWER_CUTS: {"num_cuts"}}
# Values within one step are equal: a copy one frame longer is not better.
STEPS = {"duration_seconds": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Preference of rows: values of the columns `names` (missing: -inf), float64 (rows, names).

    `place` is the row's rank, 0 is the best.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    place: NDArray[np.int64]


def columns_of(
    prefer: tuple[str, ...], schema: pl.Schema, defaults: tuple[str, ...], where: str
) -> list[str]:
    """Return the columns of `prefer` that the table has.

    Raises ColumnError for a missing column that is not a default, and for one that is not numeric.
    """
    found = []
    for name in prefer:
        missing = _NEEDS.get(name, {name}) - set(schema)
        if missing:
            if name not in defaults:
                raise ColumnError(f"{where}: dedup.prefer names the column {name}, which does not exist.")
            continue
        if name not in _NEEDS and not (schema[name].is_numeric() or schema[name] == pl.Boolean()):
            raise ColumnError(f"{where}: dedup.prefer needs numeric columns; {name} is {schema[name]}.")
        found.append(name)
    return found


def _bars(side: str, columns: list[str]) -> pl.Expr:
    """Return the px of each of the two bars that shorten `side`; 0 where the frames were not scored.

    Bars are taken for symmetric: beside a dark picture one of the two is not found.
    """
    pair = BARS[:2] if side == "height" else BARS[2:]
    return pl.max_horizontal(pl.lit(0), *(pl.col(name).fill_null(0) for name in pair if name in columns))


def _inside(side: str, columns: list[str]) -> pl.Expr:
    return (pl.col(side).cast(pl.Int64) - 2 * _bars(side, columns)).clip(1)


def sizes_inside(clips: pl.DataFrame) -> NDArray[np.float64]:
    """Return height and width inside the bars, float64 (rows, 2), NaN where unknown."""
    if not _NEEDS[PIXELS] <= set(clips.columns):
        return np.full((len(clips), 2), np.nan)
    sides = [_inside(side, clips.columns).cast(pl.Float64).alias(side) for side in ("height", "width")]
    return clips.select(sides).fill_null(float("nan")).to_numpy().reshape(len(clips), 2)


def _value(name: str, columns: list[str], picture_shares: pl.Series) -> pl.Expr:
    if name == PIXELS:
        value = pl.lit(picture_shares) ** _POWER
        for side in ("height", "width"):
            value *= pl.col(side) * (_inside(side, columns) / pl.col(side)) ** _POWER
        return value
    return -pl.col("num_cuts") if name == FEWER_CUTS else pl.col(name)


def rank(
    clips: pl.DataFrame, names: list[str], picture_shares: NDArray[np.float64] | None = None
) -> Preference:
    """Return the preference among the rows of `clips`.

    `picture_shares` (rows,) is the share of each clip that is not in unseen bars; None: all of it.
    """
    shares = pl.Series(np.ones(len(clips)) if picture_shares is None else picture_shares)
    healthy = [
        pl.col(name).fill_null("ok").is_in(["ok", "not_scored"])
        for name in ("probe_status", "frames_status")
        if name in clips.columns
    ]
    if "num_frames_damaged" in clips.columns:
        healthy.append(pl.col("num_frames_damaged").fill_null(0) == 0)
    exprs = [pl.all_horizontal(healthy).cast(pl.Float64).alias(HEALTHY)] if healthy else []
    for name in names:
        step = STEPS.get(name)
        value = _value(name, clips.columns, shares).cast(pl.Float64)
        exprs.append(((value / step).round() * step if step else value).alias(name))
    table = clips.select(exprs).select(pl.all().fill_nan(None).fill_null(float("-inf")))
    # lexsort sorts by its last key first; the smaller id breaks ties.
    ids = clips["clip_id"].rank("ordinal").to_numpy()
    keys = [ids, *(-table[name].to_numpy() for name in reversed(table.columns))]
    order = np.lexsort(keys)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return Preference(
        names=tuple(table.columns),
        values=table.to_numpy().reshape(len(clips), len(table.columns)),
        place=place,
    )


def _number(value: float) -> str:
    return "unknown" if value in (float("-inf"), float("inf")) else f"{value:.10g}"


def because(found: Preference, kept: NDArray[np.int64], rows: NDArray[np.int64]) -> list[str]:
    """Return, for each of `rows`, the first column in which the row kept for it is better."""
    mine, theirs = found.values[rows], found.values[kept[rows]]
    differs = mine != theirs
    first = np.argmax(differs, axis=1) if differs.size else np.zeros(len(rows), dtype=np.int64)
    reasons = []
    for number, row in enumerate(first.tolist()):
        if not differs.size or not differs[number, row]:
            reasons.append("the smaller clip_id")
        elif found.names[row] == HEALTHY:
            reasons.append("without a problem")
        elif found.names[row] == FEWER_CUTS:
            reasons.append(
                f"{FEWER_CUTS} {_number(0.0 - theirs[number, row])} < {_number(0.0 - mine[number, row])}"
            )
        else:
            reasons.append(
                f"{found.names[row]} {_number(theirs[number, row])} > {_number(mine[number, row])}"
            )
    return reasons
