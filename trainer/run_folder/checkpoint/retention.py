"""Checkpoint retention: which checkpoints are kept and which are deleted."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from trainer.run_folder.checkpoint.checkpoint import _json_file
from trainer.run_folder.layout import checkpoints, step_of
from trainer.run_folder.pointer import latest
from vidcurate.errors import StorageError


def clean_partial(run: Path) -> None:
    """Remove the partial folders of killed saves; no reader opens them."""
    for pattern in (".step-*.partial", ".step-*.replaced"):
        for path in run.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def keep_checkpoints(run: Path, last: int, every: int | None = None, before: int | None = None) -> list[str]:
    """Delete checkpoints except the newest `last` and those at multiples of `every`; return their names.

    Always keeps the checkpoint that LATEST names, and the newest at step `before` or earlier. Raises
    StorageError.
    """
    newest, there = latest(run), checkpoints(run)
    old = [path for path in there if before is not None and step_of(path) <= before][-1:]
    gone = [
        path
        for path in there[: -max(1, last)]
        if path not in (newest, *old) and not (every and step_of(path) % every == 0)
    ]
    try:
        delete_checkpoints(gone)
    except OSError as error:
        raise StorageError(f"{run}: an old checkpoint cannot be deleted ({error}).") from error
    return [path.name for path in gone]


def delete_checkpoints(paths: Sequence[Path]) -> None:
    """Delete checkpoints, the manifest first, so that a kill leaves a folder that no reader opens."""
    for path in paths:
        (path / "manifest.json").unlink()
        shutil.rmtree(path)


def stray_files(path: Path) -> list[str]:
    """Return the files in and beside a checkpoint that look like part of one but are not.

    In it: files that the manifest does not list. Beside it: step folders and files that are no checkpoint.
    """
    named = {"manifest.json", *_json_file(path / "manifest.json").get("files", {})}
    inside = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    found = [f"{path.name}/{name}" for name in inside if name not in named]
    whole = checkpoints(path.parent)
    beside = [other.name for other in path.parent.glob("*step*") if other not in whole]
    return sorted(found + [name for name in beside if not name.startswith(".")])
