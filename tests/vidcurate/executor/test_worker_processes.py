"""Worker processes: a clip's time is its own."""

import time
from typing import Any

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
