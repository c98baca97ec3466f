"""Node stop: end a run's ranks on this node with TERM, then INT, then KILL.

A rank that gets TERM saves and exits, which takes as long as its disk does; killing it earlier loses the save
(PrimeIntellect-ai/prime-rl#2664). TERM therefore has a long timeout, then follow INT and KILL. A process is
signalled only while its id and start time match the record, through a handle (pidfd) that cannot refer to
another process.
"""

import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.cluster.node import processes as node_processes
from trainer.cluster.node.processes import Process
from trainer.health import gpu as health_gpu
from trainer.run_folder import pointer, process_records

LOOK_SECONDS = 0.1
WORKER_SECONDS = 10.0  # for the children of an exited rank to exit on their own
STARTER_SECONDS = 10.0  # at least, for a launcher whose ranks have exited
SMI_SECONDS = 10.0
AGAIN_SECONDS = 20.0  # the grace of restarted ranks: they have nothing to save
FREEZE_SECONDS = 1.0  # for a starter to stop
MOST_ROUNDS = 3  # a supervisor may restart the ranks before it is ended itself
UNSEEN_BYTES = 1 << 30  # of a GPU's memory, held by no visible process


@dataclass(slots=True, kw_only=True)
class Ending:
    """One process to end, and how it ended: `by` is the last signal's name, or "itself"."""

    process: Process
    what: str
    by: str = "itself"
    seconds: float = 0.0
    problem: str = ""
    begins_again: bool = False  # restarts a rank however it ended
    began: float = field(default_factory=time.monotonic)

    @property
    def is_running(self) -> bool:
        return node_processes.is_running(self.process.key)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.process.to_json(),
            "what": self.what,
            "by": self.by,
            "seconds": round(self.seconds, 2),
            "problem": self.problem,
        }


def limit_seconds(grace_seconds: float, interrupt_seconds: float, kill_seconds: float) -> float:
    """Return the maximum duration of `answers` on a node."""
    strict = interrupt_seconds + kill_seconds
    each_round = 3 * strict + WORKER_SECONDS + STARTER_SECONDS + FREEZE_SECONDS
    again = (MOST_ROUNDS - 1) * min(grace_seconds, AGAIN_SECONDS)
    return grace_seconds + again + MOST_ROUNDS * each_round + 2 * SMI_SECONDS


def send(ending: Ending, number: signal.Signals, *, wakes: bool = True) -> bool:
    """Send a signal to the process, if it still is the same one; False if it is gone.

    `wakes`: a process stopped by SIGSTOP or a debugger is continued, or it would never see the signal.
    """
    try:
        handle = os.pidfd_open(ending.process.pid)
    except OSError:
        return False
    try:
        if not ending.is_running:
            return False
        signal.pidfd_send_signal(handle, number)
        if wakes:
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        ending.by = number.name.removeprefix("SIG")
    except PermissionError:
        ending.problem = f"belongs to {ending.process.user}, who must stop it"
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait(endings: Sequence[Ending], seconds: float) -> list[Ending]:
    """Wait until all have ended, at most `seconds`; return those that still run."""
    until = time.monotonic() + seconds
    running = [ending for ending in endings if ending.seconds == 0.0]
    while running:
        for ending in running:
            if not ending.is_running:
                ending.seconds = max(time.monotonic() - ending.began, 1e-3)
        running = [ending for ending in running if ending.seconds == 0.0]
        if not running or time.monotonic() > until or all(ending.problem for ending in running):
            break
        time.sleep(LOOK_SECONDS)
    return running


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield progress lines, and then the document.

    `request`: run, is_dry_run, grace_seconds, interrupt_seconds, kill_seconds.
    """
    run = Path(request["run"])
    recorded = node_processes.records(run)
    here = [record for record in recorded if node_processes.is_here(record)]
    elsewhere = [
        {"rank": record.rank, "host": record.host}
        for record in recorded
        if not node_processes.is_here(record)
    ]
    before = node_processes.everything()
    ranks = _ranks(here, before, run)
    document: dict[str, Any] = {
        "run": str(run),
        "others": [
            _other(record, before, run) for record in here if record.pid not in {r.process.pid for r in ranks}
        ],
        "elsewhere": elsewhere,
        "newest_before": newest(run),
    }
    if request["is_dry_run"]:
        workers = [Ending(process=each, what=_whose(each, ranks)) for each in _workers(ranks, before)]
        above, pids = _starters(ranks), _pids([*ranks, *workers])
        others = [ending for ending in _below(above) if ending.process.pid not in pids]
        would_end = (*ranks, *workers, *others, *above.values())
        yield document | {"would_end": [ending.to_json() for ending in would_end]}
        return
    held = _gpus_of(ranks, before)
    ended: list[Ending] = []
    grace_seconds = request["grace_seconds"]
    for _ in range(MOST_ROUNDS):
        if not ranks:
            break
        yield {"progress": f"TERM to {_as_text(ranks)}, with {grace_seconds:g} s to save and leave"}
        ended += yield from _end(ranks, request, grace_seconds)
        grace_seconds = min(grace_seconds, AGAIN_SECONDS)
        # A faster supervisor has restarted the ranks, under new records.
        known = {ending.process.key for ending in ended}
        again = [record for record in node_processes.records(run) if node_processes.is_here(record)]
        ranks = [
            rank for rank in _ranks(again, node_processes.everything(), run) if rank.process.key not in known
        ]
    yield document | {
        "ended": [ending.to_json() for ending in ended if not ending.is_running],
        "left": [ending.to_json() for ending in [*ended, *ranks] if ending.is_running],
        "gpus_held": _still_held(held, ended),
        "newest": newest(run),
    }


def newest(run: Path) -> str | None:
    """Return the name of the run's newest checkpoint; None without one, or where LATEST is damaged."""
    found, _ = pointer.read_latest(run)
    return found.name if found else None


def _ranks(
    recorded: Sequence[process_records.ProcessRecord], all_of: dict[int, Process], run: Path
) -> list[Ending]:
    found = []
    for record in recorded:
        process = all_of.get(record.pid)
        is_alive = process is not None and process_records.is_alive(record)
        if process is not None and is_alive and not process_records.why_not_of_run(record, run):
            found.append(Ending(process=process, what=f"rank {record.rank}"))
    return found


def _other(record: process_records.ProcessRecord, all_of: dict[int, Process], run: Path) -> dict[str, Any]:
    """Return why a recorded process is not signalled: gone, its id reused, or no rank of this run."""
    process = all_of.get(record.pid)
    why = (
        process_records.why_not_of_run(record, run)
        if process is not None and process_records.is_alive(record)
        else ""
    )
    is_gone = not why and (process is None or process.start_time == record.start_time)
    return {
        "rank": record.rank,
        "pid": record.pid,
        "is_gone": is_gone,
        "why": why,
        "now": None if is_gone or process is None else process.to_json(),
    }


def _workers(ranks: Sequence[Ending], all_of: dict[int, Process]) -> list[Process]:
    mine = {rank.process.pid for rank in ranks}
    return [process for process in node_processes.below(mine, all_of) if process.state not in "ZX"]


def _whose(process: Process, ranks: Sequence[Ending]) -> str:
    by_pid = {rank.process.pid: rank.what for rank in ranks}
    if "trainer.health.watch.monitor_process" in process.command and process.parent in by_pid:
        return f"watcher of {by_pid[process.parent]}"
    return f"worker of {by_pid[process.parent]}" if process.parent in by_pid else "child of a worker"


def _as_text(endings: Sequence[Ending]) -> str:
    shown = ", ".join(f"{ending.what} (pid {ending.process.pid})" for ending in endings[:8])
    return f"{shown} and {len(endings) - 8} more" if len(endings) > 8 else shown


def _end(
    ranks: list[Ending], request: dict[str, Any], grace_seconds: float
) -> Generator[dict[str, Any], None, list[Ending]]:
    """End the ranks, their children, and what would restart them; return all of them."""
    workers: dict[tuple[int, int], Ending] = {}
    above = _starters(ranks)
    began = time.monotonic()
    running = ranks
    for number, seconds in (
        (signal.SIGTERM, grace_seconds),
        (signal.SIGINT, request["interrupt_seconds"]),
        (signal.SIGKILL, request["kill_seconds"]),
    ):
        if not running:
            break
        if number != signal.SIGTERM:
            yield {"progress": f"{number.name.removeprefix('SIG')} to {_as_text(running)}"}
        for process in _workers(running, node_processes.everything()):
            workers.setdefault(process.key, Ending(process=process, what=_whose(process, running)))
        for ending in running:
            send(ending, number)
        running = wait(running, seconds)
    begun_again: list[Ending] = []
    if not running:
        alone_seconds = _alone_seconds(ranks, above, began + grace_seconds)
        if not alone_seconds:
            known = {ending.process.key for ending in [*ranks, *workers.values(), *above.values()]}
            begun_again = [ending for ending in _frozen(above) if ending.process.key not in known]
            # A starter that TERM woke could restart ranks before it handles the signal.
            killed = [starter for starter in above.values() if starter.begins_again]
            for starter in killed:
                send(starter, signal.SIGKILL)
            wait(killed, request["kill_seconds"])
        _strictly(list(above.values()), request, alone_seconds)
    orphans = [ending for ending in workers.values() if ending.process.parent not in _pids(running)]
    _strictly([*orphans, *begun_again], request, min(WORKER_SECONDS, request["interrupt_seconds"]))
    return [*ranks, *workers.values(), *begun_again, *above.values()]


def _starters(ranks: Sequence[Ending]) -> dict[tuple[int, int], Ending]:
    all_of = node_processes.everything()
    return {
        process.key: Ending(
            process=process,
            what="starter of the ranks",
            begins_again=node_processes.is_torchrun(process.pid),
        )
        for rank in ranks
        for process in node_processes.starters(rank.process.pid, all_of)
    }


def _frozen(above: dict[tuple[int, int], Ending]) -> list[Ending]:
    """Stop the starters (SIGSTOP), so that they start nothing more; return their children.

    A rank that has just been started loads for seconds before it has a record.
    """
    for starter in above.values():
        send(starter, signal.SIGSTOP, wakes=False)
    until = time.monotonic() + FREEZE_SECONDS
    while time.monotonic() < until:
        all_of = node_processes.everything()
        if all(all_of[pid].state in "TtZX" for pid, _ in above if pid in all_of):
            break
        time.sleep(0.01)
    return _below(above)


def _below(above: dict[tuple[int, int], Ending]) -> list[Ending]:
    """Return what the starters have started and still runs."""
    below = node_processes.below(_pids(list(above.values())), node_processes.everything())
    return [
        Ending(process=process, what="started by a starter") for process in below if process.state not in "ZX"
    ]


def _pids(endings: Sequence[Ending]) -> set[int]:
    return {ending.process.pid for ending in endings}


def _alone_seconds(ranks: Sequence[Ending], above: dict[tuple[int, int], Ending], until: float) -> float:
    """Return how long a starter may take to exit on its own.

    A launcher whose ranks have saved and exited waits for those of other hosts, and starts nothing; a signal
    may be its second one, which kills. torchrun takes any exit for a failure and restarts.
    """
    if any(starter.begins_again for starter in above.values()) or any(rank.by != "TERM" for rank in ranks):
        return 0.0
    return max(STARTER_SECONDS, until - time.monotonic())


def _strictly(endings: Sequence[Ending], request: dict[str, Any], alone_seconds: float) -> None:
    """Wait for processes to exit on their own, then TERM, then KILL."""
    running = wait(endings, alone_seconds)
    for number, seconds in (
        (signal.SIGTERM, request["interrupt_seconds"]),
        (signal.SIGKILL, request["kill_seconds"]),
    ):
        for ending in running:
            send(ending, number)
        running = wait(running, seconds)


# ── the GPUs afterwards ─────────────────────────────────────────────────────────────────────────────────────


def _gpus_of(ranks: Sequence[Ending], all_of: dict[int, Process]) -> list[int]:
    """Return the GPUs of the ranks or their workers, as the driver reports them."""
    mine = _pids(ranks) | {process.pid for process in _workers(ranks, all_of)}
    return [
        gpu.index
        for gpu in health_gpu.read_gpus(SMI_SECONDS).gpus
        if any(process.pid in mine for process in gpu.processes)
    ]


def _still_held(indexes: Sequence[int], ended: Sequence[Ending]) -> list[dict[str, Any]]:
    """Return what still uses those GPUs: processes with their owners, and memory of no visible process."""
    if not indexes:
        return []
    mine, all_of = _pids(ended), node_processes.everything()
    found: list[dict[str, Any]] = []
    for gpu in health_gpu.read_gpus(SMI_SECONDS).gpus:
        if gpu.index not in indexes:
            continue
        for process in gpu.processes:
            command = all_of[process.pid].command if process.pid in all_of else process.name
            found.append(
                {"gpu": gpu.index, "pid": process.pid, "user": process.user, "command": command}
                | {"is_of_run": process.pid in mine, "memory_bytes": process.memory_bytes}
            )
        if not gpu.processes and (gpu.memory_used_bytes or 0) > UNSEEN_BYTES:
            found.append(
                {"gpu": gpu.index, "pid": None, "user": None, "command": None}
                | {"is_of_run": False, "memory_bytes": gpu.memory_used_bytes}
            )
    return found
