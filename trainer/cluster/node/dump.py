"""Node dump: stacks of a run's ranks and their loader workers on this node, twice."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.cluster.node import processes as node_processes
from trainer.health.watch import end_hung_run, heartbeat, stacks
from trainer.run_folder import process_records

AT_ONCE = 4  # number of ranks whose processes are sampled in parallel


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the one document. `request`: run, apart_seconds, seconds (for one sample of all)."""
    run = Path(request["run"])
    recorded = node_processes.records(run)
    here = [record for record in recorded if node_processes.is_here(record)]
    first = _look(here, request["seconds"], run)
    time.sleep(request["apart_seconds"])
    second = _look(here, request["seconds"], run)
    yield {
        "run": str(run),
        "first": [stack.to_json() for stack in first],
        "second": [stack.to_json() for stack in second],
        "elsewhere": [
            {"rank": record.rank, "host": record.host}
            for record in recorded
            if not node_processes.is_here(record)
        ],
    }


def _look(here: Sequence[process_records.ProcessRecord], seconds: float, run: Path) -> list[stacks.Stack]:
    """Return the stacks of the ranks and all their children; of a dead rank, that it has ended.

    A rank's stack has the step, the phase and the collectives of its heartbeat.
    """
    beats = heartbeat.read_heartbeat(run)
    rounds = -(-len(here) // AT_ONCE) or 1
    with ThreadPoolExecutor(AT_ONCE) as pool:
        looks = [pool.submit(_of_rank, record, seconds / rounds, run) for record in here]
        found = [stack for look in looks for stack in look.result()]
    return [
        replace(stack, step=beats[stack.rank]["step"], phase=beats[stack.rank]["phase"])
        if stack.rank in beats and not stack.is_worker
        else stack
        for stack in end_hung_run.with_collectives(found, beats)
    ]


def _of_rank(record: process_records.ProcessRecord, seconds: float, run: Path) -> tuple[stacks.Stack, ...]:
    none = stacks.Stack(host=record.host, pid=record.pid, how="none", rank=record.rank)
    if not process_records.is_alive(record):  # the kernel may have reused its id for another process
        return (replace(none, state="ended"),)
    if why := process_records.why_not_of_run(record, run):
        return (replace(none, note=f"left alone, {why}"),)
    return stacks.dump(record.pid, seconds, record)
