"""Report facts from the files of a run, as plain values; any stage may be missing."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import reconciliation, rejection_ledger, stage_json, table
from vidcurate.curation.clip_table.schema import STAGES
from vidcurate.curation.difficulty.summary import LEVELS, LevelsFile
from vidcurate.shards.manifest import read_manifest

SHARDS = "shards"
LISTED = 12

# What reconcile.json counts, in the order of the page.
FINDINGS = {
    "missing_files": "rows whose file is not there",
    "extra_files": "files that no row names",
    "duplicate_ids": "rows that stand twice",
    "empty_captions": "rows without a caption",
    "bad_values": "rows with a value that cannot be read",
    "paths_outside_root": "rows whose path leaves the folder of videos",
    "found_by_name": "rows whose file lay in another folder",
    "ambiguous_names": "rows whose file name is there more than once",
    "disagreements": "rows that contradict themselves",
    "captions_without_a_video": "captions whose video is not there",
}


def verdicts(clips: pl.LazyFrame) -> tuple[pl.LazyFrame, bool]:
    """Return the table with the verdict columns, and whether a filter has run.

    Before the filter a clip counts as rejected when it has an ingest problem or the probe found it broken.
    """
    columns = clips.collect_schema().names()
    if "is_kept" in columns:
        return clips, True
    rule = pl.col("ingest_problem")
    stage: pl.Expr = pl.when(rule.is_not_null()).then(pl.lit("ingest"))
    value: pl.Expr = pl.when(rule.is_not_null()).then(pl.coalesce("video_path", "clip_id"))
    if "probe_status" in columns:
        is_broken = pl.col("probe_status") != "ok"
        stage = pl.coalesce(stage, pl.when(is_broken).then(pl.lit("probe")))
        value = pl.coalesce(value, pl.when(is_broken).then("probe_problem"))
        rule = pl.coalesce(rule, pl.when(is_broken).then("probe_status"))
    checked = clips.with_columns(
        reject_rule=rule,
        reject_stage=stage,
        reject_value=value,
        reject_threshold=pl.lit(None, dtype=pl.String),
    )
    return checked.with_columns(is_kept=pl.col("reject_rule").is_null()), False


def with_unwritten(run: Path, checked: pl.LazyFrame) -> pl.LazyFrame:
    """Return the verdicts with those of `build-shards`: kept clips that the last build could not write."""
    failed = rejection_ledger.unwritten(run)
    if failed.is_empty():
        return checked
    names = ("rule", "value", "threshold")
    joined = checked.join(
        failed.lazy().rename({name: f"build_{name}" for name in names}),
        on="clip_id",
        how="left",
        maintain_order="left",
    )
    is_failed = pl.col("is_kept") & pl.col("build_rule").is_not_null()
    return joined.with_columns(
        pl.when(is_failed)
        .then(pl.lit(rejection_ledger.BUILD))
        .otherwise("reject_stage")
        .alias("reject_stage"),
        *(
            pl.when(is_failed).then(f"build_{name}").otherwise(f"reject_{name}").alias(f"reject_{name}")
            for name in names
        ),
        (pl.col("is_kept") & ~is_failed).alias("is_kept"),
    ).drop(f"build_{name}" for name in names)


def findings(run: Path) -> dict[str, Any] | None:
    """Return the reconciliation: the detected metadata schema, and each finding that is not zero."""
    reported = reconciliation.read(run)
    if reported is None:
        return None
    found = []
    for name, entry in reported.findings().items():
        if entry.count:
            names = [_entry(one) for one in entry.listed[:LISTED]]
            found.append(
                {
                    "name": name,
                    "meaning": FINDINGS[name],
                    "count": entry.count,
                    "listed": names,
                    "more": entry.count - len(names),
                }
            )
    return {
        "schema": reported.schema,
        "reason": reported.reason,
        "metadata_rows": reported.metadata_rows,
        "rows_in": reported.rows_in,
        "rows_kept": reported.rows_kept,
        "own_columns": [own.column for own in reported.own_columns],
        "captions": reported.captions,
        "findings": found,
    }


def _entry(one: Any) -> str:
    """Return one listed finding as short text."""
    if not isinstance(one, Mapping):
        return str(one)
    name = str(one.get("path") or one.get("clip_id") or "")
    if "first_row" in one:
        return f"{one.get('id')} (row {one.get('row')}, first in row {one['first_row']})"
    if "column" in one:
        return f"{name}: {one['column']} is {one.get('value')}"
    if "what" in one:
        return f"{name}: {one['what']}"
    if "found" in one:
        return f"{name} → {one['found']}"
    return f"{name} (row {one['row']})" if one.get("row") is not None else name


def _settings(value: Mapping[str, Any]) -> list[str]:
    """Return the settings that are set, as `key: value`; a key inside another is `outer.inner`."""
    found = []
    for key, inner in sorted(value.items()):
        if isinstance(inner, Mapping):
            found += [f"{key}.{one}" for one in _settings(inner)]
        elif inner not in (None, [], ""):
            found.append(f"{key}: {_setting(inner)}")
    return found


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    if isinstance(value, Mapping):
        return " ".join(_settings(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def stages(run: Path) -> list[dict[str, Any]]:
    """Return each stage that has run: version, settings, and digests of inputs and output."""
    found = []
    for stage in STAGES:
        path = table.stage_path(run, stage)
        if path.exists():
            origin = table.provenance(path)
            found.append(
                {
                    "stage": stage,
                    "version": origin.version,
                    "settings": _settings(origin.settings),
                    "inputs": [f"{name} {digest[:12]}" for name, digest in sorted(origin.inputs.items())],
                    "digest": table.digest(path)[:12],
                }
            )
    return found


def levels(run: Path) -> dict[str, Any] | None:
    """Return levels.json when the split that wrote it is there."""
    if not table.stage_path(run, "split").exists():
        return None
    found = stage_json.read(run / LEVELS, LevelsFile)
    return None if found is None else asdict(found)


def shards(run: Path) -> dict[str, Any] | None:
    """Return totals, shards by fold and level, and failed clips from the shards' manifest."""
    manifest = read_manifest(run / SHARDS)
    if manifest is None:
        return None
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for shard in manifest["shards"]:
        group = groups.setdefault(
            (shard["fold"], shard["level"]),
            {"fold": shard["fold"], "level": shard["level"], "shards": 0, "clips": 0, "bytes": 0},
        )
        group["shards"] += 1
        group["clips"] += shard["clips"]
        group["bytes"] += shard["bytes"]
    return {
        "totals": manifest["totals"],
        "groups": [groups[key] for key in sorted(groups)],
        "failed": manifest["failed"][:LISTED],
        "more_failed": max(0, len(manifest["failed"]) - LISTED),
        "integrity_levels": manifest.get("integrity_levels", {}),
        "structure": manifest["structure_fingerprint"],
        "content": manifest["content_fingerprint"],
    }
