"""A training command as a terminal's foreground job: a session of its own, to which Ctrl-C goes whole.

`with pressed(words, folder, ENDLESS) as job:` starts `python -m WORDS`; `job.wait_for_steps(run, 2)`,
`job.press()` and `job.end()` follow. What it started and left behind is killed when the block is left.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.patched_ranks import ROOT, patched, with_variable
from tests.trainer.shards_for_tests import numbers

LIMIT_SECONDS = 120.0
MARK = "PYTHONMARK"  # names in PYTHON… reach every rank, those over ssh too


def wait_for(is_true: Callable[[], object], said: Callable[[], str]) -> None:
    """Wait until something is true; what was `said` is shown when that takes too long."""
    until = time.monotonic() + LIMIT_SECONDS
    while not is_true():
        assert time.monotonic() < until, said()
        time.sleep(0.005)


def has_steps(run: Path, count: int) -> bool:
    return (run / "metrics.jsonl").exists() and len(numbers(run)) >= count


class Pressed:
    """One job: its processes, and what all of them said."""

    def __init__(self, process: "subprocess.Popen[bytes]", said: Path, mark: str) -> None:
        self.process, self.said, self.mark = process, said, mark

    def text(self) -> str:
        return self.said.read_text()

    def wait_for(self, is_true: Callable[[], object]) -> None:
        wait_for(is_true, self.said.read_text)

    def wait_for_steps(self, run: Path, count: int) -> None:
        """Wait until the log has so many steps; a job that has ended before is a failure."""

        def are_there() -> bool:
            assert self.process.poll() is None, self.text()
            return has_steps(run, count)

        self.wait_for(are_there)

    def processes(self) -> list[int]:
        """Return the processes of the job that live, itself among them."""
        return with_variable(MARK, self.mark)

    def press(self) -> None:
        """Press Ctrl-C: the terminal signals the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def press_twice(self, heard: str) -> None:
        """Press Ctrl-C, and again once the job has said that it heard the first."""
        self.press()
        self.wait_for(lambda: heard in self.text())
        self.press()

    def end(self) -> int:
        """Wait for the end, then for that of every process that the job started; return its exit code."""
        self.wait_for(lambda: self.process.poll() is not None)
        self.wait_for(lambda: not self.processes())
        return self.process.returncode


@contextmanager
def pressed(
    words: Sequence[str], folder: Path, program: str = "", before: Sequence[str] = (), **more: str
) -> Iterator[Pressed]:
    """Start `BEFORE python -m WORDS`, with its files in a new FOLDER; its ranks run `program` first.

    `more` are variables of its environment.
    """
    folder.mkdir()
    mark, said = str(folder), folder / "said"
    environment = patched(folder / "patch", program or "pass", **{MARK: mark})
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", *words],
            cwd=ROOT,
            env=os.environ | more | environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Pressed(process, said, mark)
    finally:
        for pid in with_variable(MARK, mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
