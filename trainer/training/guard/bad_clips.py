"""Bad clips: RUN/bad_clips.jsonl lists those that the guard found.

Later runs read the file (`data.leave_out`); its ids are those of the curation's table.
A rollback skips data steps, so a bad clip comes back in the next epoch. This file names the clip.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.run_folder import jsonl
from vidcurate.errors import StorageError
from vidcurate.storage import atomic_file, regular_file

BAD_CLIPS = "bad_clips.jsonl"
KINDS = ("nonfinite", "spike")


def append(run: Path, step: int, kind: str, reason: str, facts: Mapping[str, Any]) -> None:
    """Append the clips of a finding whose rerun blames the data, each clip once. Raises StorageError."""
    verdict = facts.get("verdict") or {}
    if kind not in KINDS or verdict.get("cause") != "data":
        return
    path = run / BAD_CLIPS
    known = _listed(path)
    for clip_id in dict.fromkeys(facts["clip_ids"]):  # a step may show a clip twice
        if clip_id not in known:
            jsonl.append_line(path, {"clip_id": clip_id, "step": step, "finding": kind, "reason": reason})


def _listed(path: Path) -> set[str | None]:
    """Return the clip ids of the file's lines; end its last line, or drop one that a kill cut.

    Other lines stay as they are: a damaged file must not end the training. Raises StorageError.
    """
    try:
        data = regular_file.read_bytes(path) if path.exists() else b""
        last = data.rpartition(b"\n")[2]
        if last:
            is_cut = _clip_id(last) is None
            atomic_file.write_bytes(path, data[: -len(last)] if is_cut else data + b"\n")
    except OSError as error:
        raise StorageError(f"{path}: cannot be read or written ({error}).") from error
    return {_clip_id(line) for line in data.split(b"\n")}


def _clip_id(line: bytes) -> str | None:
    """Return the clip id of a JSON line, None without one; a line that is no JSON object is a clip id."""
    if not line.startswith(b"{"):
        return line.decode("utf-8", "replace").strip()
    try:
        clip_id = json.loads(line).get("clip_id")
    except (ValueError, RecursionError):
        return None
    return clip_id if isinstance(clip_id, str) else None
