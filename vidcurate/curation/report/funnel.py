"""Rejection funnel: clips lost rule by rule and stage by stage, failures by name."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.clip_table.schema import STAGES
from vidcurate.curation.filter.stage import FAILING_STAGES, read_funnel

EXAMPLES = 3
NAMED = 12  # listed clips per kind of failure
_FAILING = (*FAILING_STAGES, rejection_ledger.BUILD)


def by_rule(run: Path, checked: pl.LazyFrame, total: int) -> list[dict[str, Any]]:
    """Return the rules that rejected clips, in order: rule, stage, threshold, rows_in, rejected, kept."""
    steps: list[dict[str, Any]] = []
    if table.stage_path(run, "filter").exists():
        steps = [asdict(step) for step in read_funnel(run)]
    reported = {step["rule"] for step in steps}
    counted = (
        checked.filter(pl.col("reject_rule").is_not_null() & ~pl.col("reject_rule").is_in(sorted(reported)))
        .group_by("reject_stage", "reject_rule")
        .agg(pl.len().alias("rejected"), pl.col("reject_threshold").drop_nulls().first())
        .collect()
    )
    rows = sorted(
        counted.iter_rows(named=True),
        key=lambda row: (_place(row["reject_stage"]), row["reject_rule"]),
    )
    left = total - sum(step["rejected"] for step in steps)
    for row in rows:
        steps.append(
            {
                "rule": row["reject_rule"],
                "stage": row["reject_stage"],
                "threshold": row["reject_threshold"] or "",
                "rows_in": left,
                "rejected": row["rejected"],
                "kept": left - row["rejected"],
            }
        )
        left -= row["rejected"]
    return steps


def _place(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def with_examples(checked: pl.LazyFrame, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each rule of the funnel with its first examples: clip id, value and threshold."""
    examples = _firsts(checked, EXAMPLES)
    return [{**step, "examples": examples.get((step["stage"], step["rule"]), [])} for step in steps]


def failures(checked: pl.LazyFrame, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rules that reject missing or broken clips, each with its clips and reasons."""
    failing = [step for step in steps if step["stage"] in _FAILING]
    named = _firsts(checked.filter(pl.col("reject_stage").is_in(list(_FAILING))), NAMED)
    return [
        {**step, "clips": clips, "more": step["rejected"] - len(clips)}
        for step in failing
        for clips in [named.get((step["stage"], step["rule"]), [])]
    ]


def _firsts(checked: pl.LazyFrame, count: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return (stage, rule) → its first clips; two stages may have rules of the same name."""
    rows = (
        checked.filter(~pl.col("is_kept"))
        .select("clip_id", "reject_stage", "reject_rule", "reject_value", "reject_threshold")
        .sort("clip_id")
        .group_by("reject_stage", "reject_rule", maintain_order=True)
        .head(count)
        .collect()
    )
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows.iter_rows(named=True):
        found.setdefault((row["reject_stage"], row["reject_rule"]), []).append(
            {"clip_id": row["clip_id"], "value": row["reject_value"], "threshold": row["reject_threshold"]}
        )
    return found


def by_stage(
    run: Path, checked: pl.LazyFrame, steps: list[dict[str, Any]], total: int
) -> list[dict[str, Any]]:
    """Return every stage that has run: stage, said (its findings as text), rejected, kept."""
    rejected: dict[str, int] = {}
    for step in steps:
        rejected[step["stage"]] = rejected.get(step["stage"], 0) + step["rejected"]
    found, left = [], total
    for stage in (*STAGES, rejection_ledger.BUILD):
        if table.stage_path(run, stage).exists() or rejected.get(stage):
            count = rejected.get(stage, 0)
            left -= count
            said = _SAID[stage](checked) if table.stage_path(run, stage).exists() else ""
            found.append({"stage": stage, "said": said, "rejected": count, "kept": left})
    return found


def _counts(checked: pl.LazyFrame, column: str) -> dict[str, int]:
    if column not in checked.collect_schema():
        return {}
    rows = checked.select(column).drop_nulls().group_by(column).len().sort(column).collect()
    return dict(rows.iter_rows())


def _as_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())


def _probed(checked: pl.LazyFrame) -> str:
    levels = _counts(checked, "integrity_level")
    order = [name for name in ("header", "index", "keyframes", "full") if name in levels]
    reached = ", ".join(f"{levels[name]:,} to the level {name}" for name in order)
    noted = 0
    if {"probe_findings", "probe_status"} <= set(checked.collect_schema().names()):
        is_noted = pl.col("probe_findings").is_not_null() & (pl.col("probe_status") == "ok")
        noted = checked.select(is_noted.sum()).collect().item()
    parts = [f"clips examined: {reached}" if reached else "", f"{noted:,} only noted" if noted else ""]
    return "; ".join(part for part in parts if part)


def _copies(checked: pl.LazyFrame) -> str:
    if "duplicate_cluster" not in checked.collect_schema():
        return ""
    clusters = checked.select(pl.col("duplicate_cluster").drop_nulls().n_unique()).collect().item()
    kinds = _as_text(_counts(checked, "duplicate_kind"))
    return f"clusters of copies: {clusters:,}" + (f"; copies by {kinds}" if kinds else "")


def _models(checked: pl.LazyFrame) -> str:
    used = ", ".join(_counts(checked, "models_used"))
    return "; ".join(part for part in (_as_text(_counts(checked, "models_status")), used) if part)


# Summary of each stage over the whole table, as text.
_SAID: dict[str, Callable[[pl.LazyFrame], str]] = {
    "ingest": lambda checked: "",
    "probe": _probed,
    "score": lambda checked: ", ".join(_counts(checked, "noun_engine")),
    "frames": lambda checked: _as_text(_counts(checked, "frames_status")),
    "models": _models,
    "own_scores": lambda checked: _as_text(_counts(checked, "own_scores_status")),
    "dedup": _copies,
    "filter": lambda checked: "",
    "split": lambda checked: _as_text(_counts(checked, "fold")),
}
