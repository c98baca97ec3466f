"""Filter rules bound to the columns of one table: which clips pass each rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.curation.filter import rules as filter_rules
from vidcurate.curation.filter.outliers import outlier
from vidcurate.curation.filter.rules import Rule, Schema, number, ranges, structural
from vidcurate.curation.filter.spec import FilterSpec, OutlierRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bound rules. `rules` apply row by row; duplicates (when `drops_copies`) and `outliers`, each with its
    value, apply to the rows that passed all rules before."""

    rules: tuple[Rule, ...]
    drops_copies: bool
    outliers: tuple[tuple[OutlierRule, pl.Expr], ...]

    def checked(self) -> set[str]:
        """Return the columns that the rules check."""
        read = {"source_dataset" for rule, _ in self.outliers if rule.per_source_dataset}
        if self.drops_copies:
            read.update(filter_rules.DUPLICATE_COLUMNS)
        for _, value in self.outliers:
            read.update(value.meta.root_names())
        for rule in self.rules:
            read.update(rule.fails.meta.root_names())
        return read

    def columns(self) -> set[str]:
        """Return the columns that the rules check or copy into the ledger."""
        reported = self.checked()
        for rule in self.rules:
            reported.update(rule.name.meta.root_names(), rule.value.meta.root_names())
        return reported


def plan_of(schema: Schema, spec: FilterSpec, where: Path) -> Plan:
    """Return the rules of `spec` for a table of this schema. Raises ColumnError."""
    rules = [*structural(schema, spec), *ranges(schema, spec, where)]
    outliers = [
        (rule, number(schema, rule.column, where, f"outliers.{rule.column}")) for rule in spec.outliers
    ]
    drops_copies = not spec.keep_duplicates and set(filter_rules.DUPLICATE_COLUMNS) <= set(schema)
    return Plan(rules=tuple(rules), drops_copies=drops_copies, outliers=tuple(outliers))


Masks = dict[str, pl.Series]


def _masks(facts: pl.DataFrame, plan: Plan, known: Masks) -> list[pl.Series]:
    """Return which rows fail each rule, reusing results in `known` (by the rule's expression)."""
    keys = [str(rule.fails) for rule in plan.rules]
    new = {key: rule.fails for key, rule in zip(keys, plan.rules, strict=True) if key not in known}
    found = facts.select(fails.fill_null(value=True).alias(key) for key, fails in new.items())
    known.update({key: found[key] for key in new})
    return [known[key] for key in keys]


def applied(facts: pl.DataFrame, plan: Plan, known: Masks | None = None) -> Iterator[tuple[Rule, pl.Series]]:
    """Yield each rule, in order, with the rows of `facts` that fail it (Boolean, no nulls).

    The best duplicate and the limits of an outlier rule are computed over the rows that all earlier rules
    passed. `known` caches the results on these facts for other plans with the same rules.
    """
    rejected = pl.Series([False]).new_from_index(0, len(facts))
    for rule, failed in zip(plan.rules, _masks(facts, plan, {} if known is None else known), strict=True):
        rejected = rejected | failed
        yield rule, failed
    if plan.drops_copies:
        rule = filter_rules.duplicate(facts.select(filter_rules.DUPLICATE_COLUMNS).filter(~rejected))
        failed = facts.select(rule.fails.fill_null(value=True)).to_series()
        rejected = rejected | failed
        yield rule, failed
    for wanted, value in plan.outliers:
        needed = {*value.meta.root_names(), *(["source_dataset"] if wanted.per_source_dataset else [])}
        rule = outlier(facts.select(sorted(needed)).filter(~rejected), wanted, value)
        failed = facts.select(rule.fails.fill_null(value=True)).to_series()
        rejected = rejected | failed
        yield rule, failed


def survivors(facts: pl.DataFrame, plan: Plan, known: Masks | None = None) -> pl.Series:
    """Return which rows of `facts` pass every rule (Boolean); `known` as in `applied`."""
    kept = pl.Series([True]).new_from_index(0, len(facts))
    for _, failed in applied(facts, plan, known):
        kept = kept & ~failed
    return kept.alias("is_kept")
