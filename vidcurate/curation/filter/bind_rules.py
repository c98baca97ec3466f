"""Filter rules bound to the columns of one table: which clips pass each rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table.schema import OF_OLD_CAPTION
from vidcurate.curation.filter import rules as filter_rules
from vidcurate.curation.filter.apply_reviews import NO_REVIEWS, Reviews, is_among, rejected_by_eye
from vidcurate.curation.filter.outliers import outlier
from vidcurate.curation.filter.rules import Rule, Schema, left_out, number, ranges, structural
from vidcurate.curation.filter.spec import FilterSpec, OutlierRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bound rules. `rules` apply row by row; duplicates (when `drops_copies`) and `outliers`, each with its
    value, apply to the rows that passed all rules before. The first `num_structural` rules apply also to
    clips that the `reviews` keep."""

    rules: tuple[Rule, ...]
    drops_copies: bool
    outliers: tuple[tuple[OutlierRule, pl.Expr], ...]
    num_structural: int = 0
    reviews: Reviews = NO_REVIEWS

    def checked(self) -> set[str]:
        """Return the columns that the rules check."""
        read = {"source_dataset" for rule, _ in self.outliers if rule.per_source_dataset}
        if self.reviews.outcomes:
            read.add("clip_id")
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


def plan_of(schema: Schema, spec: FilterSpec, where: Path, reviews: Reviews = NO_REVIEWS) -> Plan:
    """Return the rules of `spec` and of the reviews for a table of this schema. Raises ColumnError."""
    first = structural(schema, spec)
    rules = [*first, *rejected_by_eye(reviews), *left_out(spec), *ranges(schema, spec, where)]
    outliers = [
        (rule, number(schema, rule.column, where, f"outliers.{rule.column}")) for rule in spec.outliers
    ]
    drops_copies = set(filter_rules.DUPLICATE_COLUMNS) <= set(schema)
    return Plan(
        rules=tuple(rules),
        drops_copies=drops_copies,
        outliers=tuple(outliers),
        num_structural=len(first),
        reviews=reviews,
    )


Masks = dict[bytes, pl.Series]


def _masks(facts: pl.DataFrame, plan: Plan, known: Masks) -> list[pl.Series]:
    """Return which rows fail each rule, reusing results in `known` (by the rule's expression)."""
    # Not str(): it abbreviates a long list of words.
    keys = [rule.fails.meta.serialize() for rule in plan.rules]
    new = {key: rule.fails for key, rule in zip(keys, plan.rules, strict=True) if key not in known}
    found = facts.select(fails.fill_null(value=True).alias(str(n)) for n, fails in enumerate(new.values()))
    known.update(zip(new, found, strict=True))
    return [known[key] for key in keys]


def evaluated(
    facts: pl.DataFrame, plan: Plan, known: Masks | None = None
) -> Iterator[tuple[Rule, pl.Series, pl.Series]]:
    """Yield each rule, in order, with the rows that it rejects and those that fail it but are kept by eye.

    Both masks are Boolean without nulls, and no row is in both. A rule on a score of the old caption checks
    no clip with an edited caption. The best duplicate and the limits of an outlier rule are computed over the
    rows that all earlier rules passed; a clip kept by eye is the best of its copies. `known` caches the
    results on these facts for other plans with the same rules.
    """
    nothing = pl.Series([False]).new_from_index(0, len(facts))
    kept, edited = nothing, nothing
    if plan.reviews.outcomes:
        kept = is_among(facts["clip_id"], plan.reviews.ids("keep"))
        edited = is_among(facts["clip_id"], [*plan.reviews.captions()])
    rejected = nothing
    masks = _masks(facts, plan, {} if known is None else known)
    for place, (rule, failed) in enumerate(zip(plan.rules, masks, strict=True)):
        if rule.measure in OF_OLD_CAPTION:
            failed = failed & ~edited
        overridden = nothing if place < plan.num_structural else failed & kept
        failed = failed & ~overridden
        rejected = rejected | failed
        yield rule, failed, overridden
    if plan.drops_copies:
        rank = pl.when(kept).then(0).otherwise(pl.col("duplicate_rank")).alias("duplicate_rank")
        best = facts.select(filter_rules.DUPLICATE_COLUMNS).with_columns(rank)
        rule = filter_rules.duplicate(best.filter(~rejected))
        failed = facts.select(rule.fails.fill_null(value=True)).to_series()
        rejected = rejected | (failed & ~kept)
        yield rule, failed & ~kept, failed & kept
    for wanted, value in plan.outliers:
        needed = {*value.meta.root_names(), *(["source_dataset"] if wanted.per_source_dataset else [])}
        rule = outlier(facts.select(sorted(needed)).filter(~rejected), wanted, value)
        failed = facts.select(rule.fails.fill_null(value=True)).to_series()
        if wanted.column in OF_OLD_CAPTION:
            failed = failed & ~edited
        rejected = rejected | (failed & ~kept)
        yield rule, failed & ~kept, failed & kept


def applied(facts: pl.DataFrame, plan: Plan, known: Masks | None = None) -> Iterator[tuple[Rule, pl.Series]]:
    """Yield each rule, in order, with the rows of `facts` that it rejects; the rest is as in `evaluated`."""
    for rule, failed, _ in evaluated(facts, plan, known):
        yield rule, failed


def survivors(facts: pl.DataFrame, plan: Plan, known: Masks | None = None) -> pl.Series:
    """Return which rows of `facts` pass every rule (Boolean); `known` as in `applied`."""
    kept = pl.Series([True]).new_from_index(0, len(facts))
    for _, failed in applied(facts, plan, known):
        kept = kept & ~failed
    return kept.alias("is_kept")
