"""Newest whole checkpoint of a run; damaged newer ones are set aside.

A checkpoint is whole if every file has the size and SHA-256 of its manifest. One damaged byte in the newest
checkpoint must not end an unattended run, so a start falls back to the one before. The damaged folder becomes
RUN/damaged-step-…, a name that no reader takes for a checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint
from vidcurate.errors import CheckpointError, CheckpointFormatError, StorageError
from vidcurate.storage import atomic_file

ASIDE = "damaged-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A damaged checkpoint: where it was, what is wrong, and its new folder once it has been set aside."""

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


def _newest_first(run: Path) -> list[Path]:
    newest = checkpoint.latest(run)
    there = run_folder_layout.checkpoints(run) if newest else []
    return there[there.index(newest) :: -1] if newest in there else []


def resume_point(run: Path, world: World) -> tuple[Path | None, tuple[Damaged, ...]]:
    """Return the newest whole checkpoint, None for a run without any, and the damaged ones set aside.

    A collective. LATEST names the returned checkpoint afterwards. Without a whole checkpoint the folder stays
    as it was: raises CheckpointError for the newest one. Raises StorageError where the disk refuses.
    """
    whole, damaged = first_whole(
        mesh.run_on_first_rank(lambda: _newest_first(run), world),
        lambda path: checkpoint.verify(path, world=world),
    )
    if not damaged:
        return whole, ()
    if whole is None:
        more = f" None of the {len(damaged)} checkpoints of this run is whole." if len(damaged) > 1 else ""
        raise CheckpointError(f"{damaged[0].reason}{more}")
    return whole, mesh.run_on_first_rank(lambda: _set_aside(run, whole, damaged), world)


def likely_resume_point(run: Path) -> tuple[Path | None, tuple[Damaged, ...]]:
    """Return what `resume_point` would, by sizes instead of hashes; change nothing. For the dry run."""

    def check(path: Path) -> None:
        checkpoint.check_sizes(path, checkpoint.PARTS)
        checkpoint.read_state(path)

    whole, damaged = first_whole(_newest_first(run), check)
    if damaged and whole is None:
        raise CheckpointError(damaged[0].reason)
    return whole, damaged


def _set_aside(run: Path, whole: Path, damaged: Sequence[Damaged]) -> tuple[Damaged, ...]:
    """Point LATEST to the whole checkpoint, then rename the damaged ones."""
    moved = []
    try:
        checkpoint.point(run, whole.name)
        for one in damaged:
            kept_as = run / f"{ASIDE}{one.path.name}"
            number = 2
            while kept_as.exists():
                kept_as, number = run / f"{ASIDE}{one.path.name}-{number}", number + 1
            one.path.rename(kept_as)
            moved.append(Damaged(path=one.path, reason=one.reason, kept_as=kept_as))
        atomic_file.fsync_folder(run)
    except OSError as error:
        raise StorageError(f"{run}: a damaged checkpoint cannot be renamed ({error}).") from error
    return tuple(moved)
