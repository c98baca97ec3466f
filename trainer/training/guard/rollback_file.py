"""RUN/guard.json: the rollbacks of a run, written so that a kill cannot lose one.

A rollback is decided once this file lists it. Its changes to the run's folder (`finish_rollback`) can be
repeated at any time: every start does so first, so a rollback killed halfway is completed.
"""

import json
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import checkpoint, retention
from trainer.training.guard.history import Rollback
from vidcurate.errors import CheckpointError, StorageError
from vidcurate.storage import atomic_file, json_shape, regular_file

GUARD = "guard.json"
SAMPLES = "samples"
_SAMPLED = re.compile(r"^step-(\d+)$")


@dataclass
class _Kept:
    """What the file holds."""

    rollbacks: tuple[Rollback, ...]


def read_rollbacks(run: Path) -> tuple[Rollback, ...]:
    """Return the rollbacks of a run, oldest first. Raises CheckpointError for a damaged file."""
    path = run / GUARD
    if not path.exists():
        return ()
    try:
        return json_shape.parse(regular_file.read_bytes(path), _Kept).rollbacks
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}). Restore the file, or choose a new output."
        ) from error


def write_rollbacks(run: Path, rollbacks: tuple[Rollback, ...]) -> None:
    """Replace the file atomically. Raises StorageError."""
    text = json.dumps({"rollbacks": [asdict(back) for back in rollbacks]}, indent=1) + "\n"
    atomic_file.write_text(run / GUARD, text)


def in_force(run: Path, saved: tuple[Rollback, ...]) -> tuple[Rollback, ...]:
    """Return the rollbacks of a run that resumes from a checkpoint with the rollbacks `saved`."""
    return max(read_rollbacks(run), saved, key=len)


def _known(saved: dict[str, Any]) -> int:
    guard = saved.get("guard") or {}
    return len(guard.get("rollbacks", ()))


def finish_rollback(run: Path) -> list[str]:
    """Delete what the last rollback discarded; return the deleted checkpoints.

    LATEST then names the rollback's checkpoint, or one saved since. Raises StorageError.
    """
    rollbacks = read_rollbacks(run)
    newest = pointer.latest(run) if rollbacks else None
    if newest is None or _known(checkpoint.read_state(newest)) >= len(rollbacks):
        return []
    to_step = rollbacks[-1].to_step
    gone = [
        path
        for path in run_folder_layout.checkpoints(run)
        if run_folder_layout.step_of(path) > to_step and _known(checkpoint.read_state(path)) < len(rollbacks)
    ]
    try:
        for folder in (run / SAMPLES).glob("step-*"):
            match = _SAMPLED.match(folder.name)
            if match and int(match[1]) > to_step:
                with suppress(FileNotFoundError):  # a sample server may be replacing it
                    shutil.rmtree(folder)
        if run_folder_layout.step_of(newest) > to_step:
            pointer.point(run, run_folder_layout.folder_name(to_step))
        retention.delete_checkpoints(gone)
    except OSError as error:
        raise StorageError(f"{run}: the rollback to step {to_step} cannot be finished ({error}).") from error
    return [path.name for path in gone]
