"""Filter limits of a run, and the clips nearest to each limit on either side."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.rejection_ledger import LEDGER, read_ledger
from vidcurate.curation.filter.rules import columns_of, number

MOST_LIMITS = 12
NEAREST = 2  # clips on either side of a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Limit at one end of a range: `measure` is a column, short_side or aspect_ratio; `word` min or max."""

    rule: str
    measure: str
    word: str
    value: float

    @property
    def threshold(self) -> str:
        return f"{'>=' if self.word == 'min' else '<='} {self.value:.10g}"


def bounds(run: Path) -> list[Bound]:
    """Return every numeric limit: from the filter's settings, then from outlier rules and the split.

    Only limits that are the same for all clips, in order, each once.
    """
    found: dict[tuple[str, str, float], Bound] = {}

    def add(bound: Bound) -> None:
        found.setdefault((bound.measure, bound.word, bound.value), bound)

    path = table.stage_path(run, "filter")
    settings: Mapping[str, Any] = table.provenance(path).settings if path.exists() else {}
    for name, value in sorted(settings.items()):
        word, _, measure = name.partition("_")
        if word in ("min", "max") and value is not None and "share" not in measure:
            add(Bound(rule=name, measure=measure, word=word, value=float(value)))
    for measure, limit in sorted((settings.get("limits") or {}).items()):
        for word in ("min", "max"):
            if limit.get(word) is not None:
                add(Bound(rule=f"{word}_{measure}", measure=measure, word=word, value=float(limit[word])))
    for rule, measure, threshold in _reported(run):
        for part in threshold.split(" and "):
            sign, _, text = part.partition(" ")
            add(Bound(rule=rule, measure=measure, word="min" if sign == ">=" else "max", value=float(text)))
    return list(found.values())


def _reported(run: Path) -> list[tuple[str, str, str]]:
    """Return (rule, measure, threshold) of the ledger's ranges that are the same for all clips."""
    if not (run / LEDGER).exists():
        return []
    is_range = pl.col("threshold").str.contains(r"^(?:>=|<=) \S+(?: and <= \S+)?$")
    rows = (
        read_ledger(run)
        .filter(is_range)
        .group_by("order", "rule", "measure")
        .agg(pl.col("threshold").first(), pl.col("threshold").n_unique().alias("different"))
        .filter(pl.col("different") == 1)
        .sort("order", "rule")
        .select("rule", "measure", "threshold")
        .collect()
    )
    return list(rows.iter_rows())


def nearest(run: Path, checked: pl.LazyFrame, every: list[Bound]) -> list[dict[str, Any]]:
    """Return rule, measure and threshold of each limit that has clips, with the nearest clips.

    The nearest kept clips and the nearest clips rejected by this rule are (id, value).
    """
    schema = checked.collect_schema()
    found = []
    for bound in every:
        if not all(name in schema and schema[name].is_numeric() for name in columns_of(bound.measure)):
            continue
        value = number(schema, bound.measure, run, bound.rule).cast(pl.Float64)
        sides = {}
        for side, is_in in (
            ("kept", pl.col("is_kept")),
            ("rejected", pl.col("reject_rule") == bound.rule),
        ):
            rows = (
                checked.select("clip_id", "is_kept", "reject_rule", value.alias("value"))
                .filter(is_in & pl.col("value").is_not_null())
                .sort((pl.col("value") - bound.value).abs(), "clip_id")
                .head(NEAREST)
                .select("clip_id", "value")
                .collect()
            )
            sides[side] = list(rows.iter_rows())
        if any(sides.values()):
            found.append(
                {"rule": bound.rule, "measure": bound.measure, "threshold": bound.threshold, **sides}
            )
    return found[:MOST_LIMITS]
