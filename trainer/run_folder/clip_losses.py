"""Clip losses: RUN/clip_losses.jsonl, loss and timestep of every clip of a step.

A stage with `clip_losses_every` writes a line per recorded step; the lists of a line have one entry per clip,
in the order of the step's micro-batches. `forget_after` cuts the lines of steps that a resumed run repeats.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.run_folder import jsonl, line_forms, metrics
from vidcurate.errors import StorageError
from vidcurate.storage import regular_file

CLIP_LOSSES = "clip_losses.jsonl"
_STEP = re.compile(rb'\{"step": (\d+),')
_DIGITS = 6


def append(
    run: Path,
    step: int,
    stage: str,
    *,
    clip_ids: Sequence[str],
    buckets: Sequence[str],
    levels: Sequence[str],
    losses: Sequence[float],
    timesteps: Sequence[float],
) -> None:
    """Append a step's clips; losses and timesteps with six digits. Raises StorageError."""
    line = {
        "step": step,
        "stage": stage,
        "clip_ids": list(clip_ids),
        "buckets": list(buckets),
        "levels": list(levels),
        "losses": [float(f"{loss:.{_DIGITS}g}") for loss in losses],
        "timesteps": [float(f"{timestep:.{_DIGITS}g}") for timestep in timesteps],
    }
    jsonl.append_line(run / CLIP_LOSSES, line)


def read(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the recorded steps in order; none without the file. A line that a kill cut is skipped.

    Raises StorageError for a damaged line.
    """
    path = run / CLIP_LOSSES
    if not path.exists():
        return
    with regular_file.opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                found = json.loads(line)
                if not line_forms.is_clip_losses(found):
                    raise ValueError("it is no line of clip losses")
                if len({len(found[name]) for name in line_forms.CLIP_LISTS}) != 1:
                    raise ValueError("lists of several lengths")
            except (ValueError, RecursionError) as error:
                raise StorageError(
                    f"{path}: line {number} is damaged ({error}); remove it: sed -i {number}d {path}"
                ) from error
            yield found


def newest_before(run: Path, steps: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return step → the line of `read` of the newest recorded step that is not after it, where there is one.

    `steps` rise. Only those lines are parsed; a damaged one counts as not recorded.
    """
    found: dict[int, dict[str, Any]] = {}
    for step, line in zip(steps, _raw_before(run, steps), strict=True):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(line or b"")
            if line_forms.is_clip_losses(parsed):
                found[step] = {name: parsed[name] for name in ("step", "stage", "clip_ids")}
    return found


def _raw_before(run: Path, steps: Sequence[int]) -> list[bytes | None]:
    path, newest = run / CLIP_LOSSES, None
    found: list[bytes | None] = []
    if path.exists():
        with regular_file.opened(path) as file:
            for line in file:
                known = _STEP.match(line)
                if not line.endswith(b"\n") or known is None:
                    break
                while len(found) < len(steps) and steps[len(found)] < int(known[1]):
                    found.append(newest)
                newest = line
    return found + [newest] * (len(steps) - len(found))


def by_clip(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the clips of a line of `read`: clip_id, bucket, level, loss, timestep, and the timestep's bin.

    A loss that is not finite is inf or nan.
    """
    for clip_id, bucket, level, loss, timestep in zip(
        line["clip_ids"], line["buckets"], line["levels"], line["losses"], line["timesteps"], strict=True
    ):
        yield {
            "clip_id": clip_id,
            "bucket": bucket,
            "level": level,
            "loss": float(loss),
            "timestep": timestep,
            "bin": metrics.timestep_bin(timestep),
        }


def forget_after(run: Path, step: int) -> None:
    """Cut the lines of the steps after `step`, and half a line at the end. Raises StorageError."""
    path = run / CLIP_LOSSES
    if not path.exists():
        return
    end = 0
    try:
        with path.open("rb+") as file:
            for line in file:
                found = _STEP.match(line)
                if not line.endswith(b"\n") or (found and int(found[1]) > step):
                    break
                end += len(line)
            if end < os.fstat(file.fileno()).st_size:
                file.truncate(end)
    except OSError as error:
        raise StorageError(f"{path}: cannot be cut ({error.strerror}).") from error
