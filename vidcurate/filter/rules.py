"""The rules as expressions over the table: what each one calls itself, when it fails, and what it tells."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.errors import ColumnError
from vidcurate.filter.spec import FilterSpec, OutlierRule
from vidcurate.schema import COLUMNS

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`fails` is true or null where the rule rejects; the other expressions are text."""

    stage: str
    name: pl.Expr
    fails: pl.Expr
    value: pl.Expr
    threshold: pl.Expr


def _text(number: float) -> str:
    return f"{number:.10g}"


def _limit(name: str, value: pl.Expr, low: float | None, high: float | None) -> list[Rule]:
    """Return the rules for one end or both of a range."""
    shown = value.cast(pl.String).fill_null(UNKNOWN)
    rules = []
    for bound, word, sign in ((low, "min", ">="), (high, "max", "<=")):
        if bound is not None:
            rules.append(
                Rule(
                    stage="filter",
                    name=pl.lit(f"{word}_{name}"),
                    fails=(value < bound) if word == "min" else (value > bound),
                    value=shown,
                    threshold=pl.lit(f"{sign} {_text(bound)}"),
                )
            )
    return rules


# What a rule measures, by the name behind min_ and max_.
_OF_SIDES: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "short_side": lambda width, height: (
        pl.when(height < width).then(height).when(height >= width).then(width)
    ),
    "aspect_ratio": lambda width, height: pl.when(width > 0).then(height / width),
}
_MEASURES = (
    "height", "width", "short_side", "aspect_ratio", "duration_seconds", "num_frames", "fps",
    "file_size_bytes", "caption_num_words", "noun_count",
)  # fmt: skip

Schema = Mapping[str, pl.DataType]


def number(schema: Schema, name: str, where: Path, rule: str) -> pl.Expr:
    """Return the numeric column `name`; what is not a number (NaN) is as unknown as what is missing.

    Raises ColumnError when there is no such column, or when it holds no numbers.
    """
    if name not in schema:
        known = COLUMNS.get(name)
        step = f" Run `vidcurate {known.stage} {where.parent}` first." if known else ""
        raise ColumnError(f"{where}: {rule} needs the column {name}, which is not there.{step}")
    if not schema[name].is_numeric():
        raise ColumnError(f"{where}: {rule} needs numbers, and the column {name} holds {schema[name]}.")
    return pl.col(name).fill_nan(None) if schema[name].is_float() else pl.col(name)


def structural(schema: Schema, spec: FilterSpec) -> list[Rule]:
    """Return the rules that always apply: what ingest could not take and what the probe found broken."""
    rules = [
        Rule(
            stage="ingest",
            name=pl.col("ingest_problem"),
            fails=pl.col("ingest_problem").is_not_null(),
            value=pl.coalesce("video_path", "clip_id"),
            threshold=pl.lit("no ingest problem"),
        )
    ]
    if "probe_status" in schema:
        rules.append(
            Rule(
                stage="probe",
                name=pl.col("probe_status"),
                fails=~pl.col("probe_status").is_in(["ok", *spec.allow_probe_status]),
                value=pl.coalesce("probe_problem", "probe_status"),
                threshold=pl.lit(" or ".join(["ok", *spec.allow_probe_status])),
            )
        )
    return rules


def ranges(schema: Schema, spec: FilterSpec, where: Path) -> list[Rule]:
    """Return the rules of the settings min_…, max_… and scores, in their order. Raises ColumnError."""
    rules: list[Rule] = []
    for name in _MEASURES:
        low, high = getattr(spec, f"min_{name}", None), getattr(spec, f"max_{name}", None)
        if low is not None or high is not None:
            rule = f"min_{name}" if low is not None else f"max_{name}"
            columns = ("width", "height") if name in _OF_SIDES else (name,)
            numbers = [number(schema, column, where, rule) for column in columns]
            rules += _limit(name, _OF_SIDES[name](*numbers) if name in _OF_SIDES else numbers[0], low, high)
    for name, limits in spec.scores.items():
        rules += _limit(name, number(schema, name, where, f"scores.{name}"), limits.min, limits.max)
    return rules


def _outlier_limits(rule: OutlierRule, column: pl.Expr) -> tuple[pl.Expr | None, pl.Expr | None]:
    """Return the lower and upper limit as aggregates over the column; a value beyond one is rejected."""
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


def outlier(passed: pl.DataFrame, rule: OutlierRule, value: pl.Expr) -> Rule:
    """Find the limits over the rows that passed so far, and return the rule that they make."""
    low, high = _outlier_limits(rule, value)
    wanted = [
        bound.cast(pl.Float64).alias(name)
        for name, bound in (("low", low), ("high", high))
        if bound is not None
    ]
    if rule.per_source_dataset:
        found = passed.group_by("source_dataset").agg(wanted).sort("source_dataset")
    else:
        found = passed.select(wanted)
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
    return Rule(
        stage="filter",
        name=pl.lit(f"outlier_{rule.column}_{rule.method}"),
        fails=fails,
        value=value.cast(pl.String).fill_null(UNKNOWN),
        threshold=threshold,
    )
