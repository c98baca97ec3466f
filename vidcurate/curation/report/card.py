"""Data card of the kept clips: sources, licences, counts, rules, provenance.

The same run gives the same bytes: no date, no path of this machine, sums independent of the number of
threads.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from vidcurate.curation.clip_table import reconciliation, table
from vidcurate.curation.clip_table.schema import STAGES
from vidcurate.curation.filter.stage import read_funnel
from vidcurate.curation.report import counts
from vidcurate.curation.report.facts import levels
from vidcurate.errors import counted
from vidcurate.recipe.recipe import Recipe
from vidcurate.shards.manifest import read_manifest
from vidcurate.storage import atomic_file

CARD = "card.md"
# Licences stated by the publishers, shown when the recipe sets none.
PUBLISHED_LICENCES = {"openvid": "CC-BY-4.0", "miradata": "GPL-3.0"}
_DURATIONS = (0, 1, 2, 4, 8, 16, 32, 64)  # s
_SHORT_SIDES = (0, 144, 240, 360, 480, 720, 1080, 2160)  # px
_BAR = 40
_LONGEST_LIST = 20  # of a setting that is printed whole


class CardSpec(Recipe):
    """Settings of a data card: facts that are in no table."""

    name: str = "Data set"
    """the title"""
    description: str = ""
    """a paragraph below the title"""
    licences: dict[str, str] = Field(default_factory=dict)
    """source data set → its licence; a source without one is listed as unknown"""


def _clips(run: Path) -> pl.DataFrame:
    """Return the counted columns of every row, with is_kept (before a filter: no ingest problem)."""
    clips = table.scan(run, table.newest_stage(run))
    schema = clips.collect_schema()
    is_kept = pl.col("is_kept") if "is_kept" in schema else pl.col("ingest_problem").is_null()
    names = [name for name in (*counts.COLUMNS, "level", "fold") if name in schema]
    return clips.select(*names, is_kept=is_kept).collect(engine="streaming")


def _seconds(clips: pl.DataFrame) -> pl.Series | None:
    return clips["duration_seconds"] if "duration_seconds" in clips.columns else None


def _histogram(values: pl.Series, edges: tuple[int, ...], unit: str) -> list[dict[str, Any]]:
    """Return {range, clips} of each bin [edge, next edge), the last open above, and of unknown values."""
    known = values.cast(pl.Float64).fill_nan(None).drop_nulls()
    bins = []
    for low, high in zip(edges, (*edges[1:], None), strict=True):
        inside = known >= low if high is None else (known >= low) & (known < high)
        name = f"{low} {unit} and more" if high is None else f"{low} to {high} {unit}"
        bins.append({"range": name, "clips": int(inside.sum())})
    if len(known) < len(values):
        bins.append({"range": "unknown", "clips": len(values) - len(known)})
    return bins


def facts(run: Path, spec: CardSpec) -> dict[str, Any]:
    """Return all facts of a card as plain values. Raises StageError, TableError."""
    clips = _clips(run)
    kept = clips.filter("is_kept")
    seconds = _seconds(kept)
    rows = counts.count(counts.by_value(clips["source_dataset"]), None)
    good = counts.count(counts.by_value(kept["source_dataset"]), seconds)
    none: dict[str, Any] = {"clips": 0, "hours": 0.0}
    sources = [
        {
            "source": name,
            "rows": rows[name]["clips"],
            **good.get(name, none),
            "licence": spec.licences.get(name),
            "published_licence": PUBLISHED_LICENCES.get(name),
        }
        for name in rows
    ]
    buckets, is_own = counts.bucket_table(run)
    sides = (
        kept.select(pl.min_horizontal("width", "height")).to_series()
        if {"width", "height"} <= set(kept.columns)
        else pl.Series([None], dtype=pl.Float64).new_from_index(0, len(kept))
    )
    return {
        "name": spec.name,
        "description": spec.description,
        "rows_in": len(clips),
        "rows_kept": len(kept),
        "is_filtered": table.stage_path(run, "filter").exists(),
        "hours": None if seconds is None else round((seconds.sort().sum() or 0.0) / 3600, 6),
        "sources": sources,
        "licences_without_a_source": sorted(set(spec.licences) - set(rows)),
        "levels": levels(run),
        "buckets": counts.count(counts.by_bucket(kept, buckets), seconds),
        "buckets_are_the_splits": is_own,
        "durations": _histogram(seconds, _DURATIONS, "s") if seconds is not None else [],
        "short_sides": _histogram(sides, _SHORT_SIDES, "px"),
        "rules": [asdict(step) for step in read_funnel(run)],
        "findings": _findings(run),
        "stages": _stages(run),
        "shards": _shards(run),
    }


def _findings(run: Path) -> dict[str, int]:
    reported = reconciliation.read(run)
    return {name: one.count for name, one in reported.findings().items() if one.count} if reported else {}


def _setting(value: Any) -> str:
    """Return a setting as JSON; a long list, such as one of clip ids, as its length."""
    if isinstance(value, list) and len(value) > _LONGEST_LIST:
        return f"{len(value):,} values"
    return json.dumps(value, ensure_ascii=False)


def _stages(run: Path) -> list[dict[str, Any]]:
    found = []
    for stage in STAGES:
        path = table.stage_path(run, stage)
        if path.exists():
            origin = table.provenance(path)
            found.append(
                {
                    "stage": stage,
                    "version": origin.version,
                    "sha256": table.digest(path),
                    "inputs": dict(sorted(origin.inputs.items())),
                    "settings": {
                        name: value
                        for name, value in sorted(origin.settings.items())
                        if value not in (None, [], {}, "")
                    },
                }
            )
    return found


def _shards(run: Path) -> dict[str, Any] | None:
    reported = read_manifest(run / "shards")
    if reported is None:
        return None
    return {
        "totals": reported["totals"],
        "integrity_levels": reported.get("integrity_levels", {}),
        "failed": len(reported["failed"]),
        "structure_fingerprint": reported["structure_fingerprint"],
        "content_fingerprint": reported["content_fingerprint"],
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return " ".join(str(value).split()).replace("|", "\\|")


def _table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{' --- |' * len(header)}",
        *(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows),
        "",
    ]


def _bars(bins: list[dict[str, Any]]) -> list[str]:
    most = max((one["clips"] for one in bins), default=0) or 1
    wide = max((len(one["range"]) for one in bins), default=0)
    figures = max((len(_cell(one["clips"])) for one in bins), default=0)
    lines = []
    for one in bins:
        bar = "█" * -(-_BAR * one["clips"] // most)
        lines.append(f"{one['range']:<{wide}}  {_cell(one['clips']):>{figures}}  {bar}".rstrip())
    return ["```text", *lines, "```", ""]


def _licence(source: dict[str, Any]) -> str:
    if source["licence"]:
        return str(source["licence"])
    published = source["published_licence"]
    return f"unknown (its publisher states {published})" if published else "unknown"


def text(run: Path, spec: CardSpec) -> str:
    """Return the card as Markdown. Raises StageError, TableError."""
    reported = facts(run, spec)
    hours = "" if reported["hours"] is None else f", {_cell(reported['hours'])} hours"
    checked = "kept" if reported["is_filtered"] else "without an ingest problem (no filter has been run)"
    lines = [f"# {reported['name']}", ""]
    if reported["description"]:
        lines += [reported["description"], ""]
    lines += [
        f"{counted(reported['rows_kept'], 'clip')} {checked} of {reported['rows_in']:,}{hours}.",
        "",
        "## Sources",
        "",
    ]
    lines += _table(
        ("source", "rows", "clips", "hours", "licence"),
        [
            (one["source"], one["rows"], one["clips"], one["hours"], _licence(one))
            for one in reported["sources"]
        ],
    )
    if reported["licences_without_a_source"]:
        lines += [f"Licences without a row: {', '.join(reported['licences_without_a_source'])}.", ""]
    if reported["levels"]:
        lines += [f"## Levels by {reported['levels']['column']}", ""]
        names = ("level", "clips", "validation_clips", "hours", "frames", "tokens", "min", "max", "mean")
        rows = [tuple(level[name] for name in names) for level in reported["levels"]["levels"]]
        lines += _table(tuple(name.replace("_", " ") for name in names), rows)
    own = "the training's table" if reported["buckets_are_the_splits"] else "the published sizes and lengths"
    lines += ["## Buckets", "", f"By {own}: the largest size that a clip fills, its longest length.", ""]
    lines += _table(
        ("bucket", "clips", "hours"),
        [(name, one["clips"], one["hours"]) for name, one in reported["buckets"].items()],
    )
    if reported["durations"]:
        lines += ["## Duration", "", *_bars(reported["durations"])]
    lines += ["## Shorter side", "", *_bars(reported["short_sides"])]
    lines += ["## Rules", ""]
    lines += _table(
        ("rule", "stage", "asked", "rejected", "left"),
        [
            (rule["rule"], rule["stage"], rule["threshold"], rule["rejected"], rule["kept"])
            for rule in reported["rules"]
        ],
    )
    if reported["findings"]:
        lines += ["## Metadata against files", ""]
        lines += _table(("finding", "rows"), [*reported["findings"].items()])
    lines += ["## Recipe, versions and hashes", ""]
    for stage in reported["stages"]:
        lines += [f"### {stage['stage']} (vidcurate {stage['version']})", ""]
        lines += ["```text", f"sha256 {stage['sha256']}  {stage['stage']}.parquet"]
        lines += [f"read   {digest}  {name}" for name, digest in stage["inputs"].items()]
        lines += [f"{name}: {_setting(value)}" for name, value in stage["settings"].items()]
        lines += ["```", ""]
    if reported["shards"]:
        lines += ["### shards", "", "```text"]
        lines += [f"{name}: {json.dumps(value)}" for name, value in reported["shards"].items()]
        lines += ["```", ""]
    return "\n".join(lines).rstrip() + "\n"


def run_card(run: Path, spec: CardSpec, out: Path | None = None) -> Path:
    """Write the card of a run to `out` (None: RUN/card.md). Raises StageError, TableError, StorageError."""
    target = out or run / CARD
    atomic_file.write_text(target, text(run, spec))
    return target
