"""Who trains here: one record a rank in RUN/processes, written at its start and removed at an orderly end.

A process id alone says little: it is given away again. A record holds the start time too, in the kernel's
ticks since the machine began (field 22 of /proc/PID/stat), and the id of that beginning, so a tool never
takes a stranger for a rank. What is left after a crash is recognised as dead. Stdlib only: the watcher and
the tools on other hosts read this.
"""

import json
import os
import pwd
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainer.run_folder import whole_file
from vidcurate.errors import StateError, StorageError

PROCESSES = "processes"
PROC = Path("/proc")
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a device",
    "T": "stopped",
    "t": "traced",
    "Z": "ended",
    "X": "ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One rank. `start_time` in clock ticks since `boot_id` began; `run` is the absolute path of its folder.

    `stack_descriptor`: the descriptor of the file that SIGUSR2 has it write its stacks to; None: it has none.
    """

    host: str
    pid: int
    start_time: int
    boot_id: str
    rank: int
    local_rank: int
    world_size: int
    user: str
    run: str
    command: tuple[str, ...]
    stack_descriptor: int | None = None
    run_device: int = 0
    """device and inode of the run's folder as the rank's host sees it: a copied folder has others"""
    run_inode: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"command": list(self.command)}


def from_json(values: dict[str, Any]) -> ProcessRecord:
    """Return the record of a JSON object; what it does not know is left out. Raises StateError."""
    names = {field.name for field in fields(ProcessRecord)}
    known = {name: value for name, value in values.items() if name in names}
    try:
        return ProcessRecord(**known | {"command": tuple(known["command"])})
    except (KeyError, TypeError) as error:
        raise StateError(f"not the record of a process: {error}.") from error


# ── what the kernel says ────────────────────────────────────────────────────────────────────────────────────


def host_name() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """Return the id of this start of the machine, "" where the system does not say."""
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on (state, parent, …); none for a process gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text[text.rfind(")") + 1 :].split()  # the second is a name, and may hold anything


def start_time(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None where there is none."""
    found = _stat(pid)
    return int(found[19]) if len(found) > 19 else None


def parent(pid: int) -> int:
    """Return the id of a process's parent, 0 where there is none."""
    found = _stat(pid)
    return int(found[1]) if found else 0


def user_name(number: int) -> str:
    """Return the name of a user's id, the id itself for one without a name, as in some containers."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def state(pid: int) -> str:
    """Return what the kernel says of a process: running, sleeping, stopped, waiting for a device, ended."""
    found = _stat(pid)
    return STATES.get(found[0], found[0]) if found else "ended"


def children(pid: int) -> list[int]:
    """Return the ids of the processes below `pid`, of all generations; loader workers are among them."""
    parents: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        found = _stat(int(folder.name))
        if found and found[0] not in "ZX":
            parents.setdefault(int(found[1]), []).append(int(folder.name))
    below, open_ = [], [pid]
    while open_:
        theirs = sorted(parents.get(open_.pop(), []))
        below += theirs
        open_ += theirs
    return sorted(below)


def catches_usr2(pid: int) -> bool:
    """Return whether a process has a handler for SIGUSR2; one that has none would die of it."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False


def command_line(pid: int) -> tuple[str, ...]:
    """Return the words a process was started with; none where they cannot be read."""
    with suppress(OSError):
        text = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        return tuple(text.removesuffix("\0").split("\0")) if text else ()
    return ()


def is_loader_worker(pid: int) -> bool:
    """Return whether a process is a decode worker of a loader."""
    return any("vidcurate.loader.decode.worker_process" in word for word in command_line(pid))


def alive(record: ProcessRecord) -> bool:
    """Return whether the process of a record of this host still lives: same machine start, id and start time.

    One that has ended and was not yet waited for is dead.
    """
    if record.boot_id != boot_id() or state(record.pid) == "ended":
        return False
    return start_time(record.pid) == record.start_time


# ── the records of a run ────────────────────────────────────────────────────────────────────────────────────


def path(run: Path, rank: int) -> Path:
    return run / PROCESSES / f"rank-{rank:05d}.json"


def this_process(
    run: Path, *, rank: int, local_rank: int, world_size: int, stack_descriptor: int | None = None
) -> ProcessRecord:
    """Return the record of the process that asks."""
    pid = os.getpid()
    folder = run.stat() if run.is_dir() else None
    return ProcessRecord(
        host=host_name(),
        pid=pid,
        start_time=start_time(pid) or 0,
        boot_id=boot_id(),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        user=user_name(os.getuid()),
        run=str(run.absolute()),
        command=command_line(pid),
        stack_descriptor=stack_descriptor,
        run_device=folder.st_dev if folder else 0,
        run_inode=folder.st_ino if folder else 0,
    )


def write_process(run: Path, record: ProcessRecord) -> None:
    """Write a rank's record, whole or not at all. Raises StorageError."""
    whole_file.write_atomically(path(run, record.rank), json.dumps(record.to_json()) + "\n")


def read_process(run: Path) -> list[ProcessRecord]:
    """Return the records of a run, by rank; none where no rank was started.

    A rank that is not there has ended in order, or never began. Raises StateError for a file that is no
    record, and for a link: what lies behind one is not this run's.
    """
    found = []
    if (run / PROCESSES).is_symlink():
        raise StateError(f"{run / PROCESSES}: is a link, not a folder of this run; remove it.")
    for file in sorted((run / PROCESSES).glob("rank-*.json")):
        if file.is_symlink():
            raise StateError(f"{file}: is a link, not the record of a process; remove it.")
        try:
            found.append(from_json(json.loads(file.read_text(encoding="utf-8"))))
        except FileNotFoundError:  # it ended while we looked
            continue
        except (ValueError, StateError) as error:
            raise StateError(f"{file}: is no record of a process; remove it.") from error
    return found


def hold_record(run: Path, rank: int) -> int:
    """Open this process's own record and return the descriptor: the proof that the process wrote it.

    Nobody else can open a file in this process, so `why_not_of_run` believes no record that the named process
    does not hold open. Raises StorageError.
    """
    try:
        return os.open(path(run, rank), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise StorageError(f"{path(run, rank)}: cannot be read ({error.strerror}).") from error


def why_not_of_run(record: ProcessRecord, run: Path) -> str:
    """Return why a live process of this host must not be touched for `run`; "" where it is a rank of it.

    A record is a file, and files are copied and forged: `cp -r` of a live run, a record by another user that
    names root's process or pid 1. So the record must lie in the folder that it was written in, belong to root
    or to the user of the process, and the process itself must hold this very file open.
    """
    try:
        folder, file = run.stat(), path(run, record.rank).lstat()
        owner = (PROC / str(record.pid)).stat().st_uid
    except OSError as error:
        return f"its record cannot be checked ({error.strerror})"
    if (record.run_device, record.run_inode) != (folder.st_dev, folder.st_ino):
        return f"its record was written in another folder ({record.run})"
    if file.st_uid not in (0, owner):
        return f"its record was written by {user_name(file.st_uid)}, the process is {user_name(owner)}'s"
    try:
        descriptors = list((PROC / str(record.pid) / "fd").iterdir())
    except OSError as error:
        return f"the files that it has open cannot be seen ({error.strerror}); ask as {user_name(owner)}"
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            held = descriptor.stat()
            if (held.st_dev, held.st_ino) == (file.st_dev, file.st_ino):
                return ""
    return "it does not hold its record open, so another process wrote that"


@contextmanager
def registered(run: Path, record: ProcessRecord) -> Iterator[ProcessRecord]:
    """Keep a rank's record for as long as the block runs; rank 0 removes those of a larger world before.

    Raises StorageError when the record cannot be written.
    """
    if record.rank == 0:
        for left in (run / PROCESSES).glob("rank-*.json"):
            if left.stem > path(run, record.world_size - 1).stem:
                left.unlink(missing_ok=True)
    write_process(run, record)
    held = hold_record(run, record.rank)
    try:
        yield record
    finally:
        os.close(held)
        with suppress(OSError):  # a disk that is gone: the record is known as dead by its start time
            path(run, record.rank).unlink(missing_ok=True)
