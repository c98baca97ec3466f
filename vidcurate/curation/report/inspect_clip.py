"""Run overview, and the history of one clip from its metadata row to its shard."""

import difflib
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table

from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.clip_table.rejection_ledger import LEDGER
from vidcurate.curation.clip_table.schema import COLUMNS, STAGES, written_by
from vidcurate.curation.report.records import Records
from vidcurate.errors import InputError, printable
from vidcurate.shards.index import read_index
from vidcurate.shards.manifest import read_manifest

SHARDS = "shards"


def run_overview(run: Path) -> dict[str, Any]:
    """Return, as plain values, the stages that have run, the verdicts, the levels and the shards.

    Raises StageError when `run` has no table.
    """
    newest = table.newest_stage(run)
    clips = table.scan(run, newest)
    columns = clips.collect_schema().names()
    found: dict[str, Any] = {
        "run": str(run),
        "stages": [stage for stage in STAGES if table.stage_path(run, stage).exists()],
        "rows": clips.select(pl.len()).collect().item(),
    }
    for column, name in (("probe_status", "by_probe_status"), ("reject_rule", "by_reject_rule")):
        if column in columns:
            counts = clips.group_by(column).len().drop_nulls().sort("len", column, descending=[True, False])
            found[name] = dict(counts.collect().iter_rows())
    if "is_kept" in columns:
        found["rows_kept"] = clips.select(pl.col("is_kept").sum()).collect().item()
    if "level" in columns:
        levels = clips.filter("is_kept").group_by("fold", "level").agg(pl.len().alias("clips"))
        found["levels"] = levels.sort("fold", "level").collect().to_dicts()
    if manifest := read_manifest(run / SHARDS):
        found["shards"] = {
            "folder": str(run / SHARDS),
            "shards": len(manifest["shards"]),
            **manifest["totals"],
        }
    return found


def _place(run: Path, clip_id: str) -> dict[str, Any] | None:
    """Return the clip's position in the run's shards, or None."""
    if not (run / SHARDS / "index.parquet").exists():
        return None
    read_index(run / SHARDS)  # an index that is damaged or does not belong to its shards is an error here
    rows = pl.scan_parquet(run / SHARDS / "index.parquet").filter(pl.col("clip_id") == clip_id).collect()
    if rows.is_empty():
        return None
    place: dict[str, Any] = rows.select("shard", "sample_key", "video_offset", "video_size").row(
        0, named=True
    )
    return place


def clip_fate(run: Path, clip_id: str) -> dict[str, Any]:
    """Return, as plain values, every stage's columns of the clip, its ledger rows and its shard position.

    A column that a later stage overwrites is listed under that stage. Raises InputError with the nearest ids
    for an unknown clip.
    """
    newest = table.newest_stage(run)
    clips = table.scan(run, newest)
    rows = clips.filter(pl.col("clip_id") == clip_id).collect()
    if rows.is_empty():
        ids = clips.select("clip_id").collect()["clip_id"].to_list()
        near = difflib.get_close_matches(clip_id, ids, n=3, cutoff=0.4) or ids[:3]
        raise InputError(f"{run}: no clip {clip_id!r}. Similar ids: {', '.join(near)}.")
    row = rows.row(0, named=True)
    fate: dict[str, Any] = {"clip_id": clip_id, "verdict": _verdict(row)}
    stages = [stage for stage in STAGES if table.stage_path(run, stage).exists()]
    for number, stage in enumerate(stages):
        own = written_by(stage) - {"clip_id"} - set().union(*map(written_by, stages[number + 1 :]))
        facts = {name: row[name] for name in COLUMNS if name in own and row.get(name) is not None}
        if facts:
            fate[stage] = facts
    for kind, reason in (
        rejection_ledger.unwritten(run).filter(clip_id=clip_id).select("rule", "value").rows()
    ):
        fate["verdict"] = f"kept until build-shards, which could not write it: {kind} ({reason})"
    if (run / LEDGER).exists():
        ledger = (
            rejection_ledger.read_ledger(run).filter(pl.col("clip_id") == clip_id).sort("order").collect()
        )
        fate["ledger"] = ledger.select("stage", "rule", "value", "threshold").to_dicts()
    fate["shard"] = _place(run, clip_id)
    return fate


def _verdict(row: dict[str, Any]) -> str:
    if row.get("is_kept") is None:
        return "not filtered yet: run `vidcurate filter`"
    if row["is_kept"]:
        by_eye = f"; {row['review']}" if row.get("review") else ""
        return (f"kept, level {row['level']}, {row['fold']}" if row.get("level") else "kept") + by_eye
    return (
        f"rejected at {row['reject_stage']} by {row['reject_rule']}: "
        f"{row['reject_value']} (asked: {row['reject_threshold']})"
    )


def render(found: dict[str, Any]) -> RenderableType:
    """Return an overview or a fate for a console without markup."""
    parts: list[RenderableType] = []
    plain = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in found.items():
        if not isinstance(value, (dict, list)) or (
            isinstance(value, list) and value and isinstance(value[0], str)
        ):
            text = ", ".join(value) if isinstance(value, list) else str(value)
            plain.add_row(name.replace("_", " "), printable(text))
    parts.append(plain)
    for name, value in found.items():
        if isinstance(value, dict):
            inner = Table(title=name.replace("_", " "), title_justify="left", show_header=False, box=None)
            for key, fact in value.items():
                inner.add_row(f"  {printable(key)}", printable(str(fact)))
            parts.append(inner)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            parts.append(Records(name.replace("_", " "), value))
    return Group(*parts)
