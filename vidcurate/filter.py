"""The verdict: every clip kept or rejected by a named rule, with its value and what the rule asked for.

Rules are expressions over the table, tried in a fixed order; the first that fails gives the verdict, the
ledger lists all that fail. A missing value fails: nothing is kept because nobody measured it. Outlier rules
come last, each over the rows that passed everything before it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import polars as pl
from pydantic import Field, field_validator, model_validator

from vidcurate import __version__, table
from vidcurate.engine import Progress, no_progress
from vidcurate.errors import ColumnError
from vidcurate.recipe import Recipe
from vidcurate.schema import COLUMNS

FUNNEL = "funnel.json"
LEDGER = "ledger.parquet"
UNKNOWN = "unknown"

Limit = Annotated[float, Field(ge=0)] | None
Whole = Annotated[int, Field(ge=0)] | None


class Range(Recipe):
    """What a score may be. Either end may be left open."""

    min: float | None = None
    """the smallest value that is kept"""
    max: float | None = None
    """the largest value that is kept"""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}: nothing could be kept")
        return self


class OutlierRule(Recipe):
    """Removal of values far from the rest.

    `tail_quantile`: the share `value` at the end (0.0001 takes the hardest 0.01 %); ties at the cut stay
    together, on the kept side. `iqr`: further than `value` interquartile ranges from the quartiles. `mad`:
    further than `value` robust standard deviations (1.4826 x median absolute deviation) from the median; with
    a deviation of 0 nothing is removed. `absolute`: beyond `value` itself.
    """

    column: str
    """a numeric column of the table"""
    method: Literal["tail_quantile", "iqr", "mad", "absolute"] = "tail_quantile"
    """how the limit is found"""
    value: float = 0.0001
    """the method's number"""
    side: Literal["upper", "lower", "both"] = "upper"
    """which end is cut"""
    per_source_dataset: bool = False
    """find the limits in each source data set by itself"""

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        if self.method == "tail_quantile" and not 0 < self.value < 0.5:
            raise ValueError(f"a tail quantile is a share between 0 and 0.5, not {self.value:g}")
        if self.method in ("iqr", "mad") and self.value <= 0:
            raise ValueError(f"{self.method} needs a value above 0, not {self.value:g}")
        if self.method == "absolute" and self.side == "both":
            raise ValueError("an absolute limit has one side; give two rules, upper and lower")
        return self


class FilterSpec(Recipe):
    """Which clips are kept. A rule that is not set does not apply; thresholds are inclusive.

    Clips with an ingest problem, or that the probe found broken, are always rejected.
    """

    allow_probe_status: tuple[str, ...] = ()
    """probe statuses besides `ok` that are kept, such as frame_count_mismatch"""
    min_height: Whole = None
    """px, as displayed"""
    max_height: Whole = None
    """px, as displayed"""
    min_width: Whole = None
    """px, as displayed"""
    max_width: Whole = None
    """px, as displayed"""
    min_short_side: Whole = None
    """px, the smaller of width and height"""
    min_aspect_ratio: Limit = None
    """height / width"""
    max_aspect_ratio: Limit = None
    """height / width"""
    min_duration_seconds: Limit = None
    """s"""
    max_duration_seconds: Limit = None
    """s"""
    min_num_frames: Whole = None
    """frames"""
    max_num_frames: Whole = None
    """frames"""
    min_fps: Limit = None
    """frames/s"""
    max_fps: Limit = None
    """frames/s"""
    max_file_size_bytes: Whole = None
    """B; the published speed run took files under 50 MiB"""
    min_caption_num_words: Whole = None
    """words"""
    max_caption_num_words: Whole = None
    """words"""
    min_noun_count: Whole = None
    """nouns"""
    max_noun_count: Whole = None
    """nouns"""
    scores: dict[str, Range] = Field(default_factory=dict)
    """any other numeric column: its range"""
    outliers: tuple[OutlierRule, ...] = ()
    """removal of extreme values, in order, after every other rule"""

    @field_validator("allow_probe_status")
    @classmethod
    def _statuses_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = COLUMNS["probe_status"].meaning
        for status in value:
            if status not in known:
                raise ValueError(f"{status!r} is no probe status; {known}")
        return value

    @model_validator(mode="after")
    def _ranges_are_ranges(self) -> Self:
        for name in type(self).model_fields:
            if name.startswith("min_") and hasattr(self, f"max_{name[4:]}"):
                low, high = getattr(self, name), getattr(self, f"max_{name[4:]}")
                if low is not None and high is not None and low > high:
                    raise ValueError(
                        f"{name} {low:g} is above max_{name[4:]} {high:g}: nothing could be kept"
                    )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """What one rule did: rows that reached it, those it rejected, those it let on."""

    rule: str
    stage: str
    threshold: str
    rows_in: int
    rejected: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSummary:
    """What a filter found; `rows_in` = `rows_kept` + `rows_rejected`."""

    rows_in: int
    rows_kept: int
    rows_rejected: int
    by_rule: dict[str, int]
    funnel: tuple[Funnel, ...]
    up_to_date: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """`fails` is true or null where the rule rejects; the other expressions are text."""

    stage: str
    name: pl.Expr
    fails: pl.Expr
    value: pl.Expr
    threshold: pl.Expr


def _text(number: float) -> str:
    return f"{number:.10g}"


def _limit(name: str, column: str, value: pl.Expr, low: float | None, high: float | None) -> list[_Rule]:
    """Return the rules for one end or both of a range."""
    shown = value.cast(pl.String).fill_null(UNKNOWN)
    rules = []
    for bound, word, sign in ((low, "min", ">="), (high, "max", "<=")):
        if bound is not None:
            rules.append(
                _Rule(
                    stage="filter",
                    name=pl.lit(f"{word}_{name}"),
                    fails=(value < bound) if word == "min" else (value > bound),
                    value=shown,
                    threshold=pl.lit(f"{sign} {_text(bound)}"),
                )
            )
    return rules


# What a rule measures, by the name behind min_ and max_.
_MEASURES: dict[str, tuple[tuple[str, ...], Callable[[], pl.Expr]]] = {
    "height": (("height",), lambda: pl.col("height")),
    "width": (("width",), lambda: pl.col("width")),
    "short_side": (("width", "height"), lambda: _both(pl.min_horizontal("width", "height"))),
    "aspect_ratio": (("width", "height"), lambda: pl.col("height") / pl.col("width")),
    "duration_seconds": (("duration_seconds",), lambda: pl.col("duration_seconds")),
    "num_frames": (("num_frames",), lambda: pl.col("num_frames")),
    "fps": (("fps",), lambda: pl.col("fps")),
    "file_size_bytes": (("file_size_bytes",), lambda: pl.col("file_size_bytes")),
    "caption_num_words": (("caption_num_words",), lambda: pl.col("caption_num_words")),
    "noun_count": (("noun_count",), lambda: pl.col("noun_count")),
}


def _both(smaller: pl.Expr) -> pl.Expr:
    return pl.when(pl.col("width").is_not_null() & pl.col("height").is_not_null()).then(smaller)


def _need(columns: Sequence[str], names: Sequence[str], where: Path, rule: str) -> None:
    for name in names:
        if name not in columns:
            known = COLUMNS.get(name)
            step = f" Run `vidcurate {known.stage} {where.parent}` first." if known else ""
            raise ColumnError(f"{where}: {rule} needs the column {name}, which is not there.{step}")


def _structural(columns: Sequence[str], spec: FilterSpec) -> list[_Rule]:
    """Return the rules that always apply: what ingest could not take and what the probe found broken."""
    rules = [
        _Rule(
            stage="ingest",
            name=pl.col("ingest_problem"),
            fails=pl.col("ingest_problem").is_not_null(),
            value=pl.coalesce("video_path", "clip_id"),
            threshold=pl.lit("no ingest problem"),
        )
    ]
    if "probe_status" in columns:
        rules.append(
            _Rule(
                stage="probe",
                name=pl.col("probe_status"),
                fails=~pl.col("probe_status").is_in(["ok", *spec.allow_probe_status]),
                value=pl.coalesce("probe_problem", "probe_status"),
                threshold=pl.lit(" or ".join(["ok", *spec.allow_probe_status])),
            )
        )
    return rules


def _ranges(columns: Sequence[str], spec: FilterSpec, where: Path) -> list[_Rule]:
    rules: list[_Rule] = []
    for name, (needed, value) in _MEASURES.items():
        low, high = getattr(spec, f"min_{name}", None), getattr(spec, f"max_{name}", None)
        if low is not None or high is not None:
            _need(columns, needed, where, f"min_{name}" if low is not None else f"max_{name}")
            rules += _limit(name, name, value(), low, high)
    for name, limits in spec.scores.items():
        _need(columns, (name,), where, f"scores.{name}")
        rules += _limit(name, name, pl.col(name), limits.min, limits.max)
    return rules


def _outlier_limits(rule: OutlierRule) -> tuple[pl.Expr | None, pl.Expr | None]:
    """Return the lower and upper limit as aggregates over the column; a value beyond one is rejected."""
    column = pl.col(rule.column)
    if rule.method == "absolute":
        limit = pl.lit(rule.value, dtype=pl.Float64)
        return (limit, None) if rule.side == "lower" else (None, limit)
    if rule.method == "tail_quantile":
        low = column.quantile(rule.value, "higher")
        high = column.quantile(1 - rule.value, "lower")
    elif rule.method == "iqr":
        first, third = column.quantile(0.25, "linear"), column.quantile(0.75, "linear")
        low, high = first - rule.value * (third - first), third + rule.value * (third - first)
    else:
        spread = 1.4826 * (column - column.median()).abs().median()
        reach = pl.when(spread > 0).then(rule.value * spread).otherwise(pl.lit(float("inf")))
        low, high = column.median() - reach, column.median() + reach
    return (low if rule.side != "upper" else None, high if rule.side != "lower" else None)


def _outliers(passed: pl.LazyFrame, rule: OutlierRule, where: Path, columns: Sequence[str]) -> _Rule:
    """Find the limits over the rows that passed so far, and return the rule that they make."""
    _need(columns, (rule.column,), where, f"outliers.{rule.column}")
    if rule.per_source_dataset:
        _need(columns, ("source_dataset",), where, f"outliers.{rule.column}")
    low, high = _outlier_limits(rule)
    wanted = [
        bound.cast(pl.Float64).alias(name)
        for name, bound in (("low", low), ("high", high))
        if bound is not None
    ]
    if rule.per_source_dataset:
        found = passed.group_by("source_dataset").agg(wanted).sort("source_dataset").collect()
    else:
        found = passed.select(wanted).collect()
    value = pl.col(rule.column)
    fails, threshold = pl.lit(value=False), pl.lit("")
    for row in found.iter_rows(named=True):
        words = [
            f"{sign} {_text(row[name])}"
            for name, sign in (("low", ">="), ("high", "<="))
            if row.get(name) is not None
        ]
        here = value.is_null()
        if row.get("low") is not None:
            here = here | (value < row["low"])
        if row.get("high") is not None:
            here = here | (value > row["high"])
        if rule.per_source_dataset:
            mine = pl.col("source_dataset").eq_missing(row["source_dataset"])
            fails = pl.when(mine).then(here).otherwise(fails)
            threshold = pl.when(mine).then(pl.lit(" and ".join(words))).otherwise(threshold)
        else:
            fails, threshold = here, pl.lit(" and ".join(words))
    return _Rule(
        stage="filter",
        name=pl.lit(f"outlier_{rule.column}_{rule.method}"),
        fails=fails,
        value=value.cast(pl.String).fill_null(UNKNOWN),
        threshold=threshold,
    )


def judge(clips: pl.LazyFrame, spec: FilterSpec, where: Path) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Return `clips` with the verdict's columns, and the ledger: one row for each rule that a clip fails.

    `where` is the table's path, for messages. Raises ColumnError when a rule needs a column that is not
    there.
    """
    columns = clips.collect_schema().names()
    rules = [*_structural(columns, spec), *_ranges(columns, spec, where)]
    for outlier in spec.outliers:
        failed = pl.any_horizontal([rule.fails.fill_null(value=True) for rule in rules])
        rules.append(_outliers(clips.filter(~failed), outlier, where, columns))
    fails = [rule.fails.fill_null(value=True) for rule in rules]

    def first(part: Callable[[_Rule], pl.Expr]) -> pl.Expr:
        return pl.coalesce(
            *(pl.when(failed).then(part(rule)) for failed, rule in zip(fails, rules, strict=True))
        )

    judged = clips.with_columns(
        (~pl.any_horizontal(fails)).alias("is_kept"),
        first(lambda rule: pl.lit(rule.stage)).alias("reject_stage"),
        first(lambda rule: rule.name).alias("reject_rule"),
        first(lambda rule: rule.value).alias("reject_value"),
        first(lambda rule: rule.threshold).alias("reject_threshold"),
    )
    ledger = pl.concat(
        [
            clips.filter(failed).select(
                pl.col("clip_id"),
                pl.lit(number, dtype=pl.Int32).alias("order"),
                pl.lit(rule.stage).alias("stage"),
                rule.name.alias("rule"),
                rule.value.alias("value"),
                rule.threshold.alias("threshold"),
                pl.lit(__version__).alias("version"),
            )
            for number, (failed, rule) in enumerate(zip(fails, rules, strict=True))
        ]
    )
    return judged, ledger


def funnel_of(judged: pl.LazyFrame, ledger: pl.LazyFrame) -> tuple[Funnel, ...]:
    """Return the rules that rejected something, in their order, with the rows in and out of each."""
    total = judged.select(pl.len()).collect().item()
    firsts = (
        ledger.group_by("clip_id", maintain_order=True)
        .first()
        .group_by("order", "stage", "rule")
        .agg(pl.len().alias("rejected"), pl.col("threshold").first())
        .sort("order", "rule")
        .collect()
    )
    steps, left = [], total
    for row in firsts.iter_rows(named=True):
        steps.append(
            Funnel(
                rule=row["rule"],
                stage=row["stage"],
                threshold=row["threshold"],
                rows_in=left,
                rejected=row["rejected"],
                kept=left - row["rejected"],
            )
        )
        left -= row["rejected"]
    return tuple(steps)


def run_filter(run: Path, spec: FilterSpec, *, progress: Progress = no_progress) -> FilterSummary:
    """Judge every clip of the run; write RUN/filter.parquet, RUN/ledger.parquet and RUN/funnel.json.

    Raises ColumnError, StageError, StorageError.
    """
    previous = table.previous_stage(run, "filter")
    source = table.stage_path(run, previous)
    origin = table.Provenance(
        stage="filter",
        settings=json.loads(spec.model_dump_json()),
        inputs={previous: table.digest(source)},
    )
    target, funnel_path, ledger_path = table.stage_path(run, "filter"), run / FUNNEL, run / LEDGER
    up_to_date = table.is_up_to_date(target, origin) and funnel_path.exists() and ledger_path.exists()
    if not up_to_date:
        judged, ledger = judge(table.scan(run, previous), spec, source)
        table.write(ledger.sort("clip_id", "order"), ledger_path, origin)
        progress(1, 3, "steps")
        funnel = funnel_of(judged, pl.scan_parquet(ledger_path))
        table.write_json(funnel_path, [asdict(step) for step in funnel])
        progress(2, 3, "steps")
        table.write(judged, target, origin)
        progress(3, 3, "steps")
    return _summary(target, funnel_path, up_to_date)


def _summary(target: Path, funnel_path: Path, up_to_date: bool) -> FilterSummary:
    kept = pl.read_parquet(target, columns=["is_kept"])["is_kept"]
    steps: list[dict[str, Any]] = json.loads(funnel_path.read_text(encoding="utf-8"))
    rejected = sum(step["rejected"] for step in steps)
    assert int(kept.sum()) + rejected == len(kept), "a row was lost"
    return FilterSummary(
        rows_in=len(kept),
        rows_kept=int(kept.sum()),
        rows_rejected=rejected,
        by_rule={step["rule"]: step["rejected"] for step in steps},
        funnel=tuple(Funnel(**step) for step in steps),
        up_to_date=up_to_date,
    )
