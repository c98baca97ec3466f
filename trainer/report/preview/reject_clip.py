"""Clip rejection from a training run: a review decision and a leave-out file.

The decision goes to RUN/reviews.jsonl of the training run, and with a curation's folder to its
reviews.jsonl too, so that the next filter leaves the clip out of the shards. `RUN/rejected_clips-N.jsonl`
lists the clips rejected up to line N of the journal, for `data.leave_out` of a stage, with the clips of a
file that the recipe names already. Each change writes a new file: a run that restarts keeps its old one.
"""

import json
import math
import re
import uuid
from pathlib import Path
from typing import Any

from trainer.report.preview.stages import RunStages, at
from trainer.run_folder import clip_losses
from vidcurate.curation.review_decisions.journal import append_decision, read_decisions
from vidcurate.curation.review_decisions.outcome import merge_decisions
from vidcurate.errors import InputError, MissingError
from vidcurate.sampler.leave_out import read_clip_ids
from vidcurate.storage import atomic_file

_REJECTED = re.compile(r"rejected_clips-\d+\.jsonl")


def decide(
    found: RunStages,
    run: Path,
    clip_id: str,
    verdict: str,
    *,
    reviewer: str,
    reason: str | None,
    curation: Path | None = None,
) -> dict[str, Any]:
    """Reject or keep a clip from here on; return the decision's numbers, the file and how to resume with it.

    {clip_id, verdict, decision, curation_decision, file, clips (in the file), settings (for --set), is_new}.
    A keep takes back this reviewer's rejection. The same word of the same reviewer again adds no decision.
    Raises InputError for a clip that no stage has, MissingError, StorageError, TableError.
    """
    if not any(clip_id in stage.index.words("clip_id").to_pylist() for stage in found.stages):
        raise InputError(f"--{verdict} {clip_id}: no stage of {found.recipe.name} has a clip of this name.")
    if curation is not None and not curation.is_dir():
        raise MissingError(
            f"--curation {curation}: no such run folder."
        )  # before the first journal is written
    decision = {
        "clip_id": clip_id,
        "reviewer": reviewer,
        "verdict": verdict,
        "reason": reason,
        "seen": {"rule": None, "scores": {"training_run": run.resolve().name, **_highest(run, clip_id)}},
    }
    number, is_new = _append(run, decision)
    theirs = None if curation is None else _append(curation, decision)[0]
    file, clips = write_rejected(found, run)
    open_stage = at(found, min(found.done + 1, found.num_steps))[0].number
    return {
        "clip_id": clip_id,
        "verdict": verdict,
        "decision": number,
        "curation_decision": theirs,
        "is_new": is_new,
        "file": str(file),
        "clips": clips,
        "settings": [
            f"stages.{stage.number}.data.leave_out={file}"
            for stage in found.stages
            if stage.number >= open_stage
        ],
    }


def _highest(run: Path, clip_id: str) -> dict[str, Any]:
    """Return step, loss and timestep of the clip's highest recorded loss; {} without one."""
    shown = [
        {"step": line["step"], "loss": clip["loss"], "timestep": clip["timestep"]}
        for line in clip_losses.read(run)
        if clip_id in line["clip_ids"]
        for clip in clip_losses.by_clip(line)
        if clip["clip_id"] == clip_id and math.isfinite(clip["loss"])
    ]
    return max(shown, key=lambda one: one["loss"], default={})


def _append(journal: Path, decision: dict[str, Any]) -> tuple[int, bool]:
    """Append the decision unless it is the reviewer's word already; return its number, and if it is new."""
    outcome = merge_decisions(read_decisions(journal)).get(decision["clip_id"])
    for line in outcome.words if outcome else ():
        if (line.reviewer, line.verdict) == (decision["reviewer"], decision["verdict"]):
            return line.number, False
    return append_decision(journal, {"id": uuid.uuid4().hex, **decision}), True


def write_rejected(found: RunStages, run: Path) -> tuple[Path, int]:
    """Write RUN/rejected_clips-N.jsonl from the decisions that stand; return it and its number of clips.

    Clips of other files that the recipe leaves out stay listed, so that one file replaces another.
    """
    decisions = read_decisions(run)
    last = max(line.undone_by or line.number for line in decisions)
    target = run / f"rejected_clips-{last}.jsonl"
    lines = {
        clip_id: {"clip_id": clip_id, "reason": one.text()}
        for clip_id, one in merge_decisions(decisions).items()
        if one.verdict == "reject"
    }
    for path in {stage.stage.data.leave_out for stage in found.stages}:
        if path is not None and not _REJECTED.fullmatch(path.name):
            for clip_id in read_clip_ids(path):
                lines.setdefault(clip_id, {"clip_id": clip_id, "reason": f"listed in {path}"})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for _, line in sorted(lines.items()))
    atomic_file.write_text(target, text)
    return target, len(lines)
