"""Clip rejection from a training run: a review decision and a leave-out file.

The decision goes to RUN/reviews.jsonl of the training run, and with a curation's folder to its
reviews.jsonl too, so that the next filter leaves the clip out of the shards. `RUN/rejected_clips.jsonl` lists
the rejected clips for `stages.N.data.leave_out`, with the clips of the file that the recipe names already.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.report.preview.stages import RunStages, at
from vidcurate.curation.review_decisions.decision import Decision
from vidcurate.curation.review_decisions.journal import append_decision, parse_decision, read_decisions
from vidcurate.curation.review_decisions.outcome import merge_decisions
from vidcurate.errors import InputError
from vidcurate.sampler.leave_out import read_clip_ids
from vidcurate.storage import atomic_file

REJECTED = "rejected_clips.jsonl"


def rejection(
    run: Path, clip_id: str, reviewer: str, reason: str | None, seen: Mapping[str, Any], number: int
) -> Decision:
    """Return the decision; the same clip, reviewer and reason give the same id while it stands."""
    return parse_decision(
        {
            "id": f"train-{number}",
            "clip_id": clip_id,
            "reviewer": reviewer,
            "verdict": "reject",
            "reason": reason,
            "seen": {"rule": None, "scores": {"training_run": run.resolve().name, **seen}},
        }
    )


def reject(
    found: RunStages,
    run: Path,
    clip_id: str,
    *,
    reviewer: str,
    reason: str | None,
    curation: Path | None = None,
    seen: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Reject a clip from here on, and return the decision's numbers, the file and how to resume with it.

    {clip_id, decision, curation_decision, file, clips (in the file), settings (for --set), is_new}. A clip
    that this reviewer has rejected already adds no decision. Raises InputError for a clip that no stage has,
    MissingError, StorageError, TableError.
    """
    if not any(clip_id in stage.index.words("clip_id").to_pylist() for stage in found.stages):
        raise InputError(f"--reject {clip_id}: no stage of {found.recipe.name} has a clip of this name.")
    number, is_new = _decide(run, run, clip_id, reviewer, reason, seen)
    theirs = None
    if curation is not None:
        theirs, _ = _decide(curation, run, clip_id, reviewer, reason, seen)
    clips = write_rejected(found, run)
    stages = [stage.number for stage in found.stages[_open_stage(found) :]]
    return {
        "clip_id": clip_id,
        "decision": number,
        "curation_decision": theirs,
        "is_new": is_new,
        "file": str(run / REJECTED),
        "clips": clips,
        "settings": [f"stages.{stage}.data.leave_out={run / REJECTED}" for stage in stages],
    }


def _open_stage(found: RunStages) -> int:
    """Return the number of the stage that the run's next step belongs to; the last for a finished run."""
    return at(found, min(found.done + 1, found.num_steps))[0].number


def _decide(
    journal: Path, run: Path, clip_id: str, reviewer: str, reason: str | None, seen: Mapping[str, Any]
) -> tuple[int, bool]:
    decisions = read_decisions(journal)
    outcome = merge_decisions(decisions).get(clip_id)
    for line in outcome.words if outcome else ():
        if line.reviewer == reviewer and line.verdict == "reject":
            return line.number, False
    number = (decisions[-1].number if decisions else 0) + 1
    used = {line.id for line in decisions}
    while f"train-{number}" in used:
        number += 1
    return append_decision(journal, rejection(run, clip_id, reviewer, reason, seen, number)), True


def write_rejected(found: RunStages, run: Path) -> int:
    """Write RUN/rejected_clips.jsonl from the run's decisions that stand; return the number of clips.

    Clips of the files that the recipe leaves out already stay listed, so that one file replaces another.
    """
    lines = {
        clip_id: {"clip_id": clip_id, "reason": one.text()}
        for clip_id, one in merge_decisions(read_decisions(run)).items()
        if one.verdict == "reject"
    }
    for path in {stage.stage.data.leave_out for stage in found.stages} - {None, run / REJECTED}:
        for clip_id in read_clip_ids(path) if path is not None else ():
            lines.setdefault(clip_id, {"clip_id": clip_id, "reason": f"listed in {path}"})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for _, line in sorted(lines.items()))
    atomic_file.write_text(run / REJECTED, text)
    return len(lines)
