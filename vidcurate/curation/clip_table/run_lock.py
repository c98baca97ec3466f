"""Run lock: one command at a time writes the tables of a run folder.

A stage writes several files (table, ledger, funnel) that must belong together, so every stage holds
`RUN/.lock` from its first read to its last write. `curate` holds the lock for all its stages. A part
(`--part`) writes only chunks under `RUN/.STAGE-…`, so parts run at the same time, without the lock.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from vidcurate.errors import StageError, StorageError
from vidcurate.storage import lock

NAME = ".lock"
P = ParamSpec("P")
R = TypeVar("R")

_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())


@contextmanager
def alone(run: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the run while the block runs; inside a block that holds the run already, do nothing.

    A run folder that is not there is made, and removed when it is empty at the end. Without `wait` a run that
    another process holds raises StageError. With `wait`, raises StorageError where the file system cannot
    lock; without, the block then runs unguarded.
    """
    key = run.absolute()
    if key in _held.get():
        yield
        return
    is_new = not run.exists()
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{run}: the run folder cannot be made ({error.strerror}).") from error

    def busy(holder: str) -> StageError:
        return StageError(
            f"{run}: another vidcurate command ({holder}) is writing this run. Wait until that command ends, "
            "then run this one again."
        )

    with ExitStack() as stack:
        try:
            stack.enter_context(
                lock.exclusive(run / NAME, wait=wait, busy=busy, is_removed=True, is_required=wait)
            )
        except OSError as error:
            raise StorageError(
                f"{run}: the file system cannot lock ({error.strerror}); parts of a curation need that. "
                "Run the stages one by one."
            ) from error
        mark = _held.set(_held.get() | {key})
        try:
            yield
        finally:
            _held.reset(mark)
            stack.close()
            if is_new:
                with suppress(OSError):
                    run.rmdir()  # a request that was refused leaves no folder behind; one with files stays


def holding_run(stage: Callable[Concatenate[Path, P], R]) -> Callable[Concatenate[Path, P], R]:
    """Make a stage hold its run (the first argument) while the stage runs, unless it does one part of it."""

    @functools.wraps(stage)
    def held(run: Path, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if getattr(kwargs.get("executor"), "part", None) is not None or not run.is_dir():
            return stage(run, *args, **kwargs)
        with alone(run):
            return stage(run, *args, **kwargs)

    return held
