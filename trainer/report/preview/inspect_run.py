"""Contents of a run or a checkpoint, and the clips of one step.

A checkpoint is verified first (sizes, hashes), so what is printed is what a load would take.
"""

from pathlib import Path
from typing import Any

from trainer.data import open_stage
from trainer.report.preview import stages as preview_stages
from trainer.run_folder import jsonl, metrics, pointer
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint, checksum, parts, retention
from trainer.training.optim import adamw
from vidcurate.errors import InputError

LAST_EVENTS = 5


def describe(path: Path) -> dict[str, Any]:
    """Return what a checkpoint, or the newest one of a run, holds. Raises CheckpointError."""
    path = checkpoint.find(path)
    files = checkpoint.verify(path)["files"]
    state, model, ema = (
        checkpoint.read_state(path),
        parts.read_part_tensors(path / "model"),
        parts.read_part_tensors(path / "ema"),
    )
    apart = adamw.norm(model[name].float() - ema[name].float() for name in model)
    report = {
        "checkpoint": str(path),
        **{name: state[name] for name in ("step", "stage", "stage_step", "seed", "lr", "optimizer_updates")},
        **{name: state[name] for name in ("ema_updates", "clips_hash", "origin", "recipe_digest")},
        "parameters": sum(value.numel() for value in model.values()),
        "checksums": state["checksums"],
        "weight_norm": float(adamw.norm(model.values())),
        "ema_distance": float(apart),
        "data_position": state["loader"],
        "saved_on_ranks": state["world_size"],
        "files": files,
        "stray_files": retention.stray_files(path),
    }
    for part, tensors in (("model", model), ("ema", ema)):
        if checksum.checksum(tensors) != state["checksums"][part]:
            report["checksums"][part] = "not that of the tensors"
    return report


def describe_run(run: Path) -> dict[str, Any]:
    """Return a run's checkpoints and the last lines of its logs. Raises InputError for another folder."""
    lines, events = metrics.read_metrics(run / metrics.METRICS), metrics.read_metrics(run / jsonl.EVENTS)
    rounds = metrics.read_metrics(run / metrics.VALIDATION)
    if not lines and not events:
        raise InputError(f"{run}: is neither a checkpoint nor a run (no {jsonl.EVENTS} in it).")
    newest = pointer.latest(run)
    return {
        "run": str(run),
        "checkpoints": [path.name for path in run_folder_layout.checkpoints(run)],
        "latest": newest.name if newest else None,
        "last_metrics": lines[-1] if lines else None,
        "last_validation": {key: value for key, value in rounds[-1].items() if key != "loss_by_clip"}
        if rounds
        else None,
        "last_events": events[-LAST_EVENTS:],
        "newest": describe(newest) if newest else None,
    }


def clips_of_step(path: Path, step: int) -> list[dict[str, Any]]:
    """Return the clips of update number `step` (from 1, as in metrics.jsonl) in the order they were read.

    Raises InputError for a step that the recipe does not have, and what `read_stages` does.
    """
    stage, number = preview_stages.at(preview_stages.read_stages(path), step)
    return [
        {
            "step": step,
            "stage": stage.stage.name,
            "clip_id": clip.clip_id,
            "cell": clip.cell,
            "level": int(stage.index.level[clip.row]) if clip.row < len(stage.index) else None,
            "caption": clip.caption,
        }
        for clip in open_stage.clips(stage, number)
    ]
