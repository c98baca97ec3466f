"""Names in a run folder: checkpoints and rank logs. Imports no torch."""

import json
import os
import re
from pathlib import Path
from typing import Any

from vidcurate.errors import InputError, StorageError
from vidcurate.storage import regular_file

RECIPE = "recipe.json"
MANIFEST = "manifest.json"
_NAME = re.compile(r"^step-(\d{8,})$")


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step in a checkpoint folder's name."""
    match = _NAME.match(path.name)
    assert match, path
    return int(match[1])


def checkpoints(run: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first; ignore all other files."""
    found = []
    for path in run.iterdir() if run.is_dir() else ():
        match = _NAME.match(path.name)
        if match and (path / MANIFEST).is_file():
            found.append((int(match[1]), path))
    return [path for _, path in sorted(found)]


def read_recipe(run: Path) -> dict[str, Any]:
    """Return the recipe that a run's folder keeps, as JSON; empty without one.

    Raises StorageError for a damaged file.
    """
    path = run / RECIPE
    try:
        found = json.loads(regular_file.read_bytes(path))
        if not all(isinstance(one, dict) for one in (found, *found.get("stages", ()))):
            raise ValueError("it is no recipe")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise StorageError(
            f"{path}: cannot be read ({error}). The run writes it anew at its next start."
        ) from error
    return dict(found)


LOGS = "logs"


def log_path(run: Path, rank: int) -> Path:
    return run / LOGS / f"rank-{rank:05d}.log"


def check_output(run: Path) -> None:
    """Raise InputError, as the run would, if its folder cannot be made or written into."""
    place = next(path for path in (run.absolute(), *run.absolute().parents) if os.path.exists(path))
    if not place.is_dir():
        raise InputError(f"output {run}: cannot be written ({place} is a file).")
    is_read_only = os.statvfs(place).f_flag & os.ST_RDONLY  # the node's fault, which preflight names
    if not is_read_only and not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        raise InputError(f"output {run}: cannot be written (no permission in {place}).")
