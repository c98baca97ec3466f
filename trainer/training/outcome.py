"""Outcome of a training, and the exit code of files that go missing during one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.health.watch import progress
from trainer.run_folder import layout as run_folder_layout
from vidcurate.errors import MissingError, StorageError


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
        if self.stopped_by:
            return f"{self.stopped_by}: saved {newest} of {self.num_steps} steps; the same command resumes"
        if self.was_done:
            return f"{self.run} is done: {self.step} of {self.num_steps} steps, the last is {newest}"
        loss = "without a loss" if self.loss is None else f"loss {self.loss:.6f}"
        return f"done: {self.step} steps, {loss}, {newest}"
