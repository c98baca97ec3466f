"""An export of the run in a folder, and what its record says."""

import json
from pathlib import Path

from tests import shard_runs
from vidcurate.curation.export import record, stage
from vidcurate.curation.export.clips import ExportSpec

WAN = ExportSpec(model="wan2.1")


def of(out: Path) -> dict[str, str]:
    """Return the digests of all files, without what depends on the folder's own path."""
    ends = (".sh", ".toml", ".jsonl", "simpletuner.json")
    return {name: digest for name, digest in shard_runs.contents(out).items() if not name.endswith(ends)}


def exported(folder: Path, out: str, spec: ExportSpec, names: list[str]) -> stage.ExportSummary:
    return stage.run_export(folder / "run", folder / out, names, spec, videos=folder / "videos")


def written(out: Path) -> dict[str, dict[str, object]]:
    found = json.loads((out / record.RECORD).read_text(encoding="utf-8"))
    return {clip["clip_id"]: clip for clip in found["clips"]}
