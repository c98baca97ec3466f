"""Levels of growing difficulty, a train/validation split that no source crosses, and the jump between levels.

The published curriculum (five levels by nouns per caption) diverged at the step from level 4 to 5 until the
hardest 0.01 % was removed. So the jump between neighbours is measured and told before a GPU is booked; what
the figures mean is in docs/difficulty.md. A clip's level and fold do not depend on the order of the rows.
"""

import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from vidcurate import __version__, draws, table
from vidcurate.engine import Progress, no_progress
from vidcurate.errors import ColumnError, InputError
from vidcurate.filter import LEDGER
from vidcurate.recipe import Recipe
from vidcurate.schema import COLUMNS, require

LEVELS = "levels.json"
TAIL = 0.99

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class SplitSpec(Recipe):
    """How to cut the kept clips into levels and folds."""

    column: str = "noun_count"
    """the score that is the difficulty"""
    levels: Annotated[int, Field(ge=1)] = 5
    """how many levels"""
    balance: Literal["clips", "frames"] = "clips"
    """what the levels have equal shares of"""
    ties: Literal["together", "split"] = "together"
    """clips of equal difficulty: all in one level, or parted by a hash of their ids"""
    drop_hardest: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """share of the hardest clips that is rejected first (0.0001 is 0.01 %)"""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """share of the sources that goes to validation"""
    seed: Annotated[int, Field(ge=0)] = 0
    """changes which sources are for validation and how ties are parted"""
    warn_effect_size: Annotated[float, Field(gt=0)] = 4.0
    """warn when neighbours' means differ by more pooled standard deviations"""
    warn_tail_ratio: Annotated[float, Field(gt=0)] = 2.0
    """warn when the 99 % quantile grows by a larger factor"""
    warn_ks_distance: Annotated[float, Field(gt=0, le=1)] = 0.5
    """warn when another column (caption length, frames, duration) shifts by more between neighbours"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What one level holds."""

    level: int
    clips: int
    frames: int | None
    hours: float | None
    validation_clips: int
    min: float
    max: float
    mean: float
    standard_deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """How far level `to_level` is from the one before it, in one column."""

    column: str
    from_level: int
    to_level: int
    effect_size: float | None
    ks_distance: float
    tail_ratio: float | None
    warning: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """What a split made; `rows_in` = `rows_kept` + `rows_rejected`."""

    rows_in: int
    rows_kept: int
    rows_rejected: int
    rows_dropped_here: int
    train_clips: int
    validation_clips: int
    levels: tuple[Level, ...]
    jumps: tuple[Jump, ...]
    warnings: tuple[str, ...]
    up_to_date: bool


def _cuts(ends: Floats, levels: int) -> Ints:
    """Return the last place of each level but the last: where the running total `ends` is nearest to an equal
    share, and at least one place further on than the cut before, so that no level is empty."""
    cuts = np.empty(levels - 1, dtype=np.int64)
    for number in range(1, levels):
        nearest = int(np.argmin(np.abs(ends - ends[-1] * number / levels)))
        first = int(cuts[number - 2]) + 1 if number > 1 else 0
        cuts[number - 1] = min(max(nearest, first), len(ends) - 1 - (levels - number))
    return cuts


def _cut_ties_together(values: Floats, weights: Floats, levels: int) -> Ints:
    """Return the level (from 0) of each clip; equal values share one, no level is empty."""
    distinct, place = np.unique(values, return_inverse=True)
    ends = np.cumsum(np.bincount(place, weights=weights, minlength=len(distinct)), dtype=np.float64)
    return np.searchsorted(_cuts(ends, levels), place, side="left").astype(np.int64)


def _cut_ties_split(values: Floats, weights: Floats, hashes: draws.Words, levels: int) -> Ints:
    """Return the level (from 0) of each clip; within equal values the order of their hashes decides."""
    order = np.lexsort((hashes, values))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.searchsorted(
        _cuts(np.cumsum(weights[order]), levels), np.arange(len(order)), side="left"
    )
    return result


def jump(column: str, low: Floats, high: Floats, spec: SplitSpec, from_level: int) -> Jump:
    """Return how far the values `high` (of level `from_level` + 1) are from `low`.

    effect_size: difference of means over the pooled standard deviation (Cohen's d; None where neither level
    has a spread). ks_distance: the largest distance of the two cumulative distributions. tail_ratio: the 99 %
    quantile of `high` over that of `low` (None where that is 0).
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
        tail_ratio=tails[1] / tails[0] if tails[0] > 0 else None,
        warning=None,
    )
    return Jump(**{**asdict(found), "warning": _warning(found, spec)})


def _warning(found: Jump, spec: SplitSpec) -> str | None:
    """Return what to say of a jump above the limits, and what to do about it."""
    where = f"from level {found.from_level} to {found.to_level}"
    if found.column != spec.column:
        if found.ks_distance > spec.warn_ks_distance:
            return (
                f"{where} {found.column} shifts by a KS distance of {found.ks_distance:.2f} (limit "
                f"{spec.warn_ks_distance:g}): the levels differ in more than {spec.column}; ramp between."
            )
        return None
    if found.tail_ratio is not None and found.tail_ratio > spec.warn_tail_ratio:
        return (
            f"{where} the top 1 % of {found.column} grows {found.tail_ratio:.2f} times (limit "
            f"{spec.warn_tail_ratio:g}): cut the tail (drop_hardest: 0.0001) or ramp into level "
            f"{found.to_level}."
        )
    if found.effect_size is not None and found.effect_size > spec.warn_effect_size:
        return (
            f"{where} the mean of {found.column} moves {found.effect_size:.2f} standard deviations (limit "
            f"{spec.warn_effect_size:g}): use more levels or ramp into level {found.to_level}."
        )
    return None


def _level(number: int, rows: pl.DataFrame, column: str) -> Level:
    values = rows[column].cast(pl.Float64).to_numpy()
    frames = rows["num_frames"].sum() if "num_frames" in rows.columns else None
    seconds = rows["duration_seconds"].sum() if "duration_seconds" in rows.columns else None
    return Level(
        level=number,
        clips=len(rows),
        frames=int(frames) if frames is not None else None,
        hours=float(seconds) / 3600 if seconds is not None else None,
        validation_clips=int((rows["fold"] == "validation").sum()),
        min=float(values.min()),
        max=float(values.max()),
        mean=float(values.mean()),
        standard_deviation=float(values.std()),
    )


def _measure(rows: pl.DataFrame, spec: SplitSpec) -> tuple[list[Level], list[Jump]]:
    parts = [rows.filter(pl.col("level") == number) for number in range(1, spec.levels + 1)]
    levels = [_level(number, part, spec.column) for number, part in enumerate(parts, start=1)]
    columns = [spec.column, "caption_num_words", "num_frames", "duration_seconds"]
    jumps = []
    for column in dict.fromkeys(name for name in columns if name in rows.columns):
        for number, (low, high) in enumerate(itertools.pairwise(parts), start=1):
            pair = [part[column].drop_nulls().cast(pl.Float64).to_numpy() for part in (low, high)]
            if len(pair[0]) and len(pair[1]):
                jumps.append(jump(column, pair[0], pair[1], spec, number))
    return levels, jumps


def _cut(rows: pl.DataFrame, spec: SplitSpec, where: Path) -> pl.DataFrame:
    """Return the rows to be levelled with `level` and `fold`. Raises InputError when they are too few."""
    distinct = rows[spec.column].n_unique()
    if spec.levels > (distinct if spec.ties == "together" else len(rows)):
        have = f"{distinct} different values" if spec.ties == "together" else f"{len(rows)} clips"
        raise InputError(
            f"levels is {spec.levels} and {where} has {have} of {spec.column} among its kept clips. "
            "Ask for fewer levels" + (" or set ties=split." if len(rows) >= spec.levels else ".")
        )
    values = rows[spec.column].cast(pl.Float64).to_numpy()
    weights = np.ones(len(rows))
    if spec.balance == "frames":
        weights = rows["num_frames"].cast(pl.Float64).fill_null(1.0).clip(1.0).to_numpy()
    if spec.ties == "together":
        level = _cut_ties_together(values, weights, spec.levels)
    else:
        hashes = draws.mix(
            draws.id_hashes(rows["clip_id"].to_arrow()) ^ np.uint64(draws.key(spec.seed, "ties"))
        )
        level = _cut_ties_split(values, weights, hashes, spec.levels)
    source = rows["source_id"].fill_null(rows["clip_id"]) if "source_id" in rows.columns else rows["clip_id"]
    draw = draws.uniform(draws.id_hashes(source.to_arrow()), draws.key(spec.seed, "fold"))
    return rows.with_columns(
        pl.Series("level", level + 1, dtype=COLUMNS["level"].dtype),
        pl.when(pl.Series(draw < spec.validation_fraction))
        .then(pl.lit("validation"))
        .otherwise(pl.lit("train"))
        .alias("fold"),
    )


def _drop(rows: pl.DataFrame, spec: SplitSpec) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (rows to be levelled, verdicts on those that are not): no difficulty known, or the hardest."""
    value = pl.col(spec.column)
    unknown = rows.filter(value.is_null()).select(
        "row",
        "clip_id",
        pl.lit(f"no_{spec.column}").alias("rule"),
        pl.lit("unknown").alias("value"),
        pl.lit("known").alias("threshold"),
    )
    rows = rows.filter(value.is_not_null())
    if spec.drop_hardest is None or rows.is_empty():
        return rows, unknown
    limit = rows[spec.column].quantile(1 - spec.drop_hardest, "lower")
    hardest = rows.filter(value > limit).select(
        "row",
        "clip_id",
        pl.lit("drop_hardest").alias("rule"),
        value.cast(pl.String).alias("value"),
        pl.lit(f"<= {limit:.10g}").alias("threshold"),
    )
    return rows.filter(value <= limit), pl.concat([unknown, hardest]).sort("row")


def _with_split(ledger: pl.DataFrame, dropped: pl.DataFrame) -> pl.DataFrame:
    """Return the filter's ledger and behind it the split's rejections, in place of an earlier split's."""
    filtered = ledger.filter(pl.col("stage") != "split")
    number = filtered["order"].max()
    mine = dropped.select(
        "clip_id",
        pl.lit(number + 1 if isinstance(number, int) else 0, dtype=pl.Int32).alias("order"),
        pl.lit("split").alias("stage"),
        "rule",
        "value",
        "threshold",
        pl.lit(__version__).alias("version"),
    )
    return pl.concat([filtered, mine])


def _rows(clips: pl.LazyFrame, spec: SplitSpec, source: Path) -> pl.DataFrame:
    """Return the kept clips, each with its place in the table (`row`), and what a split asks of them."""
    schema = clips.collect_schema()
    again = f"Run `vidcurate filter {source.parent}` first."
    require(schema, ("clip_id", "is_kept"), str(source), again)
    require(schema, (spec.column,), str(source), f"Run `vidcurate score {source.parent}` first.")
    if spec.balance == "frames":
        require(schema, ("num_frames",), str(source), f"Run `vidcurate probe {source.parent}` first.")
    if not schema[spec.column].is_numeric():
        raise ColumnError(
            f"{source}: difficulty is a number, and the column {spec.column} holds {schema[spec.column]}."
        )
    wanted = ["clip_id", "source_id", spec.column, "caption_num_words", "num_frames", "duration_seconds"]
    kept = (
        clips.select("is_kept", *(name for name in dict.fromkeys(wanted) if name in schema))
        .with_row_index("row")
        .filter("is_kept")
        .collect()
    )
    if schema[spec.column].is_float():  # what is not a number is as unknown as what is missing
        kept = kept.with_columns(pl.col(spec.column).fill_nan(None))
    return kept


def run_split(run: Path, spec: SplitSpec, *, progress: Progress = no_progress) -> SplitSummary:
    """Add `level` and `fold` to every kept clip; write RUN/split.parquet and RUN/levels.json.

    Raises InputError when there are fewer clips (or different values) than levels, ColumnError, StageError.
    """
    previous = table.previous_stage(run, "split")
    source = table.stage_path(run, previous)
    origin = table.Provenance(
        stage="split", settings=json.loads(spec.model_dump_json()), inputs={previous: table.digest(source)}
    )
    target, levels_path, ledger_path = table.stage_path(run, "split"), run / LEVELS, run / LEDGER
    if table.is_up_to_date(target, origin) and levels_path.exists():
        summary = _summary(levels_path, up_to_date=True)
        if not ledger_path.exists() or summary.rows_dropped_here == _told(ledger_path):
            return summary
    clips = table.scan(run, previous)
    rows, dropped = _drop(_rows(clips, spec, source), spec)
    if rows.is_empty():
        raise InputError(
            f"{source}: no clip is kept, so there is nothing to split. Look at {run / 'funnel.json'}."
        )
    rows = _cut(rows, spec, source)
    progress(1, 2, "steps")
    levels, jumps = _measure(rows, spec)
    total = clips.select(pl.len()).collect().item()
    summary = SplitSummary(
        rows_in=total,
        rows_kept=len(rows),
        rows_rejected=total - len(rows),
        rows_dropped_here=len(dropped),
        train_clips=int((rows["fold"] == "train").sum()),
        validation_clips=int((rows["fold"] == "validation").sum()),
        levels=tuple(levels),
        jumps=tuple(jumps),
        warnings=tuple(found.warning for found in jumps if found.warning),
        up_to_date=False,
    )
    table.write_json(levels_path, {"column": spec.column, **asdict(summary)})
    if ledger_path.exists():
        ledger = _with_split(pl.read_parquet(ledger_path), dropped)
        table.write(ledger, ledger_path, table.provenance(ledger_path))
    table.write(_joined(clips, rows, dropped), target, origin)
    progress(2, 2, "steps")
    return summary


def _told(ledger_path: Path) -> int:
    """Return how many rejections by the split the ledger holds: a filter that ran again leaves them out."""
    counted: int = (
        pl.scan_parquet(ledger_path).filter(pl.col("stage") == "split").select(pl.len()).collect().item()
    )
    return counted


def _joined(clips: pl.LazyFrame, rows: pl.DataFrame, dropped: pl.DataFrame) -> pl.DataFrame:
    """Return every row's level and fold, and its verdict with those on the clips dropped here."""
    verdict = ("is_kept", "reject_stage", "reject_rule", "reject_value", "reject_threshold")
    every = clips.select("clip_id", *verdict).collect()

    def scattered(at: pl.DataFrame, name: str) -> pl.Series:
        place = pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(every))
        place = place.scatter(at["row"], pl.int_range(len(at), dtype=pl.UInt32, eager=True))
        return at[name].gather(place)

    is_dropped = scattered(dropped, "rule").is_not_null()
    return every.with_columns(
        scattered(rows, "level"),
        scattered(rows, "fold"),
        (pl.col("is_kept") & ~is_dropped).alias("is_kept"),
        pl.when(is_dropped).then(pl.lit("split")).otherwise("reject_stage").alias("reject_stage"),
        *(
            pl.coalesce(scattered(dropped, name), f"reject_{name}").alias(f"reject_{name}")
            for name in ("rule", "value", "threshold")
        ),
    )


def _summary(levels_path: Path, *, up_to_date: bool) -> SplitSummary:
    told: dict[str, Any] = json.loads(levels_path.read_text(encoding="utf-8"))
    return SplitSummary(
        **{
            **{name: told[name] for name in SplitSummary.__dataclass_fields__},
            "levels": tuple(Level(**level) for level in told["levels"]),
            "jumps": tuple(Jump(**found) for found in told["jumps"]),
            "warnings": tuple(told["warnings"]),
            "up_to_date": up_to_date,
        }
    )
