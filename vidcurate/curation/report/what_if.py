"""What-if: count the clips that other thresholds would keep; writes nothing.

A what-if reads the columns of its rules once and applies the filter's own rules: the counts are those that
`vidcurate filter` with the same settings would give.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.filter.apply_reviews import read_reviews, with_edited_captions
from vidcurate.curation.filter.bind_rules import Masks, Plan, applied, plan_of, survivors
from vidcurate.curation.filter.spec import FilterSpec, as_limit, from_table, written_out
from vidcurate.curation.report import counts
from vidcurate.errors import InputError
from vidcurate.recipe import recipe as recipes

MAX_POINTS = 200  # of a sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Columns that the rules check, one row per clip, with the groups to count and the rows kept now."""

    clips: pl.DataFrame
    counts: counts.ClipCounts
    kept_now: pl.Series | None


def settings_of(run: Path) -> FilterSpec:
    """Return the filter settings of the run; settings without rules when no filter has run."""
    path = table.stage_path(run, "filter")
    if not path.exists():
        return FilterSpec()
    return recipes.parse(json.dumps(from_table(table.provenance(path).settings)), FilterSpec, where=str(path))


def spec_of(
    run: Path, *, preset: str | None = None, recipe: Path | None = None, settings: Sequence[str] = ()
) -> FilterSpec:
    """Return the settings to try: a preset, a recipe, or else the run's own; `settings` come on top.

    Raises RecipeError, InputError.
    """
    if preset is not None and recipe is not None:
        raise InputError(f"--preset {preset} and --recipe {recipe} exclude each other. Give one of them.")
    if recipe is not None:
        return written_out(recipes.load(recipe, FilterSpec, settings=settings))
    start = {"preset": preset} if preset is not None else settings_of(run).model_dump(mode="json")
    return written_out(
        recipes.parse(json.dumps(start), FilterSpec, where="--set", settings=[*map(as_limit, settings)])
    )


def read_what_if(run: Path, specs: Sequence[FilterSpec]) -> tuple[Facts, list[Plan]]:
    """Read the columns that the rules of `specs` need, and return them with the rules. Raises ColumnError."""
    previous = table.previous_stage(run, "filter")
    reviews, where = read_reviews(run), table.stage_path(run, previous)
    clips, _ = with_edited_captions(run, table.scan(run, previous), reviews)
    schema = clips.collect_schema()
    plans = [plan_of(schema, spec, where, reviews) for spec in specs]
    wanted = {*counts.COLUMNS, *(name for plan in plans for name in plan.checked())}
    cuts = counts.level_cuts(run)
    if cuts is not None:
        wanted.add(cuts[0])
    facts = clips.select(name for name in schema if name in wanted).collect(engine="streaming")
    checked = table.stage_path(run, "filter")
    now = pl.read_parquet(checked, columns=["is_kept"])["is_kept"] if checked.exists() else None
    return Facts(clips=facts, counts=clip_counts(run, facts, cuts), kept_now=now), plans


def clip_counts(run: Path, clips: pl.DataFrame, cuts: tuple[str, list[float]] | None) -> counts.ClipCounts:
    """Return the groups to count `clips` by: source, level (by `cuts`, see `counts.level_cuts`), bucket."""
    groups = {}
    if "source_dataset" in clips.columns:
        groups["by_source"] = counts.by_value(clips["source_dataset"])
    if cuts is not None and cuts[0] in clips.columns:
        groups["by_level"] = counts.by_level(clips[cuts[0]], cuts[1])
    groups["by_bucket"] = counts.by_bucket(clips, counts.bucket_table(run)[0])
    seconds = clips["duration_seconds"] if "duration_seconds" in clips.columns else None
    return counts.ClipCounts(groups, seconds)


def _counted(facts: Facts, kept: pl.Series) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]]:
    """Return {clips, hours, share} of the kept rows, and the same by group."""
    found = facts.counts.of(kept)
    clips = int(kept.sum())
    hours = [one["hours"] for one in found["by_bucket"].values()]
    summed = None if None in hours else round(math.fsum(hours), 6)
    return {"clips": clips, "hours": summed, "share": round(clips / max(1, len(kept)), 6)}, found


def what_if(run: Path, spec: FilterSpec) -> dict[str, Any]:
    """Return what a filter with `spec` would keep, and what is kept now, as plain values.

    rows_in; kept and (when the run was filtered) now, each {clips, hours, share}; rules: in their order
    {rule, threshold, rejected (by it first), kept (after it)}; by_source, by_level (by the present cuts; when
    the run was split), by_bucket: name → {clips, hours}. Raises ColumnError, StageError.
    """
    facts, (plan,) = read_what_if(run, [spec])
    return outcome(facts, plan)


def outcome(facts: Facts, plan: Plan) -> dict[str, Any]:
    """Return what the rules of `plan` would keep of `facts`, as `what_if` does."""
    left = pl.Series([True]).new_from_index(0, len(facts.clips))
    rules = []
    for rule, failed in applied(facts.clips, plan):
        rejected = int((left & failed).sum())
        left = left & ~failed
        reported = facts.clips.select(rule.threshold.unique()).to_series()
        rules.append(
            {
                "rule": rule.measure if rule.stage != "filter" else pl.select(rule.name).item(),
                "stage": rule.stage,
                "threshold": "; ".join(sorted(reported)),
                "rejected": rejected,
                "kept": int(left.sum()),
            }
        )
    kept, groups = _counted(facts, left)
    found: dict[str, Any] = {"rows_in": len(facts.clips), "kept": kept}
    if facts.kept_now is not None:
        found["now"] = _counted(facts, facts.kept_now)[0]
        found["newly_kept"] = int((left & ~facts.kept_now).sum())
        found["newly_rejected"] = int((~left & facts.kept_now).sum())
    return {**found, "rules": rules, **groups}


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
    document = json.dumps(start.model_dump(mode="json", exclude_defaults=True))
    specs = [
        recipes.parse(document, FilterSpec, where="--sweep", settings=[as_limit(f"{key}={value}")])
        for value in values
    ]
    facts, plans = read_what_if(run, specs)
    found, known = [], Masks()
    for value, plan in zip(values, plans, strict=True):
        kept, groups = _counted(facts, survivors(facts.clips, plan, known))
        found.append({"value": value, **kept, **groups})
    now = None if facts.kept_now is None else _counted(facts, facts.kept_now)[0]
    return {"setting": key, "rows_in": len(facts.clips), "now": now, "points": found}
