"""The folder of a run, held by one training at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.distributed import mesh
from trainer.distributed.mesh import World
from vidcurate.errors import InputError


@contextmanager
def locked(run: Path, world: World) -> Iterator[None]:
    """Make the run's folder and hold it: two processes that train into one folder would ruin it."""

    def take() -> int:
        try:
            run.mkdir(parents=True, exist_ok=True)
            handle = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"output {run}: cannot be written ({error.strerror}).") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise InputError(
                f"output {run}: another process is training into it; wait or stop it."
            ) from error
        return handle

    handle = mesh.run_on_first_rank(take, world)
    try:
        yield
    finally:
        if world.is_first:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child between fork and exec has the file open, too
            os.close(handle)
