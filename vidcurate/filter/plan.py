"""The rules of a filter bound to the columns of one table: which clips survive, and what each rule says."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.filter import duplicates
from vidcurate.filter.outliers import outlier
from vidcurate.filter.rules import Rule, Schema, number, ranges, structural
from vidcurate.filter.spec import FilterSpec, OutlierRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`rules` are judged row by row; copies (when `drops_copies`) and `outliers`, each with its value, among
    the rows that passed before."""

    rules: tuple[Rule, ...]
    drops_copies: bool
    outliers: tuple[tuple[OutlierRule, pl.Expr], ...]

    def columns(self) -> set[str]:
        """Return the columns that the rules read."""
        read = {"source_dataset" for rule, _ in self.outliers if rule.per_source_dataset}
        if self.drops_copies:
            read.update(duplicates.COLUMNS)
        for _, value in self.outliers:
            read.update(value.meta.root_names())
        for rule in self.rules:
            for part in (rule.name, rule.fails, rule.value):
                read.update(part.meta.root_names())
        return read


def plan_of(schema: Schema, spec: FilterSpec, where: Path) -> Plan:
    """Return the rules of `spec` for a table of this schema. Raises ColumnError."""
    rules = [*structural(schema, spec), *ranges(schema, spec, where)]
    outliers = [
        (rule, number(schema, rule.column, where, f"outliers.{rule.column}")) for rule in spec.outliers
    ]
    drops_copies = not spec.keep_duplicates and set(duplicates.COLUMNS) <= set(schema)
    return Plan(rules=tuple(rules), drops_copies=drops_copies, outliers=tuple(outliers))


def applied(facts: pl.DataFrame, plan: Plan) -> Iterator[tuple[Rule, pl.Series]]:
    """Yield each rule in its order with the rows of `facts` that fail it (Boolean, no nulls).

    The best copy, and the limits of an outlier rule, are looked for among the rows that no rule before it
    rejected.
    """
    fails = facts.select(
        rule.fails.fill_null(value=True).alias(str(place)) for place, rule in enumerate(plan.rules)
    )
    rejected = pl.Series([False]).new_from_index(0, len(facts))
    for place, rule in enumerate(plan.rules):
        failed = fails[str(place)]
        rejected = rejected | failed
        yield rule, failed
    if plan.drops_copies:
        rule = duplicates.duplicate(facts.filter(~rejected))
        failed = facts.select(rule.fails.fill_null(value=True)).to_series()
        rejected = rejected | failed
        yield rule, failed
    for wanted, value in plan.outliers:
        rule = outlier(facts.filter(~rejected), wanted, value)
        failed = facts.select(rule.fails.fill_null(value=True)).to_series()
        rejected = rejected | failed
        yield rule, failed


def survivors(facts: pl.DataFrame, plan: Plan) -> pl.Series:
    """Return which rows of `facts` pass every rule (Boolean)."""
    kept = pl.Series([True]).new_from_index(0, len(facts))
    for _, failed in applied(facts, plan):
        kept = kept & ~failed
    return kept.alias("is_kept")
