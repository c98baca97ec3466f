"""Newest whole checkpoint of a run; what is damaged in it is set aside.

A checkpoint is whole if every file has the size and SHA-256 of its manifest. One damaged byte in the newest
checkpoint must not end an unattended run, so a start falls back to the one before. The damaged folder becomes
RUN/damaged-step-…, a name that no reader takes for a checkpoint. Where LATEST is damaged, the checkpoint of
the highest step is the newest.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import checkpoint
from vidcurate.errors import CheckpointError, CheckpointFormatError, StorageError
from vidcurate.storage import atomic_file

ASIDE = "damaged-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A damaged checkpoint or LATEST: where it was, what is wrong, its new name once it has been set aside.

    A LATEST that is missing has no new name.
    """

    path: Path
    reason: str
    kept_as: Path | None = None


def first_whole(
    paths: Sequence[Path], check: Callable[[Path], object]
) -> tuple[Path | None, tuple[Damaged, ...]]:
    """Return the first checkpoint of `paths` that passes `check`, and the damaged ones before it.

    A collective if `check` is one. Raises CheckpointFormatError for a checkpoint of another version, which is
    not damaged.
    """
    damaged: list[Damaged] = []
    for path in paths:
        try:
            check(path)
        except CheckpointFormatError:
            raise
        except CheckpointError as error:
            damaged.append(Damaged(path=path, reason=str(error)))
            continue
        return path, tuple(damaged)
    return None, tuple(damaged)


def _newest_first(run: Path) -> tuple[list[Path], tuple[Damaged, ...]]:
    """Return the checkpoints to resume from, the newest first, and LATEST if it is damaged.

    Raises CheckpointError for a damaged LATEST of a run without checkpoints.
    """
    newest, fault = pointer.read_latest(run)
    there = run_folder_layout.checkpoints(run)
    if fault and not there:
        raise CheckpointError(f"{fault} There is no checkpoint left.")
    if fault:
        return there[::-1], (Damaged(path=run / pointer.LATEST, reason=fault),)
    return (there[there.index(newest) :: -1] if newest in there else []), ()


def resume_point(run: Path, world: World) -> tuple[Path | None, tuple[Damaged, ...]]:
    """Return the newest whole checkpoint, None for a run without any, and the damaged ones set aside.

    A collective. LATEST names the returned checkpoint afterwards. Without a whole checkpoint the folder stays
    as it was: raises CheckpointError for the newest one. Raises StorageError where the disk refuses.
    """
    there, damaged_latest = mesh.run_on_first_rank(lambda: _newest_first(run), world)
    whole, damaged = first_whole(there, lambda path: checkpoint.verify(path, world=world))
    if damaged and whole is None:
        more = f" None of the {len(damaged)} checkpoints of this run is whole." if len(damaged) > 1 else ""
        raise CheckpointError(f"{damaged[0].reason}{more}")
    if whole is None or not (damaged or damaged_latest):
        return whole, ()
    return whole, mesh.run_on_first_rank(lambda: _set_aside(run, whole, damaged_latest, damaged), world)


def likely_resume_point(run: Path) -> tuple[Path | None, tuple[Damaged, ...]]:
    """Return what `resume_point` would, by sizes instead of hashes; change nothing. For the dry run."""

    def check(path: Path) -> None:
        checkpoint.check_sizes(path, checkpoint.PARTS)
        checkpoint.read_state(path)

    there, damaged_latest = _newest_first(run)
    whole, damaged = first_whole(there, check)
    if damaged and whole is None:
        raise CheckpointError(damaged[0].reason)
    return whole, (*damaged_latest, *damaged)


def _set_aside(
    run: Path, whole: Path, latest: Sequence[Damaged], checkpoints: Sequence[Damaged]
) -> tuple[Damaged, ...]:
    """Rename a damaged LATEST, point a new one to the whole checkpoint, then rename the damaged checkpoints.

    After a kill in between, the next start does the rest.
    """
    try:
        moved = [replace(one, kept_as=_rename(one.path)) for one in latest]
        pointer.point(run, whole.name)
        moved += [replace(one, kept_as=_rename(one.path)) for one in checkpoints]
        atomic_file.fsync_folder(run)
    except OSError as error:
        raise StorageError(f"{run}: what is damaged in it cannot be renamed ({error}).") from error
    return tuple(moved)


def _rename(path: Path) -> Path | None:
    """Rename a damaged file or folder, and return its new path; None if there is none."""
    if not os.path.lexists(path):
        return None
    kept_as, number = path.with_name(f"{ASIDE}{path.name}"), 2
    while os.path.lexists(kept_as):
        kept_as, number = path.with_name(f"{ASIDE}{path.name}-{number}"), number + 1
    path.rename(kept_as)
    return kept_as
