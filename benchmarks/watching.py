"""Cost of watching a run, for a rank: start, one phase change, CPU of thread and process.

    python benchmarks/watching.py [--seconds 30] [--keep]

The peer of each figure is a step of 0.5 s, of which the whole should be less than a thousandth.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from rows import Row, as_table, cpu, keep, row

from trainer.distributed.mesh import ALONE
from trainer.health.watch import monitor, stop_requests
from trainer.health.watch.spec import WatchSpec
from trainer.run_folder import process_table

STEP_SECONDS = 0.5
STARTS = 30
PHASES_PER_STEP = 4  # data, forward_backward, update, and the next step's begin


def processor_seconds(pid: int) -> float:
    """Return the user and system time of a process, of all its threads."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the memory that is a process's own."""
    pages = (Path("/proc") / str(pid) / "statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long one run is watched")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/watching.json")
    given = parser.parse_args()
    starts = []
    with tempfile.TemporaryDirectory() as folder, stop_requests.listening() as stop:
        run = Path(folder)
        for _ in range(STARTS):
            began = time.perf_counter()
            with monitor.watching(WatchSpec(), run, ALONE, stop):
                starts.append(time.perf_counter() - began)
        with monitor.watching(WatchSpec(), run, ALONE, stop) as watched:
            began = time.perf_counter()
            for step in range(100_000):
                watched.pulse.step(step)
            of_phase = (time.perf_counter() - began) / 100_000
            time.sleep(monitor.MONITOR_START_SECONDS + 3.0)
            (watcher,) = process_table.children(os.getpid())
            before = processor_seconds(os.getpid()), processor_seconds(watcher)
            time.sleep(given.seconds)
            after = processor_seconds(os.getpid()), processor_seconds(watcher)
            memory = resident_mib(watcher)
    tick = 1 / os.sysconf("SC_CLK_TCK")  # less than one is not seen
    shares = [
        100 * max(late - early, tick) / given.seconds for early, late in zip(before, after, strict=True)
    ]
    phases_us = PHASES_PER_STEP * of_phase * 1e6
    rows: list[Row] = [
        row(
            metric,
            value,
            unit,
            peer=peer,
            peer_value=peer_value,
            goal=goal,
            higher_is_better=False,
            hardware=cpu(),
        )
        for metric, value, unit, peer, peer_value, goal in (
            ("start of watching, median", statistics.median(starts) * 1e3, "ms", "goal", 20.0, "< 20"),
            ("phases of a step", phases_us, "us", "a step of 0.5 s", STEP_SECONDS * 1e6, "< 500"),
            ("thread of the rank", shares[0], "% of a core", "a core", 100.0, "< 0.1"),
            ("watcher", shares[1], "% of a core", "a core", 100.0, "< 1"),
            ("watcher's own memory", memory, "MiB", "a decode worker", 45.0, "< 45"),
        )
    ]
    print(as_table(rows))
    if given.keep:
        keep("watching", rows)


if __name__ == "__main__":
    main()
