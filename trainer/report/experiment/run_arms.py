"""Experiment runner: each start is the real training command in a process.

A finished start is skipped, an interrupted one resumes from its checkpoint. The same command therefore
finishes the experiment, with the same numbers.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from trainer.cli import exit_codes
from trainer.health import timed_command
from trainer.health.watch import progress
from trainer.health.watch.stop_requests import STOP_SIGNALS
from trainer.recipe import recipe as recipes
from trainer.report.experiment.arms import Chain, Start
from trainer.run_folder import pointer
from vidcurate.errors import StateError, StorageError, VidcurateError
from vidcurate.storage import atomic_file

Tell = Callable[[str], None]
POLL_SECONDS = 0.2
END_SECONDS = 60.0  # for a training to save when the experiment is stopped


class Stopped(VidcurateError):
    """A signal stopped the experiment; the same command resumes."""

    exit_code = exit_codes.REQUEUE


def is_done(start: Start) -> bool:
    """Return whether a checkpoint has the start's last step. A damaged LATEST is repaired by a start."""
    newest, _ = pointer.read_latest(start.folder)
    return newest is not None and int(newest.name.removeprefix("step-")) >= start.ends


def words(start: Start, file: Path) -> list[str]:
    """Return the command of a start whose recipe is written to `file`."""
    given = ["--ckpt-path", str(start.ckpt_path)] if start.ckpt_path else []
    return [sys.executable, "-m", "trainer", str(file), *given]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let a training save and exit, and kill it after a timeout."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        timed_command.kill(process)


def _run(start: Start, name: str, limit_seconds: float, stop: threading.Event) -> None:
    """Run one start to its end. Raises VidcurateError, with its last line, on failure."""
    if not progress.is_free(start.folder, limit_seconds, stop.is_set) and not stop.is_set():
        raise StateError(
            f"{start.folder}: another process has been training into this folder for "
            f"{limit_seconds:g} s, perhaps one that a killed experiment has left. Stop that process, "
            "or give another --out."
        )
    if stop.is_set() or is_done(start):
        return
    file = start.folder.with_name(f"{start.folder.name}.recipe.json")
    log = start.folder.with_name(f"{start.folder.name}.log")
    atomic_file.write_text(file, json.dumps(recipes.to_json(start.recipe), indent=1) + "\n", is_flushed=False)
    try:
        out = log.open("ab")
    except OSError as error:
        raise StorageError(f"{log}: cannot be written ({error.strerror}).") from error
    with (
        out,
        subprocess.Popen(words(start, file), stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process,
    ):
        until = time.monotonic() + limit_seconds
        while process.poll() is None:
            if stop.wait(POLL_SECONDS) or time.monotonic() > until:
                _end(process)
        if stop.is_set():
            return
    if process.returncode == exit_codes.WRONG_REQUEST and (
        is_done(start) or not progress.is_free(start.folder, 0.0)
    ):
        return _run(start, name, limit_seconds, stop)  # another experiment began this start first
    if process.returncode != exit_codes.DONE or not is_done(start):
        lines = log.read_text("utf-8", "replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing").rstrip(".")
        late = f" (it was ended after {limit_seconds:g} s)" if time.monotonic() > until else ""
        raise VidcurateError(f"{name}: exit code {process.returncode}{late}: {last}. All of it: {log}")


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    def ask(number: int, frame: object) -> None:
        stop.set()

    numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(chains: Sequence[Chain], *, jobs: int, limit_seconds: float, tell: Tell) -> None:
    """Run all chains, `jobs` at a time; a start that exceeds the time limit is ended.

    The first failure stops the rest, after they have saved. Raises VidcurateError; Stopped after a signal.
    """
    stop, failed = threading.Event(), threading.Event()

    def follow(chain: Chain) -> None:
        for number, start in enumerate(chain.starts):
            if stop.is_set() or is_done(start):
                continue
            began = time.monotonic()
            try:
                _run(start, chain.name, limit_seconds, stop)
            except BaseException:
                failed.set()
                stop.set()
                raise
            if not stop.is_set():
                seconds = time.monotonic() - began
                tell(f"{chain.name}: start {number + 1} of {len(chain.starts)} done in {seconds:.1f} s")

    with _signals(stop), ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(follow, chain) for chain in chains]
        left = set(futures)
        while left:  # with a timeout, so that signals are handled
            _, left = wait(left, POLL_SECONDS, FIRST_EXCEPTION)
    for future in futures:
        future.result()
    if stop.is_set():
        raise Stopped("the experiment was stopped; its trainings have saved. The same command resumes.")
