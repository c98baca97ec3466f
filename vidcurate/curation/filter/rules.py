"""Filter rules as expressions over the table: name, condition, value, threshold."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.filter.spec import NAMED, FilterSpec, Limit, left_out_of
from vidcurate.errors import ColumnError

UNKNOWN = "unknown"
LEFT_OUT = "left_out"

Schema = Mapping[str, pl.DataType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule: `fails` is true or null where the rule rejects; the other expressions are text.

    `measure` is the checked column (or short_side, aspect_ratio). The verdict follows from the texts of value
    and threshold alone (`rejection_ledger.replay_ledger`).
    """

    stage: str
    measure: str
    name: pl.Expr
    fails: pl.Expr
    value: pl.Expr
    threshold: pl.Expr


def text(number: float) -> str:
    """Return the shortest text that reads back as `number`."""
    short = f"{number:.10g}"
    return short if float(short) == number else repr(number)


# Measures that are computed from several columns.
_OF_SIDES: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "short_side": lambda width, height: (
        pl.when(height < width).then(height).when(height >= width).then(width)
    ),
    "aspect_ratio": lambda width, height: pl.when(width > 0).then(height / width),
}


def columns_of(measure: str) -> tuple[str, ...]:
    """Return the columns that a measure needs."""
    return ("width", "height") if measure in _OF_SIDES else (measure,)


def _asked(spec: FilterSpec) -> dict[str, tuple[str, ...]]:
    """Return rule → the columns that it needs."""
    asked: dict[str, tuple[str, ...]] = {}
    for name, limit in spec.limits.items():
        if limit != Limit(missing=limit.missing):
            asked[f"limits.{name}"] = columns_of(name)
    for rule in spec.outliers:
        source = ("source_dataset",) if rule.per_source_dataset else ()
        asked[f"outliers.{rule.column}"] = (*columns_of(rule.column), *source)
    return asked


def check_columns(schema: Schema, spec: FilterSpec, where: Path) -> None:
    """Raise ColumnError unless the table has every column that the rules need.

    For a column that is not computed yet, the error names the command that computes it; for an unknown
    column, the nearest one.
    """
    missing: dict[str, list[str]] = {}
    for rule, columns in _asked(spec).items():
        for column in columns:
            if column not in schema:
                missing.setdefault(column, []).append(rule)
    if not missing:
        return
    of_preset = f"preset {spec.preset}: " if spec.preset else ""
    for column, rules in missing.items():
        if column not in COLUMNS:
            near = difflib.get_close_matches(column, {*schema, *COLUMNS, *_OF_SIDES}, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}?" if near else "Run `vidcurate export` to list all columns."
            raise ColumnError(
                f"{where}: {of_preset}{rules[0]} needs the column {column}, which does not exist. {hint}"
            )
    needs = "; ".join(f"{', '.join(rules)} needs the column {name}" for name, rules in missing.items())
    commands = [f"vidcurate {table.command_of(stage)} {where.parent}" for stage in _stages(missing)]
    raise ColumnError(
        f"{where}: {of_preset}{needs}, which is missing. Run `{'` and `'.join(commands)}` first."
    )


def _stages(columns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(COLUMNS[name].stage for name in columns))


def number(schema: Schema, measure: str, where: Path, rule: str) -> pl.Expr:
    """Return a numeric column or measure; NaN counts as missing.

    Floats are cast to Float64, so that their text parses to the same number. Raises ColumnError for a column
    that is not numeric.
    """
    parts = []
    for name in columns_of(measure):
        if not schema[name].is_numeric():
            raise ColumnError(f"{where}: {rule} needs a numeric column; {name} is {schema[name]}.")
        column = pl.col(name)
        parts.append(column.cast(pl.Float64).fill_nan(None) if schema[name].is_float() else column)
    return _OF_SIDES[measure](*parts) if measure in _OF_SIDES else parts[0]


def _range(
    measure: str, value: pl.Expr, low: float | None, high: float | None, missing: str = "reject"
) -> list[Rule]:
    """Return the rules for one end or both of a range."""
    rules = []
    for bound, word, sign in ((low, "min", ">="), (high, "max", "<=")):
        if bound is not None:
            fails = (value < bound) if word == "min" else (value > bound)
            rules.append(
                Rule(
                    stage="filter",
                    measure=measure,
                    name=pl.lit(f"{word}_{measure}"),
                    fails=fails.fill_null(value=missing == "reject"),
                    value=value.cast(pl.String).fill_null(UNKNOWN),
                    threshold=pl.lit(f"{sign} {text(bound)}"),
                )
            )
    return rules


def _words(schema: Schema, column: str, limit: Limit, where: Path) -> list[Rule]:
    """Return the rules on a text or Boolean column. Raises ColumnError for another kind."""
    kind = schema[column]
    rules = []
    for word, sign in (("allowed", "one of"), ("forbidden", "none of")):
        listed: tuple[str | bool, ...] | None = getattr(limit, word)
        if listed is None:
            continue
        wanted = bool if kind == pl.Boolean else str
        if kind not in (pl.Boolean, pl.String) or not all(isinstance(one, wanted) for one in listed):
            raise ColumnError(
                f"{where}: limits.{column}.{word} is {json.dumps(listed)}, and the column {column} holds "
                f"{kind}."
            )
        found = pl.col(column).is_in(list(listed))
        rules.append(
            Rule(
                stage="filter",
                measure=column,
                name=pl.lit(f"{word}_{column}"),
                fails=(~found if word == "allowed" else found).fill_null(value=limit.missing == "reject"),
                value=pl.col(column).cast(pl.String).fill_null(UNKNOWN),
                threshold=pl.lit(f"{sign} {json.dumps([_plain(one) for one in listed], ensure_ascii=False)}"),
            )
        )
    return rules


def _plain(word: str | bool) -> str:
    return word if isinstance(word, str) else str(word).lower()


def structural(schema: Schema, spec: FilterSpec) -> list[Rule]:
    """Return the rules that always apply: ingest problems, and files that probe or decoding found broken."""
    rules = []
    if "caption_status" in schema:
        # Before the rule of ingest: the ledger then says why the model wrote no caption.
        status, asked = pl.col("caption_status"), ["ok", "not_captioned"]
        rules.append(
            Rule(
                stage="caption",
                measure="caption_status",
                name=status,
                fails=~status.is_in(asked) & pl.col("caption").is_null(),
                value=pl.coalesce("caption_problem", status),
                threshold=pl.lit(asked[0]),
            )
        )
    rules.append(
        Rule(
            stage="ingest",
            measure="ingest_problem",
            name=pl.col("ingest_problem"),
            fails=pl.col("ingest_problem").is_not_null(),
            value=pl.coalesce("video_path", "clip_id"),
            threshold=pl.lit("no ingest problem"),
        )
    )
    decoded = ["ok", "not_scored"]
    for stage, passing in (
        ("probe", ["ok", *spec.allow_probe_status]),
        ("frames", decoded),
        ("models", decoded),
    ):
        if f"{stage}_status" in schema:
            status, problem = pl.col(f"{stage}_status"), pl.col(f"{stage}_problem")
            rules.append(
                Rule(
                    stage=stage,
                    measure=f"{stage}_status",
                    name=status,
                    fails=~status.is_in(passing),
                    value=pl.coalesce(problem, status),
                    threshold=pl.lit(" or ".join(passing if stage == "probe" else passing[:1])),
                )
            )
    return rules


def left_out(spec: FilterSpec) -> list[Rule]:
    """Return the rule `left_out`, or none when no clip ids are listed. `spec` is written out."""
    listed = left_out_of(spec)
    if not listed:
        return []
    return [
        Rule(
            stage="filter",
            measure="clip_id",
            name=pl.lit(LEFT_OUT),
            fails=pl.col("clip_id").is_in(list(listed)),
            value=pl.lit("listed"),
            threshold=pl.lit("not listed to be left out"),
        )
    ]


def ranges(schema: Schema, spec: FilterSpec, where: Path) -> list[Rule]:
    """Return the rules of the limits, the NAMED columns first. Raises ColumnError."""
    check_columns(schema, spec, where)
    rules: list[Rule] = []
    first = [name for name in NAMED if name in spec.limits]
    for name in dict.fromkeys([*first, *spec.limits]):
        limit = spec.limits[name]
        if limit.min is not None or limit.max is not None:
            value = number(schema, name, where, f"limits.{name}")
            rules += _range(name, value, limit.min, limit.max, limit.missing)
        elif limit.allowed is not None or limit.forbidden is not None:
            if name in _OF_SIDES:
                raise ColumnError(f"{where}: limits.{name} is a number; give min or max.")
            rules += _words(schema, name, limit, where)
    return rules


DUPLICATE_COLUMNS = ("clip_id", "duplicate_cluster", "duplicate_rank")


def duplicate(passed: pl.DataFrame) -> Rule:
    """Find the best clip of each cluster among the rows that passed so far, and return the resulting rule.

    Needs DUPLICATE_COLUMNS. A clip fails when another clip is the best of its cluster.
    """
    best = (
        passed.filter(pl.col("duplicate_cluster").is_not_null())
        .sort("duplicate_rank")
        .group_by("duplicate_cluster", maintain_order=True)
        .agg(pl.col("clip_id").first())
    )
    kept = pl.col("duplicate_cluster").replace_strict(
        best["duplicate_cluster"], best["clip_id"], default=None, return_dtype=pl.String
    )
    return Rule(
        stage="dedup",
        measure="duplicate_cluster",
        name=pl.lit("duplicate"),
        fails=kept.is_not_null() & (pl.col("clip_id") != kept),
        value=pl.format("copy of {}", kept),
        threshold=pl.lit("the best of its copies"),
    )
