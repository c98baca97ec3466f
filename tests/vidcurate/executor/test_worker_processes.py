"""Worker processes: a clip's time is its own."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from vidcurate.executor.worker_processes import Work, WorkerProcesses


def work(number: int) -> dict[str, Any]:
    time.sleep(0.02)
    return {"number": number}


def late(number: int, loss: str) -> dict[str, Any]:
    return {"number": number, "is_late": True}


def test_a_slow_consumer_costs_no_clip_its_time() -> None:
    chunks = [(number, [number]) for number in range(9)]
    steady = Work(function=work, on_lost=late, time_limit_seconds=1.0)
    with WorkerProcesses(steady, 3) as workers:
        rows = []
        for _, found in workers.run(chunks):
            rows += found
            if len(rows) <= 3:  # each worker has a row in its pipe meanwhile
                time.sleep(1.2)  # as a full disk cache or a slow store would

    assert sorted(rows, key=lambda row: row["number"]) == [{"number": number} for number in range(9)]


def test_a_clip_that_is_late_is_late_however_slow_the_consumer() -> None:
    def hangs(number: int) -> dict[str, Any]:
        time.sleep(60 if number == 1 else 0.02)
        return {"number": number}

    work = Work(function=hangs, on_lost=late, time_limit_seconds=1.0)
    with WorkerProcesses(work, 2) as workers:
        rows = []
        for _, found in workers.run([(number, [number]) for number in range(4)]):
            rows += found
            time.sleep(0.5)

    assert [row["number"] for row in rows if "is_late" in row] == [1]
    assert len(rows) == 4


STOPPED = """
import json, sys, time
from vidcurate.executor.worker_processes import Work, WorkerProcesses
WORK, SIZE = float(sys.argv[1]), int(sys.argv[2])
def works(number):
    time.sleep(0.1 + number * 37 % 10 / 20)  # so that most are in the middle of a clip at any time
    return {"number": number, "padding": "x" * SIZE}
def late(number, loss):
    return {"number": number, "is_late": True}
rows = []
with WorkerProcesses(Work(function=works, on_lost=late, time_limit_seconds=1.0), 8) as workers:
    for _, found in workers.run([(number, [number]) for number in range(48)]):
        rows += found
        print("row", flush=True)
        until = time.monotonic() + WORK
        while time.monotonic() < until:
            pass
print(json.dumps([row["number"] for row in rows if "is_late" in row]), len(rows))
"""


@pytest.mark.parametrize(("stop", "size"), [(os.killpg, 10), (os.kill, 3_000_000)])
def test_a_consumer_that_is_stopped_costs_no_clip_its_time(stop: Any, size: int) -> None:
    """Ctrl-Z stops the workers, too; a debugger or a container's freezer may stop the command alone."""
    command = [sys.executable, "-c", STOPPED, "0.1", str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        for _ in range(2):
            for _ in range(14):
                assert child.stdout.readline() == "row\n"
            stop(child.pid, signal.SIGSTOP)  # most of the time it is in its own work, not in a wait
            time.sleep(1.5)
            stop(child.pid, signal.SIGCONT)
        *_, said = child.stdout.read().splitlines()

    late, rows = said.rsplit(" ", 1)
    assert json.loads(late) == []
    assert int(rows) == 48
