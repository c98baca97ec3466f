"""Stage `filter`: keep or reject every clip by named rules.

Rules are expressions over the table in a fixed order; the first rule that a clip fails gives the verdict, and
the ledger lists every failed rule with value and threshold. A missing value fails unless its rule allows it,
so an unmeasured clip is never kept by accident. Outlier rules come last, each over the rows that passed all
before.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table import rejection_ledger, run_lock, table
from vidcurate.curation.clip_table.rejection_ledger import LEDGER
from vidcurate.curation.filter.apply_reviews import (
    NO_REVIEWS,
    Reviews,
    read_reviews,
    review_columns,
    summarise_reviews,
    with_edited_captions,
)
from vidcurate.curation.filter.bind_rules import evaluated, plan_of
from vidcurate.curation.filter.rules import UNKNOWN
from vidcurate.curation.filter.spec import FilterSpec, left_out_of, written_out
from vidcurate.curation.review_decisions.journal import REVIEWS
from vidcurate.curation.review_decisions.outcome import digest_of
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.storage import atomic_file
from vidcurate.storage.json_shape import Count

FUNNEL = "funnel.json"
_OF_FUNNEL = ("order", "rule", "stage", "threshold", "is_verdict")
_LATER = ("split", rejection_ledger.BUILD)  # stages that add to the ledger
_WORD = pl.Categorical()  # stages, rules, measures and thresholds in memory: 4 bytes instead of 16
# Stages whose rejections are failures (a missing or broken clip), not choices.
FAILING_STAGES = ("ingest", "probe", "caption", "frames", "models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """Counts of one rule: rows that reached it, rejected rows, kept rows."""

    rule: str
    stage: str
    threshold: str
    rows_in: Count
    rejected: Count
    kept: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSummary:
    """Counts of a filtered table; `rows_in` = `rows_kept` + `rows_rejected`.

    `left_out` counts the listed clip ids, and those that are not in the table; empty without a list.
    `reviewed` counts what review decisions changed; empty without decisions.
    """

    rows_in: int
    rows_kept: int
    rows_rejected: int
    by_rule: dict[str, int]
    funnel: tuple[Funnel, ...]
    up_to_date: bool
    left_out: dict[str, int]
    reviewed: dict[str, int]


def apply_rules(
    clips: pl.LazyFrame, spec: FilterSpec, where: Path, reviews: Reviews = NO_REVIEWS
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the verdicts (clip_id, is_kept, reject_…: one row per clip, in order), and the ledger.

    Words that repeat (stage, rule, measure, threshold) are categorical.

    The ledger has one row per clip and failed rule: row (the clip's position) and the columns of
    `rejection_ledger.ORDER`. Reads only the columns that a rule needs. `where` is the table's path, for
    messages. A rule that a clip kept by eye fails is an entry, too, and never a verdict. Raises ColumnError
    when a rule needs a column that the table lacks.
    """
    schema = clips.collect_schema()
    plan = plan_of(schema, spec, where, reviews)
    read = {"clip_id", *plan.columns()}
    facts = clips.select(name for name in schema if name in read).collect(engine="streaming")
    facts = facts.with_row_index("row")
    first = pl.Series("order", [None], dtype=pl.Int32).new_from_index(0, len(facts))
    entries: list[pl.DataFrame] = []
    for order, (rule, failed, overridden) in enumerate(evaluated(facts, plan)):
        first = first.zip_with(first.is_not_null() | ~failed, pl.Series([order], dtype=pl.Int32))
        entries.append(
            facts.lazy()
            .with_columns(is_overridden=overridden)
            .filter(failed | overridden)
            .select(
                "row",
                pl.lit(order, dtype=pl.Int32).alias("order"),
                pl.lit(rule.stage).cast(_WORD).alias("stage"),
                rule.name.fill_null(UNKNOWN).cast(_WORD).alias("rule"),
                pl.lit(rule.measure).cast(_WORD).alias("measure"),
                rule.value.fill_null(UNKNOWN).alias("value"),
                rule.threshold.cast(_WORD).alias("threshold"),
                "is_overridden",
            )
            .collect()
        )
    ids = facts["clip_id"]
    del facts  # the sort and the tables take its memory: 80 B a row
    reported = pl.concat(entries)
    entries.clear()
    reported = reported.sort("row", maintain_order=True)  # stable: rules stay in order within a row
    reported = reported.with_columns(ids.gather(reported["row"]))
    names = ("stage", "rule", "value", "threshold")
    # The verdict on a clip is the ledger's entry for the first rule that rejects it.
    is_first = reported["order"] == first.gather(reported["row"])
    reported = reported.with_columns((is_first & ~reported["is_overridden"]).alias("is_verdict"))
    verdicts = reported.select("row", *names, "is_verdict").filter("is_verdict")
    place = pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(ids))
    place = place.scatter(verdicts["row"], pl.int_range(len(verdicts), dtype=pl.UInt32, eager=True))
    reasons = verdicts.select(pl.col(name).gather(place).alias(f"reject_{name}") for name in names)
    checked = pl.DataFrame([ids, first.is_null().alias("is_kept")]).hstack(reasons)
    return checked, rejection_ledger.signed(reported, spec.model_dump_json()).select(
        "row", *rejection_ledger.ORDER
    )


def funnel_of(reported: pl.DataFrame, total: int) -> list[Funnel]:
    """Return the rules that rejected something, in their order, with the rows in and out of each."""
    firsts = (
        reported.select(_OF_FUNNEL)
        .filter("is_verdict")
        .group_by("order", "rule")
        .agg(pl.len().alias("rejected"), pl.col("stage", "threshold").first())
        .with_columns(pl.col("stage", "rule", "threshold").cast(pl.String))
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
    return steps


@run_lock.holding_run
def run_filter(run: Path, spec: FilterSpec, *, progress: Progress = no_progress) -> FilterSummary:
    """Keep or reject every clip; write RUN/filter.parquet, RUN/ledger.parquet and RUN/funnel.json.

    Applies the decisions of RUN/reviews.jsonl. `check_limits` checks the limits on shares. Raises
    ColumnError, StageError, StorageError, TableError for a forged decision, InputError when the scores of an
    edited caption cannot be computed.
    """
    spec = written_out(spec)
    previous = table.previous_stage(run, "filter")
    source = table.stage_path(run, previous)
    reviews = read_reviews(run)
    decided = {REVIEWS: digest_of(reviews.outcomes)} if reviews.outcomes else {}
    target, funnel_path, ledger_path = table.stage_path(run, "filter"), run / FUNNEL, run / LEDGER
    with ThreadPoolExecutor(max_workers=1) as beside:
        digest = beside.submit(table.digest, source)

        def origin() -> table.Provenance:
            return table.Provenance(
                stage="filter",
                settings=json.loads(spec.model_dump_json()),
                inputs={previous: digest.result(), **decided},
            )

        is_there = all(path.exists() for path in (target, ledger_path))
        up_to_date = is_there and all(table.is_up_to_date(path, origin()) for path in (target, ledger_path))
        if not up_to_date:
            before = table.scan(run, previous)
            clips, changed = with_edited_captions(run, before, reviews)
            checked, reported = apply_rules(clips, spec, source, reviews)
            progress(1, 3, "steps")
            every = _with_texts(checked)
            if reviews.outcomes:
                parts = [every, review_columns(before, reviews), clips.select(changed)]
                every = pl.concat(parts[: 3 if changed else 2], how="horizontal")
            with table.writing(every, target, origin()):
                table.write(_with_texts(reported).drop("row"), ledger_path, origin())
                progress(2, 3, "steps")
            progress(3, 3, "steps")
    steps = read_funnel(run)
    atomic_file.write_json(funnel_path, [asdict(step) for step in steps])
    listed = pl.Series(left_out_of(spec), dtype=pl.String).unique()
    return _summary(target, steps, up_to_date, listed, summarise_reviews(run, reviews))


def read_funnel(run: Path) -> list[Funnel]:
    """Return the funnel of the run's filter, computed from its ledger; none without a filter or ledger.

    RUN/funnel.json is for other tools: it may be of a command that was killed. Raises StageError, TableError.
    """
    filtered = table.stage_path(run, "filter")
    if not (filtered.exists() and (run / LEDGER).exists()):
        return []
    entries = rejection_ledger.read_ledger(run).filter(pl.col("stage").is_in(_LATER).not_())
    total = pl.scan_parquet(filtered).select(pl.len()).collect().item()
    return funnel_of(entries.select(_OF_FUNNEL).collect(), total)


def _with_texts(frame: pl.DataFrame) -> pl.LazyFrame:
    return frame.lazy().with_columns(pl.col(_WORD).cast(pl.String))


def check_limits(
    run: Path,
    summary: FilterSummary,
    *,
    max_failure_share: float | None,
    max_rejected_share: float | None = None,
) -> None:
    """Raise FailureLimitError when a larger share of the rows failed, or was rejected, than is allowed."""
    failed = sum(step.rejected for step in summary.funnel if step.stage in FAILING_STAGES)
    for count, share, what, key in (
        (failed, max_failure_share, "are missing or broken", "max_failure_share"),
        (summary.rows_rejected, max_rejected_share, "are rejected", "max_rejected_share"),
    ):
        see = f"`vidcurate ledger {run}` lists them."
        rejection_ledger.check_share(count, summary.rows_in, share, what=what, key=key, see=see)


def _summary(
    target: Path, steps: Sequence[Funnel], up_to_date: bool, listed: pl.Series, reviewed: dict[str, int]
) -> FilterSummary:
    kept = pl.read_parquet(target, columns=["is_kept"])["is_kept"]
    left_out = {}
    if len(listed):
        of_table = pl.scan_parquet(target).select(pl.col("clip_id").is_in(listed.implode()).sum())
        left_out = {"listed": len(listed), "not_in_table": len(listed) - of_table.collect().item()}
    rejected = sum(step.rejected for step in steps)
    assert int(kept.sum()) + rejected == len(kept), "a row was lost"
    by_rule: dict[str, int] = {}
    for step in steps:
        by_rule[step.rule] = by_rule.get(step.rule, 0) + step.rejected
    return FilterSummary(
        rows_in=len(kept),
        rows_kept=int(kept.sum()),
        rows_rejected=rejected,
        by_rule=by_rule,
        funnel=tuple(steps),
        up_to_date=up_to_date,
        left_out=left_out,
        reviewed=reviewed,
    )
