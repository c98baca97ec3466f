"""What other thresholds would keep: a filter over the scores that the run has, of which nothing is written.

A what-if reads the columns that its rules ask for once, and judges them by the filter's own rules: what it
says is what `vidcurate filter` with the same settings would do.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate import recipe as recipes
from vidcurate import table, tally
from vidcurate.errors import InputError
from vidcurate.filter import FilterSpec, plan_of, with_preset
from vidcurate.filter.plan import Plan, applied, survivors

MAX_POINTS = 200  # of a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The columns that are judged and counted, a row a clip, and how the rows are named."""

    clips: pl.DataFrame
    where: Path
    source: pl.Series
    level: pl.Series | None
    bucket: pl.Series
    seconds: pl.Series | None
    kept_now: pl.Series | None


def settings_of(run: Path) -> FilterSpec:
    """Return the settings that the run was filtered with; those of no rule when it was not."""
    path = table.stage_path(run, "filter")
    if not path.exists():
        return FilterSpec()
    return recipes.parse(json.dumps(table.provenance(path).settings), FilterSpec, where=str(path))


def spec_of(
    run: Path, *, preset: str | None = None, recipe: Path | None = None, settings: Sequence[str] = ()
) -> FilterSpec:
    """Return the settings to try: a preset, a recipe, or else the run's own; `settings` come on top.

    Raises RecipeError, InputError.
    """
    if preset is not None and recipe is not None:
        raise InputError(f"--preset {preset} and --recipe {recipe}: give one of them.")
    if recipe is not None:
        return with_preset(recipes.load(recipe, FilterSpec, settings=settings))
    start = {"preset": preset} if preset is not None else settings_of(run).model_dump(mode="json")
    return with_preset(recipes.parse(json.dumps(start), FilterSpec, where="--set", settings=settings))


def _plan(run: Path, spec: FilterSpec) -> tuple[pl.LazyFrame, Plan, Path]:
    previous = table.previous_stage(run, "filter")
    clips, where = table.scan(run, previous), table.stage_path(run, previous)
    return clips, plan_of(clips.collect_schema(), spec, where), where


def read(run: Path, specs: Sequence[FilterSpec]) -> Facts:
    """Return what the rules of `specs` ask for and what is counted. Raises ColumnError, StageError."""
    wanted = {"clip_id", *tally.COLUMNS}
    for spec in specs:
        clips, plan, where = _plan(run, spec)
        wanted |= plan.columns()
    cuts = tally.level_cuts(run)
    if cuts is not None:
        wanted.add(cuts[0])
    names = [name for name in clips.collect_schema() if name in wanted]
    facts = clips.select(names).collect(engine="streaming")
    judged = table.stage_path(run, "filter")
    now = pl.read_parquet(judged, columns=["is_kept"])["is_kept"] if judged.exists() else None
    unnamed = pl.Series("source_dataset", ["unknown"]).new_from_index(0, len(facts))
    return Facts(
        clips=facts,
        where=where,
        source=facts["source_dataset"] if "source_dataset" in facts.columns else unnamed,
        level=tally.level_names(facts[cuts[0]], cuts[1]) if cuts and cuts[0] in facts.columns else None,
        bucket=tally.bucket_names(facts, tally.bucket_table(run)[0]),
        seconds=facts["duration_seconds"] if "duration_seconds" in facts.columns else None,
        kept_now=now,
    )


def _counts(facts: Facts, kept: pl.Series) -> dict[str, Any]:
    clips = int(kept.sum())
    hours = (
        None if facts.seconds is None else round((facts.seconds.filter(kept).sort().sum() or 0.0) / 3600, 6)
    )
    return {"clips": clips, "hours": hours, "share": round(clips / max(1, len(kept)), 6)}


def _groups(facts: Facts, kept: pl.Series) -> dict[str, dict[str, dict[str, Any]]]:
    found = {"by_source": tally.by(facts.source, facts.seconds, kept)}
    if facts.level is not None:
        found["by_level"] = tally.by(facts.level, facts.seconds, kept)
    return {**found, "by_bucket": tally.by(facts.bucket, facts.seconds, kept)}


def what_if(run: Path, spec: FilterSpec) -> dict[str, Any]:
    """Return what a filter with `spec` would keep, beside what is kept now, as plain values.

    rows_in; kept and (when the run was filtered) now, each {clips, hours, share}; rules: in their order
    {rule, threshold, rejected (by it first), kept (after it)}; by_source, by_level (by the present cuts; when
    the run was split), by_bucket: name → {clips, hours}. Raises ColumnError, StageError.
    """
    facts = read(run, [spec])
    _, plan, _ = _plan(run, spec)
    left = pl.Series([True]).new_from_index(0, len(facts.clips))
    rules = []
    for rule, failed in applied(facts.clips, plan):
        rejected = int((left & failed).sum())
        left = left & ~failed
        thresholds = facts.clips.select(rule.threshold.unique().sort()).to_series().to_list()
        rules.append(
            {
                "rule": rule.measure if rule.stage != "filter" else pl.select(rule.name).item(),
                "stage": rule.stage,
                "threshold": "; ".join(thresholds),
                "rejected": rejected,
                "kept": int(left.sum()),
            }
        )
    found: dict[str, Any] = {"rows_in": len(facts.clips), "kept": _counts(facts, left)}
    if facts.kept_now is not None:
        found["now"] = _counts(facts, facts.kept_now)
        found["newly_kept"] = int((left & ~facts.kept_now).sum())
        found["newly_rejected"] = int((~left & facts.kept_now).sum())
    return {**found, "rules": rules, **_groups(facts, left)}


def points(text: str) -> tuple[str, list[str]]:
    """Return (setting, values) of `key=a,b,c` or `key=first:last:step` (both ends in). Raises InputError."""
    key, equals, given = text.partition("=")
    ends = given.split(":")
    if not key or not equals or not given:
        raise InputError(f"--sweep {text}: write key=1,2,3 or key=first:last:step.")
    if len(ends) == 1:
        return key, [value.strip() for value in given.split(",")]
    try:
        first, last, step = (float(end) for end in ends)
        count = math.floor((last - first) / step + 1e-9) + 1
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"--sweep {text}: first:last:step are three numbers, and the step is not 0."
        ) from error
    if not 1 <= count <= MAX_POINTS:
        raise InputError(f"--sweep {text}: makes {max(count, 0)} values; 1 to {MAX_POINTS} are possible.")
    return key, [f"{first + step * number:.10g}" for number in range(count)]


def sweep(run: Path, start: FilterSpec, text: str) -> dict[str, Any]:
    """Return what each value of one setting would keep: {setting, rows_in, now, points}.

    A point: value, clips, hours, share, by_source, by_level, by_bucket. Raises RecipeError, InputError,
    ColumnError, StageError.
    """
    key, values = points(text)
    document = json.dumps(start.model_dump(mode="json"))
    specs = [
        recipes.parse(document, FilterSpec, where="--sweep", settings=[f"{key}={value}"]) for value in values
    ]
    facts = read(run, specs)
    found = []
    for value, spec in zip(values, specs, strict=True):
        kept = survivors(facts.clips, _plan(run, spec)[1])
        found.append({"value": value, **_counts(facts, kept), **_groups(facts, kept)})
    now = None if facts.kept_now is None else _counts(facts, facts.kept_now)
    return {"setting": key, "rows_in": len(facts.clips), "now": now, "points": found}
