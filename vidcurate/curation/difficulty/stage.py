"""Stage `split`: difficulty levels, train/validation folds, jumps between levels.

The published curriculum (five levels by nouns per caption) diverged from level 4 to 5 until the hardest 0.01
% was removed. So this stage measures and reports the jump between neighbouring levels before training; see
docs/difficulty.md. No source is in both folds. A clip's level and fold do not depend on the row order.
"""

import itertools
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vidcurate import rng
from vidcurate.curation.clip_table import rejection_ledger, run_lock, table
from vidcurate.curation.clip_table.rejection_ledger import LEDGER
from vidcurate.curation.clip_table.schema import COLUMNS, require
from vidcurate.curation.difficulty import advice, cut
from vidcurate.curation.difficulty.advice import FRAGMENT, recipe_fragment
from vidcurate.curation.difficulty.jumps import QUANTILES, Jump, histograms, jump
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.summary import LEVELS, Level, SplitSummary, read_summary
from vidcurate.curation.filter.rules import text
from vidcurate.errors import ColumnError, InputError, counted
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.storage import atomic_file

# Columns besides the difficulty whose jump between levels is measured.
SHIFTING = ("caption_num_words", "num_frames", "duration_seconds")
LARGEST_DIFFICULTY = 1e100  # the largest difficulty: the squares of more have no sum


def _level(number: int, rows: pl.DataFrame, column: str) -> Level:
    values = rows[column].cast(pl.Float64).to_numpy()
    frames = rows["num_frames"].sum() if "num_frames" in rows.columns else None
    seconds = rows["duration_seconds"].sum() if "duration_seconds" in rows.columns else None
    return Level(
        level=number,
        clips=len(rows),
        frames=int(frames) if frames is not None else None,
        tokens=int(rows["tokens"].sum()) if "tokens" in rows.columns else None,
        hours=float(seconds) / 3600 if seconds is not None else None,
        validation_clips=int((rows["fold"] == "validation").sum()),
        min=float(values.min()),
        max=float(values.max()),
        mean=float(values.mean()),
        standard_deviation=float(values.std()),
    )


def _ascending(part: pl.DataFrame, column: str) -> cut.Floats:
    """Return the known values of `column` in a level, ascending, float64."""
    return part[column].drop_nulls().cast(pl.Float64).sort().to_numpy()


def _measure(values: Mapping[str, list[cut.Floats]], spec: SplitSpec) -> list[Jump]:
    return [
        jump(column, low, high, spec, number)
        for column, levels in values.items()
        for number, (low, high) in enumerate(itertools.pairwise(levels), start=1)
        if len(low) and len(high)
    ]


def _with_folds(rows: pl.DataFrame, spec: SplitSpec) -> tuple[pl.DataFrame, cut.Floats]:
    """Return the rows with `fold`, and the draws that decide the fold, float64 (n,)."""
    draws = cut.fold_draws(rows, spec.seed)
    is_validation = pl.Series(draws < cut.validation_limit(draws, spec.validation_fraction))
    fold = pl.when(is_validation).then(pl.lit("validation")).otherwise(pl.lit("train"))
    return rows.with_columns(fold.alias("fold")), draws


def _with_levels(rows: pl.DataFrame, spec: SplitSpec, where: Path) -> pl.DataFrame:
    """Return the rows with `level` (and `tokens`). Raises InputError for too few rows."""
    distinct = rows[spec.column].n_unique()
    if spec.levels > (distinct if spec.ties == "together" else len(rows)):
        have = f"{distinct} different values" if spec.ties == "together" else counted(len(rows), "clip")
        raise InputError(
            f"levels is {spec.levels}, but {where} has {have} of {spec.column} among its kept clips. "
            "Set fewer levels" + (" or set ties=split." if len(rows) >= spec.levels else ".")
        )
    values = rows[spec.column].cast(pl.Float64).to_numpy()
    tokens = cut.tokens_of(rows, spec)
    weights = cut.weights_of(rows, tokens, spec)
    if spec.ties == "together":
        level = cut.ties_together(values, weights, spec.levels)
    else:
        hashes = rng.mix(rng.id_hashes(rows["clip_id"].to_arrow()) ^ np.uint64(rng.key(spec.seed, "ties")))
        level = cut.ties_split(values, weights, hashes, spec.levels)
    return rows.with_columns(
        *([] if tokens is None else [pl.Series("tokens", tokens)]),
        pl.Series("level", level + 1, dtype=COLUMNS["level"].dtype),
    )


def _exact(value: pl.Expr, schema: pl.Schema) -> pl.Expr:
    """Return the column in a type whose text parses to the same number."""
    return value.cast(pl.Float64) if schema[value.meta.output_name()].is_float() else value


def _drop(rows: pl.DataFrame, spec: SplitSpec) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (rows to split, verdicts on the dropped rows): unknown difficulty, or the hardest."""
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
    assert limit is not None, "a column without nulls has quantiles"
    hardest = rows.filter(value > limit).select(
        "row",
        "clip_id",
        pl.lit("drop_hardest").alias("rule"),
        _exact(value, rows.schema).cast(pl.String).alias("value"),
        pl.lit(f"<= {text(limit)}").alias("threshold"),
    )
    return rows.filter(value <= limit), pl.concat([unknown, hardest]).sort("row")


def _with_split(reported: pl.DataFrame, dropped: pl.DataFrame, spec: SplitSpec) -> pl.DataFrame:
    """Return the filter's ledger with this split's rejections instead of those of later stages."""
    filtered = reported.filter(~pl.col("stage").is_in(["split", rejection_ledger.BUILD]))
    number = filtered["order"].max()
    mine = dropped.select(
        "clip_id",
        pl.lit(number + 1 if isinstance(number, int) else 0, dtype=pl.Int32).alias("order"),
        pl.lit("split").alias("stage"),
        "rule",
        pl.lit(spec.column).alias("measure"),
        "value",
        "threshold",
        pl.lit(value=True).alias("is_verdict"),
    )
    signed = rejection_ledger.signed(mine, spec.model_dump_json()).select(rejection_ledger.ORDER)
    return pl.concat([filtered.select(rejection_ledger.ORDER), signed])


def _rows(clips: pl.LazyFrame, spec: SplitSpec, source: Path) -> pl.DataFrame:
    """Return the kept clips with their position in the table (`row`) and the columns that a split needs."""
    schema = clips.collect_schema()
    again = f"Run `vidcurate filter {source.parent}` first."
    require(schema, ("clip_id", "is_kept"), str(source), again)
    require(schema, (spec.column,), str(source), f"Run `vidcurate score {source.parent}` first.")
    sizes = {"clips": (), "frames": ("num_frames",), "tokens": ("num_frames", "height", "width")}
    require(schema, sizes[spec.balance], str(source), f"Run `vidcurate probe {source.parent}` first.")
    if not schema[spec.column].is_numeric():
        raise ColumnError(
            f"{source}: the difficulty must be a number; the column {spec.column} is {schema[spec.column]}."
        )
    wanted = ["clip_id", "source_id", spec.column, *SHIFTING, "height", "width"]
    kept = (
        clips.select("is_kept", *(name for name in dict.fromkeys(wanted) if name in schema))
        .with_row_index("row")
        .filter("is_kept")
        .collect()
    )
    if schema[spec.column].is_float():  # NaN counts as missing
        kept = kept.with_columns(pl.col(spec.column).fill_nan(None))
        too_large = kept.filter(pl.col(spec.column).abs() > LARGEST_DIFFICULTY)["clip_id"]
        if len(too_large):
            limit, end = f"limits.{spec.column}.max", f"{LARGEST_DIFFICULTY:g}"
            raise InputError(
                f"{source}: {spec.column} of {counted(len(too_large), 'kept clip')} is infinite or beyond "
                f"{end} (first: {too_large[0]!r}): levels have no mean. Reject them with `vidcurate "
                f"filter {source.parent} --set {limit}={end}`, or min=-{end}."
            )
    return kept


@run_lock.holding_run
def run_split(run: Path, spec: SplitSpec, *, progress: Progress = no_progress) -> SplitSummary:
    """Add `level` and `fold` to every kept clip; write split.parquet, levels.json and levels.yaml.

    Raises InputError when there are fewer clips (or different values) than levels, ColumnError, StageError.
    """
    previous = table.previous_stage(run, "split")
    source = table.stage_path(run, previous)
    origin = table.Provenance(
        stage="split", settings=json.loads(spec.model_dump_json()), inputs={previous: table.digest(source)}
    )
    target, levels_path, ledger_path = table.stage_path(run, "split"), run / LEVELS, run / LEDGER
    entries = rejection_ledger.read_ledger(run) if ledger_path.exists() else None
    if table.is_up_to_date(target, origin) and levels_path.exists() and (run / FRAGMENT).exists():
        summary = read_summary(levels_path)
        if entries is None or summary.rows_dropped_here == _num_reported(entries):
            return summary
    clips = table.scan(run, previous)
    kept = _rows(clips, spec, source)
    if kept.is_empty():
        target.unlink(missing_ok=True)  # a split of an older filter, which report would refuse
        raise InputError(
            f"{source}: no clip is kept, so there is nothing to split. `vidcurate report {run}` shows which "
            "rules rejected them."
        )
    rows, dropped = _drop(kept, spec)
    if rows.is_empty():
        raise InputError(f"{source}: {spec.column} has no value in any of {counted(len(kept), 'kept clip')}.")
    with ThreadPoolExecutor(max_workers=1) as beside:
        folds = beside.submit(_with_folds, rows, spec)
        levels = _with_levels(rows, spec, source)
        rows, draws = folds.result()
    rows = levels.with_columns(rows["fold"])
    total = clips.select(pl.len()).collect().item()
    progress(1, 2, "steps")
    with table.writing(_joined(clips, rows, dropped, total), target, origin):
        summary, drawn = _measured(rows, draws, spec, total, len(dropped))
        atomic_file.write_json(levels_path, {"column": spec.column, **asdict(summary), "histograms": drawn})
        atomic_file.write_text(run / FRAGMENT, recipe_fragment(spec.levels, summary.ramps, spec))
        if entries is not None and (len(dropped) or _num_reported(entries)):
            reported = _with_split(entries.collect(), dropped, spec)
            table.write(reported, ledger_path, table.provenance(ledger_path))
    progress(2, 2, "steps")
    return summary


def _measured(
    rows: pl.DataFrame, draws: cut.Floats, spec: SplitSpec, total: int, num_dropped: int
) -> tuple[SplitSummary, dict[str, Any]]:
    """Return the summary of the split `rows` of `total`, and the histograms of levels.json."""
    parts = [rows.filter(pl.col("level") == number) for number in range(1, spec.levels + 1)]
    columns = [name for name in dict.fromkeys((spec.column, *SHIFTING)) if name in rows.columns]
    by_level = {name: [_ascending(part, name) for part in parts] for name in columns}
    jumps = _measure(by_level, spec)
    train_clips = {number: int((part["fold"] == "train").sum()) for number, part in enumerate(parts, start=1)}
    ramps = advice.ramps(jumps, train_clips, spec)
    values = rows[spec.column].cast(pl.Float64).to_numpy()
    tail = advice.tail(values)
    ends = [part[spec.column].cast(pl.Float64).to_numpy() for part in parts[-2:]]
    to_ratio = advice.tail_to_ratio(ends[0], ends[1], len(rows), spec) if len(ends) == 2 else None
    summary = SplitSummary(
        rows_in=total,
        rows_kept=len(rows),
        rows_rejected=total - len(rows),
        rows_dropped_here=num_dropped,
        train_clips=sum(train_clips.values()),
        validation_clips=len(rows) - sum(train_clips.values()),
        levels=tuple(_level(number, part, spec.column) for number, part in enumerate(parts, start=1)),
        jumps=tuple(jumps),
        ramps=ramps,
        tail=tail,
        tail_to_ratio=to_ratio,
        warnings=tuple(found.warning for found in jumps if found.warning),
        advice=(
            *advice.texts(ramps, tail, to_ratio, spec),
            *advice.few_clips(train_clips),
            *advice.empty_validation(draws, cut.validation_limit(draws, spec.validation_fraction)),
        ),
        up_to_date=False,
    )
    return summary, {"quantiles": QUANTILES, "columns": histograms(by_level)}


def _num_reported(entries: pl.LazyFrame) -> int:
    """Count the split's rejections in the ledger (0 after the filter has run again)."""
    counted: int = entries.filter(pl.col("stage") == "split").select(pl.len()).collect().item()
    return counted


def _joined(clips: pl.LazyFrame, rows: pl.DataFrame, dropped: pl.DataFrame, total: int) -> pl.LazyFrame:
    """Return the level, fold and verdict of every row of `total`, including the clips dropped here."""
    verdict = ("is_kept", "reject_stage", "reject_rule", "reject_value", "reject_threshold")

    def places(at: pl.DataFrame) -> pl.Series:
        place = pl.Series([None], dtype=pl.UInt32).new_from_index(0, total)
        return place.scatter(at["row"], pl.int_range(len(at), dtype=pl.UInt32, eager=True))

    place = places(rows)
    cut_here = pl.DataFrame([rows[name].gather(place) for name in ("level", "fold")]).lazy()
    every = pl.concat([clips.select("clip_id", *verdict), cut_here], how="horizontal")
    if dropped.is_empty():
        return every
    place = places(dropped)
    is_dropped = place.is_not_null()
    return every.with_columns(
        (pl.col("is_kept") & ~is_dropped).alias("is_kept"),
        pl.when(is_dropped).then(pl.lit("split")).otherwise("reject_stage").alias("reject_stage"),
        *(
            pl.coalesce(dropped[name].gather(place), f"reject_{name}").alias(f"reject_{name}")
            for name in ("rule", "value", "threshold")
        ),
    )
