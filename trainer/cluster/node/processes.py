"""Processes of this machine, and which of them belong to a run.

Id and start time (field 22 of /proc/PID/stat, in clock ticks since boot) identify a process; the kernel
reuses an id alone. `trainer.run_folder.process_table` reads /proc, `process_records` has the ranks' records.
"""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.run_folder import process_records, process_table
from vidcurate.errors import InputError

LONGEST_COMMAND = 300
TORCHRUN = re.compile(
    r"(.*/)?torchrun|torch\.distributed\.(run|launch)|(.*/)?torch/distributed/(run|launch)\.py"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as /proc shows it now. `state`: R, S, D …; Z has exited and waits for its parent."""

    pid: int
    start_time: int
    parent: int
    state: str
    user: str
    command: str

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start_time

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def look(pid: int) -> Process | None:
    """Return the process, or None if there is none."""
    name, fields = process_table.read_stat(pid)
    try:
        number = (process_table.PROC / str(pid)).stat().st_uid
    except OSError:
        return None
    if not fields:
        return None
    words = [*process_table.command_line(pid)]
    while words and not words[-1]:  # a program that changed its title may pad it with NULs
        words.pop()
    command = shlex.join(words)
    return Process(
        pid=pid,
        start_time=int(fields[19]),
        parent=int(fields[1]),
        state=fields[0],
        user=process_table.user_name(number),
        command=(command or f"[{name}]")[:LONGEST_COMMAND],
    )


def is_running(key: tuple[int, int]) -> bool:
    """Return whether the process with this id and start time runs; a zombie does not."""
    now = look(key[0])
    return now is not None and now.start_time == key[1] and now.state not in "ZX"


def everything() -> dict[int, Process]:
    """Return every visible process of this machine."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return {pid: process for pid in pids if (process := look(pid)) is not None}


def below(pids: Iterable[int], all_of: dict[int, Process]) -> list[Process]:
    """Return the children of `pids`, theirs, and so on; the nearest first."""
    children: dict[int, list[int]] = {}
    for process in all_of.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: dict[int, Process] = {}
    waiting, known = list(pids), set(pids)
    while waiting:
        for child in children.get(waiting.pop(0), []):
            if child not in known:
                known.add(child)
                waiting.append(child)
                found[child] = all_of[child]
    return list(found.values())


def program_of(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the program of a command line (of a Python: its script or module) and its arguments."""
    at = 0
    if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
            at += 2 if words[at] in ("-X", "-W") else 1
        at += at < len(words) and words[at] == "-m"
    return (words[at], words[at + 1 :]) if at < len(words) else ("", [])


def is_torchrun(pid: int) -> bool:
    """Return whether a process runs torchrun, which restarts ranks however they ended."""
    return TORCHRUN.fullmatch(program_of(process_table.command_line(pid))[0]) is not None


def _is_starter(pid: int) -> bool:
    program, arguments = program_of(process_table.command_line(pid))
    if program != "trainer":
        return program == "trainer.cluster.launch.agent" or is_torchrun(pid)
    return "launch" in arguments[:1] or any(word.startswith("--hostfile") for word in arguments)


def starters(pid: int, all_of: dict[int, Process]) -> list[Process]:
    """Return the programs above a rank that would restart it: torchrun, a launcher.

    A terminal, a shell or a session whose name or arguments say so is none.
    """
    found = []
    while (process := all_of.get(pid)) is not None and process.parent > 1:
        pid = process.parent
        if pid in all_of and _is_starter(pid):
            found.append(all_of[pid])
    return found


# ── a run's records ─────────────────────────────────────────────────────────────────────────────────────────


def records(run: Path) -> list[process_records.ProcessRecord]:
    """Return the records of a run's ranks, by rank. Raises InputError, StateError for an invalid record."""
    if not run.is_dir():
        raise InputError(f"{run}: no such folder on this node; a run's folder is seen by all its nodes.")
    return process_records.read_records(run)


def is_here(record: process_records.ProcessRecord) -> bool:
    """Return whether the record is of this host, compared without the domain."""
    return record.host.partition(".")[0] == process_table.host_name().partition(".")[0]


# ── a run without its records ───────────────────────────────────────────────────────────────────────────────

TRAINING = re.compile(r"python[\d.]* (?:-\S+ )*?-m trainer (?P<words>.*)")
LOG = re.compile(r"(?P<run>.*)/logs/rank-(?P<rank>\d+)\.log")


def named_run(process: Process) -> tuple[str, int | None] | None:
    """Return the run and rank of a process, from its log or its command line; None for others.

    The run is the output folder if visible, otherwise the recipe.
    """
    match = TRAINING.search(process.command)
    if match is None:
        return None
    with suppress(OSError):  # another user's files are not readable
        if log := LOG.fullmatch(os.readlink(f"/proc/{process.pid}/fd/2")):
            return log["run"], int(log["rank"])
    words = match["words"].split()
    recipes = [word for word in words if word.endswith((".yaml", ".yml", ".json"))]
    if not recipes or not (words[0].startswith("-") or words[0] == recipes[0]):
        return None  # another command: launch, serve, this one
    outputs = [word.removeprefix("output=").strip("'\"") for word in words if word.startswith("output=")]
    return [*outputs[-1:], *recipes][0], None


def trainings(
    all_of: dict[int, Process], recorded: Sequence[process_records.ProcessRecord]
) -> dict[int, dict[str, Any]]:
    """Return the training processes of this machine by id: run, rank and, for a child, `worker_of`.

    Recorded ranks come first; the others are recognised by their command lines.
    """
    found: dict[int, dict[str, Any]] = {}
    for record in recorded:
        process = all_of.get(record.pid)
        if process is not None and is_here(record) and process_records.is_alive(record):
            found[record.pid] = {"run": record.run, "rank": record.rank, "worker_of": None}
    parents = {process.parent for process in all_of.values() if named_run(process) is not None}
    for pid, process in all_of.items():
        # A launcher has the same arguments as its ranks, which are its children.
        if pid in found or (named := named_run(process)) is None or (pid in parents and named[1] is None):
            continue
        found[pid] = {"run": named[0], "rank": named[1], "worker_of": None}
    for pid in list(found):
        for child in below([pid], all_of):
            found.setdefault(child.pid, {**found[pid], "worker_of": pid})
    return found
