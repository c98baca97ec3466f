"""Processes that stand for the ranks of a run: real ones, with real records, that do what a test needs.

They load no torch, so that a test has many of them at once. The records are those of
trainer.run_folder.process_records.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.run_folder import process_records, process_table

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 120.0

# {body} runs after the record is written. A word on the command line chooses how the stacks are given.
RANK = """
import faulthandler, os, signal, subprocess, sys, time
from pathlib import Path
from trainer.run_folder import process_records, process_table

run, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
page = os.memfd_create("stacks")
faulthandler.register(signal.SIGUSR2, file=page)

{body}

record = process_records.record_of_this_process(
    run, rank=rank, local_rank=rank, world_size=world_size, stack_descriptor=page
)
process_records.write_record(run, record)
held = process_records.hold_record(run, rank)
main()
"""

WAITS = "def main():\n    while True:\n        time.sleep(0.05)\n"
SAVES = (
    """
def leave(*_):
    time.sleep(0.3)
    (run / "step-00000007").mkdir()
    (run / "step-00000007" / "manifest.json").touch()
    (run / "LATEST").write_text("step-00000007\\n")
    sys.exit(75)

signal.signal(signal.SIGTERM, leave)
"""
    + WAITS
)
DEAF_TO_TERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + DEAF_TO_TERM
LOOPS = """
def turns_for_ever():
    number = 0
    while True:
        number += 1

main = turns_for_ever
"""
# Its child ignores its end and every polite signal.
LEAVES_A_CHILD = (
    """
CHILD = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
(run / "child").write_text(str(child.pid))
"""
    + WAITS
)


class Ranks:
    """The substitute ranks of one test; the fixture kills the remaining ones at its end."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.started: list[subprocess.Popen[bytes]] = []
        run.mkdir(parents=True, exist_ok=True)

    def start(self, *bodies: str) -> list[int]:
        """Start a rank for each body and wait until each has its record; return the process ids, by rank."""
        for rank, body in enumerate(bodies):
            code = RANK.format(body=body)
            words = [sys.executable, "-c", code, str(self.run), str(rank), str(len(bodies))]
            self.started.append(subprocess.Popen(words, cwd=ROOT))
        until = time.monotonic() + LIMIT_SECONDS
        while len(found := process_records.read_records(self.run)) < len(bodies):
            assert time.monotonic() < until
            assert all(process.poll() is None for process in self.started)
            time.sleep(0.02)
        return [record.pid for record in found]


@contextmanager
def ranks_of(run: Path) -> Iterator[Ranks]:
    made = Ranks(run)
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()
            process.wait()
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((run / "child").read_text()), signal.SIGKILL)


def is_alive(pid: int) -> bool:
    return process_table.state(pid) != "ended"


def all_end(pids: Sequence[int], seconds: float = LIMIT_SECONDS) -> bool:
    """Whether all processes end within the time."""
    until = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_alive, pids))
