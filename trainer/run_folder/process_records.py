"""Process records: one file per rank in RUN/processes, to identify live ranks.

A rank writes its record at its start and removes it at an orderly end. A record holds the process id, the
start time (field 22 of /proc/PID/stat, in clock ticks since boot) and the boot id, so a tool never takes
another process for a rank. A record left after a crash is recognised as dead. Stdlib only: the monitor
process and the tools on other hosts import this.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainer.run_folder import process_table
from vidcurate.errors import StateError, StorageError
from vidcurate.storage import atomic_file, regular_file

PROCESSES = "processes"
_TEXTS = {"host", "boot_id", "user", "run", "start_id"}  # the other facts are numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One rank. `start_time` in clock ticks since the boot `boot_id`; `run`: absolute path of its folder.

    `stack_descriptor`: file descriptor that the rank's SIGUSR2 handler writes stacks to; None: no handler.
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
    """device and inode of the run folder as the rank's host sees it: a copied folder has different ones"""
    run_inode: int = 0
    start_id: str = ""
    """the same on all ranks of one start of the run, another on those of a restart"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"command": list(self.command)}


def from_json(values: dict[str, Any]) -> ProcessRecord:
    """Return the record of a JSON object, without unknown keys. Raises StateError for other types, too."""
    names = {field.name for field in fields(ProcessRecord)}
    known = {name: value for name, value in values.items() if name in names}
    try:
        record = ProcessRecord(**known | {"command": tuple(known["command"])})
    except (KeyError, TypeError) as error:
        raise StateError(f"not a process record: {error}.") from error
    for name in names - {"command", "stack_descriptor"}:
        value = getattr(record, name)
        is_good = value.isprintable() if type(value) is str else type(value) is int and value >= 0
        if not is_good or (type(value) is str) != (name in _TEXTS):
            raise StateError(f"not a process record: {name} is {str(value)[:40]!r}.")
    return record


def is_alive(record: ProcessRecord) -> bool:
    """Return whether the process of a record of this host lives: same boot, id and start time.

    A zombie counts as dead.
    """
    if record.boot_id != process_table.boot_id() or process_table.state(record.pid) == "ended":
        return False
    return process_table.start_time(record.pid) == record.start_time


# ── the records of a run ────────────────────────────────────────────────────────────────────────────────────


def record_path(run: Path, rank: int) -> Path:
    return run / PROCESSES / f"rank-{rank:05d}.json"


def record_of_this_process(
    run: Path,
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    stack_descriptor: int | None = None,
    start_id: str = "",
) -> ProcessRecord:
    """Return the record of the calling process."""
    pid = os.getpid()
    folder = run.stat() if run.is_dir() else None
    return ProcessRecord(
        host=process_table.host_name(),
        pid=pid,
        start_time=process_table.start_time(pid) or 0,
        boot_id=process_table.boot_id(),
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        user=process_table.user_name(os.getuid()),
        run=str(run.absolute()),
        command=process_table.command_line(pid),
        stack_descriptor=stack_descriptor,
        run_device=folder.st_dev if folder else 0,
        run_inode=folder.st_ino if folder else 0,
        start_id=start_id,
    )


def write_record(run: Path, record: ProcessRecord) -> None:
    """Write a rank's record atomically. Raises StorageError."""
    atomic_file.write_text(
        record_path(run, record.rank), json.dumps(record.to_json()) + "\n", is_flushed=False
    )


def read_records(run: Path) -> list[ProcessRecord]:
    """Return the records of a run, sorted by rank; none where no rank was started.

    A rank without a record has ended orderly or never started. Raises StateError for a file that is no
    record, and for a symbolic link, whose target is not this run's.
    """
    found = []
    if (run / PROCESSES).is_symlink():
        raise StateError(f"{run / PROCESSES}: is a link, not a folder of this run; remove it.")
    for file in sorted((run / PROCESSES).glob("rank-*.json")):
        if file.is_symlink():
            raise StateError(f"{file}: is a link, not a process record; remove it.")
        try:
            found.append(from_json(json.loads(regular_file.read_bytes(file))))
        except FileNotFoundError:  # the rank ended meanwhile
            continue
        except (OSError, ValueError, AttributeError, RecursionError, StateError) as error:
            raise StateError(f"{file}: is not a process record; remove it.") from error
    return found


def of_start(run: Path, start_id: str) -> list[ProcessRecord]:
    """Return the records of one start of a run, as `read_records` does."""
    return [record for record in read_records(run) if record.start_id == start_id]


def hold_record(run: Path, rank: int) -> int:
    """Open this process's own record and return the descriptor: the proof that the process wrote it.

    No other process can open a file in this one, so `why_not_of_run` rejects a record that its process does
    not hold open. Raises StorageError.
    """
    try:
        return os.open(record_path(run, rank), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise StorageError(f"{record_path(run, rank)}: cannot be read ({error.strerror}).") from error


def why_not_of_run(record: ProcessRecord, run: Path) -> str:
    """Return why a live process of this host is not a rank of `run`; "" where it is one.

    A record is a file, which may be copied or forged: `cp -r` of a live run, another user's record that names
    root's process or pid 1. So the record must be in the folder that it was written in, belong to root or to
    the user of the process, and the process itself must hold this very file open.
    """
    try:
        folder, file = run.stat(), record_path(run, record.rank).lstat()
        owner = (process_table.PROC / str(record.pid)).stat().st_uid
    except OSError as error:
        return f"its record cannot be checked ({error.strerror})"
    if (record.run_device, record.run_inode) != (folder.st_dev, folder.st_ino):
        return f"its record was written in another folder ({record.run})"
    if file.st_uid not in (0, owner):
        writer, user = process_table.user_name(file.st_uid), process_table.user_name(owner)
        return f"its record was written by {writer}, the process is {user}'s"
    try:
        descriptors = list((process_table.PROC / str(record.pid) / "fd").iterdir())
    except OSError as error:
        user = process_table.user_name(owner)
        return f"its open files cannot be read ({error.strerror}); ask as {user}"
    for descriptor in descriptors:
        with suppress(OSError):  # closed meanwhile
            held = descriptor.stat()
            if (held.st_dev, held.st_ino) == (file.st_dev, file.st_ino):
                return ""
    return "it does not hold its record open, so another process wrote the record"


@contextmanager
def registered(run: Path, record: ProcessRecord) -> Iterator[ProcessRecord]:
    """Keep a rank's record while the block runs; rank 0 first removes those of an earlier, larger world.

    Raises StorageError when the record cannot be written.
    """
    if record.rank == 0:
        for left in (run / PROCESSES).glob("rank-*.json"):
            if left.stem > record_path(run, record.world_size - 1).stem:
                left.unlink(missing_ok=True)
    write_record(run, record)
    held = hold_record(run, record.rank)
    try:
        yield record
    finally:
        os.close(held)
        with suppress(OSError):  # the disk is gone: readers recognise the record as dead by its start time
            record_path(run, record.rank).unlink(missing_ok=True)
