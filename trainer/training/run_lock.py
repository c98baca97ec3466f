"""Run lock: one training at a time per run folder."""

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
    """Create the run's folder and lock it: a second training would corrupt its files."""

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
                f"output {run}: another process is training into this folder. Wait for it, or stop it."
            ) from error
        return handle

    handle = mesh.run_on_first_rank(take, world)
    try:
        yield
    finally:
        if world.is_first:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child between fork and exec has the file open, too
            os.close(handle)
