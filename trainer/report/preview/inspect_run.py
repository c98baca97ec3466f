"""`python -m trainer inspect RUN`: what a run or a checkpoint holds; with `--step N`, the clips of a step.

A checkpoint is verified first (sizes, hashes), so what is printed is what a load would take.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands
from trainer.data import open_stage
from trainer.report.preview import stages as preview_stages
from trainer.run_folder import jsonl, metrics
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
    """Return a run's checkpoints and the last lines of its diaries. Raises InputError for another folder."""
    lines, events = metrics.read_metrics(run / metrics.METRICS), metrics.read_metrics(run / jsonl.EVENTS)
    rounds = metrics.read_metrics(run / metrics.VALIDATION)
    if not lines and not events:
        raise InputError(f"{run}: is neither a checkpoint nor a run (no {jsonl.EVENTS} in it).")
    newest = checkpoint.latest(run)
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


def _as_text(report: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in report.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{key}:", *_as_text(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [f"{indent}{key}:", *(f"{indent}  {json.dumps(entry)}" for entry in value)]
        else:
            lines.append(f"{indent}{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = commands.parser(
        "inspect",
        "Say what a run or a checkpoint holds, or which clips a step reads.",
        "  python -m trainer inspect runs/smoke\n"
        "  python -m trainer inspect runs/smoke/step-00000020 --json\n"
        "  python -m trainer inspect runs/smoke --step 7\n",
    )
    commands.add_run(parser)
    parser.add_argument(
        "--step", type=int, metavar="N", help="list the clips of update number N, with captions"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    given = parser.parse_args(arguments)
    return commands.run_short_command(lambda: _run(given))


def _run(given: argparse.Namespace) -> None:
    if not given.path.is_dir():
        raise InputError(f"{given.path}: no such run or checkpoint folder.")
    report: Any
    if given.step is not None:
        report = clips_of_step(given.path, given.step)
        words = [f"{clip['clip_id']}  {clip['cell']}  {clip['caption']}" for clip in report]
    else:
        is_checkpoint = (given.path / "manifest.json").is_file()
        report = describe(given.path) if is_checkpoint else describe_run(given.path)
        words = _as_text(report)
    print(json.dumps(report, indent=1, ensure_ascii=False) if given.json else "\n".join(words))
