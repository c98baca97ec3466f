"""Outcome of a training, and the exit code of files that go missing during one."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.cli import exit_codes
from trainer.distributed.mesh import World
from trainer.health.watch import progress
from trainer.health.watch.stop_requests import Stop
from trainer.run_folder import jsonl
from trainer.run_folder import layout as run_folder_layout
from vidcurate.errors import (
    DeviceMemoryError,
    MissingError,
    RequestError,
    StorageError,
    VidcurateError,
    counted,
)


@contextmanager
def missing_after_first_step(run: Path) -> Iterator[None]:
    """Raise StorageError (exit code 1, a restart may help) if a run beyond step 0 misses a file.

    A file missing before the first step is a wrong request, exit code 2, which the launcher does not retry.
    """
    try:
        yield
    except MissingError as error:
        step = progress.highest_step(run)
        if step == 0:
            raise
        raise StorageError(
            f"{error} The run {run} has reached step {step}, so this path existed before. Check that the "
            "disk is mounted, and that this command uses the same paths."
        ) from error


@contextmanager
def end_recorded(run: Path, world: World, stop: Stop) -> Iterator[None]:
    """Record an event for an end on an error (`failed`), a refusal (`refused`) or a second Ctrl-C (`stop`).

    The guard, the preflight and the monitor have recorded their own ends already. Rank 0 records; another
    rank records only what it alone can know: its GPU's memory, or an error that is not of the project. A full
    disk may refuse the event, too: then the console alone has the reason. A start that is refused before its
    first event changes nothing in the run: no training has ended.
    """

    def num_bytes() -> int:
        try:
            return (run / jsonl.EVENTS).stat().st_size
        except OSError:
            return 0

    before = num_bytes()

    def record(event: str, **facts: object) -> None:
        if num_bytes() > before:
            with suppress(StorageError):
                jsonl.record_event(run, event, progress.highest_step(run), rank=world.rank, **facts)

    if world.is_first:
        stop.at_once = lambda: record("stop", signal="SIGINT", saved=False)
    try:
        yield
    except VidcurateError as error:
        is_recorded = error.exit_code in (exit_codes.HALT, exit_codes.BAD_NODE, exit_codes.RESTART)
        if (world.is_first or isinstance(error, DeviceMemoryError)) and not is_recorded:
            is_refusal = isinstance(error, RequestError) and not isinstance(error, MissingError)
            record("refused" if is_refusal else "failed", reason=str(error), exit_code=error.exit_code)
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        record("failed", reason=f"{type(error).__name__}: {reason}", exit_code=exit_codes.FAILED)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of `train`. `stopped_by` is a signal's name, or None if every step is done."""

    run: str
    step: int
    num_steps: int
    loss: float | None
    stopped_by: str | None
    was_done: bool
    is_first_rank: bool
    exit_code: int

    def to_json(self) -> dict[str, Any]:
        hidden = ("is_first_rank", "exit_code")
        return {name: value for name, value in asdict(self).items() if name not in hidden}

    def to_text(self) -> str:
        newest = f"{self.run}/{run_folder_layout.folder_name(self.step)}"
        steps = counted(self.num_steps, "step")
        if self.stopped_by:
            if self.stopped_by == "SIGINT":
                return f"interrupted; the same command continues from {newest} of {steps}"
            return f"{self.stopped_by}: saved {newest} of {steps}; the same command resumes"
        if self.was_done:
            return f"{self.run} is done: {self.step} of {steps}, the last is {newest}"
        loss = "without a loss" if self.loss is None else f"loss {self.loss:.6f}"
        return f"done: {counted(self.step, 'step')}, {loss}, {newest}"
