"""RUN/LATEST: the file that names a run's newest checkpoint. Imports no torch.

The name alone is believed, and only if the run's folder holds a checkpoint of that name: what else the file
may be (empty, cut, a folder, a link to elsewhere, a pipe) is a fault that each reader reports in one line.
"""

import os
from pathlib import Path

from trainer.run_folder.layout import checkpoints
from vidcurate.errors import CheckpointError
from vidcurate.storage import atomic_file, regular_file

LATEST = "LATEST"
_MOST_BYTES = 4096
_SHOWN_LETTERS = 60


def point(run: Path, name: str) -> None:
    """Make LATEST name this checkpoint. Raises OSError."""
    atomic_file.put(run / LATEST, name + "\n")


def is_there(run: Path) -> bool:
    """Return whether RUN has a LATEST, be it a link to nothing."""
    return os.path.lexists(run / LATEST)


def read_latest(run: Path) -> tuple[Path | None, str]:
    """Return the checkpoint that LATEST names, and what is wrong with LATEST: "" if nothing is.

    None for a run without checkpoints, and for a fault. Without LATEST a single checkpoint is the newest: a
    kill may have come between the first save and LATEST.
    """
    there = checkpoints(run)
    if not is_there(run):
        if len(there) > 1:
            return None, f"{run / LATEST}: is missing, but {there[-1].name} exists."
        return (there[0] if there else None), ""
    try:
        with regular_file.opened(run / LATEST) as file:
            name = file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        return None, f"{run / LATEST}: cannot be read ({error.strerror or error})."
    if run / name in there:
        return run / name, ""
    shown = repr(name[:_SHOWN_LETTERS])
    return None, f"{run / LATEST}: names {shown}, which is not a complete checkpoint of this run."


def latest(run: Path) -> Path | None:
    """Return the checkpoint that LATEST names; None for a run without checkpoints.

    Raises CheckpointError where LATEST names no checkpoint, or is missing while there are several.
    """
    newest, fault = read_latest(run)
    if fault:
        there = checkpoints(run)
        raise CheckpointError(
            f"{fault} Name a checkpoint instead, such as {there[-1]}; the training's next start repairs it."
            if there
            else f"{fault} There is no checkpoint left."
        )
    return newest
