"""The verdict: every clip kept or rejected by a named rule, with its value and what the rule asked for.

Rules are expressions over the table, tried in a fixed order; the first that fails gives the verdict, the
ledger lists all that fail. A missing value fails: nothing is kept because nobody measured it. Outlier rules
come last, each over the rows that passed everything before it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate import __version__, table
from vidcurate.engine import Progress, no_progress
from vidcurate.errors import ColumnError
from vidcurate.filter.rules import UNKNOWN, Rule, number, outlier, ranges, structural
from vidcurate.filter.spec import FilterSpec, OutlierRule, Range

__all__ = [
    "FUNNEL", "LEDGER", "FilterSpec", "FilterSummary", "Funnel", "OutlierRule", "Range", "funnel_of", "judge",
    "run_filter",
]  # fmt: skip

FUNNEL = "funnel.json"
LEDGER = "ledger.parquet"


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


def judge(clips: pl.LazyFrame, spec: FilterSpec, where: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the verdicts (clip_id, is_kept, reject_…: a row a clip, in order), and the ledger.

    The ledger has a row for each rule that a clip fails: row (the clip's place), clip_id, order (the rule's),
    stage, rule, value, threshold, version. Only the columns that a rule asks for are read. `where` is the
    table's path, for messages. Raises ColumnError when a rule needs a column that is not there.
    """
    schema = clips.collect_schema()
    rules = [*structural(schema, spec), *ranges(schema, spec, where)]
    outliers = []
    for wanted in spec.outliers:
        outliers.append((wanted, number(schema, wanted.column, where, f"outliers.{wanted.column}")))
        if wanted.per_source_dataset and "source_dataset" not in schema:
            raise ColumnError(
                f"{where}: outliers.{wanted.column} needs the column source_dataset, which is not there."
            )
    read = {"clip_id", *(wanted.column for wanted in spec.outliers)}
    read |= {"source_dataset" for wanted in spec.outliers if wanted.per_source_dataset}
    for rule in rules:
        for part in (rule.name, rule.fails, rule.value):
            read.update(part.meta.root_names())
    facts = clips.select(name for name in schema if name in read).collect().with_row_index("row")

    first = pl.Series("order", [None], dtype=pl.Int32).new_from_index(0, len(facts))
    entries: list[pl.DataFrame] = []

    def apply(rule: Rule) -> None:
        nonlocal first
        order = len(entries)
        failed = facts.select(rule.fails.fill_null(value=True)).to_series()
        first = first.zip_with(first.is_not_null() | ~failed, pl.Series([order], dtype=pl.Int32))
        entries.append(
            facts.lazy()
            .filter(failed)
            .select(
                "row",
                "clip_id",
                pl.lit(order, dtype=pl.Int32).alias("order"),
                pl.lit(rule.stage).alias("stage"),
                rule.name.fill_null(UNKNOWN).alias("rule"),
                rule.value.fill_null(UNKNOWN).alias("value"),
                rule.threshold.alias("threshold"),
                pl.lit(__version__).alias("version"),
            )
            .collect()
        )

    for rule in rules:
        apply(rule)
    for wanted, value in outliers:
        apply(outlier(facts.filter(first.is_null()), wanted, value))
    ledger = pl.concat(entries).sort("row", "order")
    # The verdict on a clip is the ledger's entry for the first rule that it fails.
    verdicts = ledger.filter(ledger["row"].is_first_distinct())
    place = pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(facts))
    place = place.scatter(verdicts["row"], pl.int_range(len(verdicts), dtype=pl.UInt32, eager=True))
    judged = facts.select("clip_id").with_columns(
        first.is_null().alias("is_kept"),
        *(
            verdicts[name].gather(place).alias(f"reject_{name}")
            for name in ("stage", "rule", "value", "threshold")
        ),
    )
    return judged, ledger


def funnel_of(ledger: pl.DataFrame, total: int) -> tuple[Funnel, ...]:
    """Return the rules that rejected something, in their order, with the rows in and out of each."""
    firsts = (
        ledger.filter(pl.col("row").is_first_distinct())
        .group_by("order", "stage", "rule")
        .agg(pl.len().alias("rejected"), pl.col("threshold").first())
        .sort("order", "rule")
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
        progress(1, 3, "steps")
        table.write(ledger.drop("row"), ledger_path, origin)
        table.write_json(funnel_path, [asdict(step) for step in funnel_of(ledger, len(judged))])
        progress(2, 3, "steps")
        table.write(judged, target, origin)
        progress(3, 3, "steps")
    return _summary(target, funnel_path, up_to_date)


def _summary(target: Path, funnel_path: Path, up_to_date: bool) -> FilterSummary:
    kept = pl.read_parquet(target, columns=["is_kept"])["is_kept"]
    steps: list[dict[str, Any]] = json.loads(funnel_path.read_text(encoding="utf-8"))
    rejected = sum(step["rejected"] for step in steps)
    assert int(kept.sum()) + rejected == len(kept), "a row was lost"
    by_rule: dict[str, int] = {}
    for step in steps:
        by_rule[step["rule"]] = by_rule.get(step["rule"], 0) + step["rejected"]
    return FilterSummary(
        rows_in=len(kept),
        rows_kept=int(kept.sum()),
        rows_rejected=rejected,
        by_rule=by_rule,
        funnel=tuple(Funnel(**step) for step in steps),
        up_to_date=up_to_date,
    )
