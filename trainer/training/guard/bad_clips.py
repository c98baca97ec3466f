"""Bad clips: RUN/bad_clips.jsonl lists those that the guard found.

Later runs (`data.leave_out`) and curation read the file.
A rollback skips data steps, so a bad clip comes back in the next epoch. This file names the clip.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.run_folder import jsonl, metrics

BAD_CLIPS = "bad_clips.jsonl"
KINDS = ("nonfinite", "spike")


def append(run: Path, step: int, kind: str, reason: str, facts: Mapping[str, Any]) -> None:
    """Append the clips of a finding whose rerun blames the data, each clip once. Raises StorageError."""
    verdict = facts.get("verdict") or {}
    if kind not in KINDS or verdict.get("cause") != "data":
        return
    path = run / BAD_CLIPS
    known = {line.get("clip_id") for line in metrics.read_metrics(path)} if path.exists() else set()
    for clip_id in facts["clip_ids"]:
        if clip_id not in known:
            jsonl.append_line(path, {"clip_id": clip_id, "step": step, "finding": kind, "reason": reason})
