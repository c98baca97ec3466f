"""Stack dumps of a run's ranks and workers, by py-spy or by SIGUSR2.

py-spy reads another process from outside, even one that holds the GIL or is stopped. Where py-spy is missing,
or may not trace (a container without ptrace, Yama), the process writes its own stacks on SIGUSR2:
`faulthandler` does this in the signal handler, without the GIL. Its file is anonymous and read through
/proc/PID/fd, so a hanging disk does not matter. Both give the same form. Stdlib only.
"""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.health.timed_command import run_command
from trainer.health.watch import flight_recorder
from trainer.health.watch.flight_recorder import Collective
from trainer.run_folder import process_records, process_table
from vidcurate.errors import StateError

STACKS = "stacks"  # in a run's folder
AT_ONCE = 4  # py-spy processes
LOOK_SECONDS = 0.02
# Where a rank waits for the others: it has come to the meeting, the odd one has not.
MEETING, OURS = "/torch/distributed/", "/trainer/distributed/mesh.py"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the function's own name, the file's path, the line that runs."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({short(self.file)}:{self.line})"


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of Python, the innermost frame first. `holds_gil` None: not known."""

    name: str
    frames: tuple[Frame, ...]
    holds_gil: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What was seen of one process. `how`: py-spy, faulthandler, or none with the reason in `note`.

    `rank` is that of the run; a worker has its rank's. `state` is the kernel's word. `step` and `phase` are
    what the rank's heartbeat said, where somebody looked; `collectives` too, of a rank that stands. The first
    thread is the main one.
    """

    host: str
    pid: int
    how: str
    threads: tuple[Thread, ...] = ()
    rank: int | None = None
    is_worker: bool = False
    state: str = ""
    note: str = ""
    step: int | None = None
    phase: str = ""
    collectives: tuple[Collective, ...] = ()

    @property
    def name(self) -> str:
        rank = "process" if self.rank is None else f"rank {self.rank}"
        return f"{self.host} {rank}{f' worker {self.pid}' if self.is_worker or self.rank is None else ''}"

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The main thread's, innermost first."""
        return self.threads[0].frames if self.threads else ()

    @property
    def at(self) -> Frame | None:
        """The innermost frame that is not Python's or a package's own code, else the innermost."""
        ours = [f for f in self.frames if "site-packages" not in f.file and "/lib/python" not in f.file]
        written = [frame for frame in ours if not frame.file.startswith("<")]
        return next(iter(written or ours or self.frames), None)

    @property
    def meets(self) -> bool:
        """Whether the main thread waits for other ranks."""
        if self.frames and self.frames[0].file.endswith(OURS):  # from there it went into torch's C++
            return True
        return any(MEETING in frame.file for frame in self.frames)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; `stack_from_json` is the way back."""
        threads = [
            {
                "name": thread.name,
                "holds_gil": thread.holds_gil,
                "frames": [[frame.function, frame.file, frame.line] for frame in thread.frames],
            }
            for thread in self.threads
        ]
        names = ("host", "pid", "rank", "is_worker", "how", "state", "note", "step", "phase")
        facts = {name: getattr(self, name) for name in names}
        return facts | {"collectives": flight_recorder.to_json(self.collectives), "threads": threads}


def stack_from_json(values: Mapping[str, Any]) -> Stack:
    """Return the stack of `Stack.to_json`. Raises StateError."""
    try:
        threads = tuple(
            Thread(
                thread["name"],
                tuple(Frame(function, file, line) for function, file, line in thread["frames"]),
                thread["holds_gil"],
            )
            for thread in values["threads"]
        )
        reported = flight_recorder.from_json(values["collectives"])
        return Stack(**{**values, "threads": threads, "collectives": reported})
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"not a stack: {error!r}.") from error


def short(file: str) -> str:
    """Return a file's path from its package on: …/site-packages/torch/x.py → torch/x.py."""
    for root in ("/site-packages/", "/dist-packages/"):
        if root in file:
            return file.partition(root)[2]
    parts = file.split("/")
    for package in ("trainer", "vidcurate"):
        if package in parts:
            return "/".join(parts[parts.index(package) :])
    return parts[-1]


# ── both ways of writing, one form ──────────────────────────────────────────────────────────────────────────


def _main_first(threads: Sequence[Thread]) -> tuple[Thread, ...]:
    return tuple(sorted(threads, key=lambda thread: thread.name != "MainThread"))


def parse_py_spy(text: str) -> tuple[Thread, ...]:
    """Return the threads of `py-spy dump --json`. Raises ValueError, KeyError or TypeError for other text."""
    return _main_first(
        [
            Thread(
                thread["thread_name"] or str(thread["thread_id"]),
                tuple(
                    Frame(frame["name"].rpartition(".")[2], frame["filename"], frame["line"])
                    for frame in thread["frames"]
                ),
                bool(thread["owns_gil"]),
            )
            for thread in json.loads(text)
        ]
    )


_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """Return the threads that faulthandler wrote. It lists the newest first, so the last is the main one."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if head := _THREAD.match(line):
            threads.append((head[1], []))
        elif threads and (found := _FRAME.match(line)):
            threads[-1][1].append(Frame(found[3].rpartition(".")[2], found[1], int(found[2])))
    return _main_first(
        [
            Thread("MainThread" if number == len(threads) else name, tuple(frames))
            for number, (name, frames) in enumerate(threads, start=1)
        ]
    )


# ── looking at a process ────────────────────────────────────────────────────────────────────────────────────


def py_spy() -> str | None:
    """Return the py-spy program: that on PATH, or that beside this interpreter; None where there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def _by_py_spy(program: str, pid: int, seconds: float) -> tuple[tuple[Thread, ...], str]:
    """Return the threads, or none and why."""
    # It reads while the process runs on: to stop it would hide what it does, and needs more rights.
    words = [program, "dump", "--pid", str(pid), "--json", "--nonblocking"]
    until = time.monotonic() + seconds
    while True:
        said = run_command(words, max(0.1, until - time.monotonic()))
        with suppress(ValueError, KeyError, TypeError):
            if said.is_good and (threads := parse_py_spy(said.text)):
                return threads, ""
        why = said.problem or "py-spy: its answer holds no threads"
        if said.kind in ("missing", "hung") or time.monotonic() > until or "permission" in why.lower():
            return (), why
        time.sleep(LOOK_SECONDS)  # one that runs is read while it changes: the next look may be a whole one


def _by_signal(pid: int, descriptor: int, seconds: float) -> tuple[tuple[Thread, ...], str]:
    """Have a process write its stacks into the file that it keeps for this; return them, or none and why."""
    if not process_table.catches_usr2(pid):
        return (), "it does not listen for SIGUSR2"
    page = process_table.PROC / str(pid) / "fd" / str(descriptor)
    try:
        with page.open("rb") as file:
            before = file.seek(0, os.SEEK_END)
            os.kill(pid, signal.SIGUSR2)
            until, size = time.monotonic() + seconds, before
            while time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
                grown = file.seek(0, os.SEEK_END)
                if grown == size > before:
                    break
                size = grown
            file.seek(before)
            threads = parse_faulthandler(file.read().decode(errors="replace"))
    except OSError as error:
        return (), f"SIGUSR2: {error.strerror}"
    return threads, "" if threads else f"SIGUSR2: no answer in {seconds:g} s"


def _descriptor(pid: int, record: process_records.ProcessRecord | None) -> int | None:
    """Return which of its files a process writes its stacks to; None: it does not listen, so is not asked."""
    if record is not None and record.pid == pid:
        return record.stack_descriptor
    words = process_table.command_line(pid)
    if process_table.is_loader_worker(pid) and words[-2].isdigit():
        return int(words[-2])
    return None


def _look(
    pid: int, seconds: float, record: process_records.ProcessRecord | None, program: str | None
) -> Stack:
    state = process_table.state(pid)
    seen = Stack(
        host=process_table.host_name(),
        pid=pid,
        how="none",
        rank=record.rank if record else None,
        is_worker=record is not None and record.pid != pid,
        state=state,
    )
    if state == "ended":
        return replace(seen, note="the process has ended")
    threads, why = _by_py_spy(program, pid, seconds * 0.7) if program else ((), "py-spy is not installed")
    if threads:
        return replace(seen, how="py-spy", threads=threads)
    descriptor = _descriptor(pid, record)
    if descriptor is None:
        return replace(seen, note=why)
    if state == "stopped":
        return replace(seen, note=f"{why}; a stopped process answers no signal")
    threads, also = _by_signal(pid, descriptor, seconds * 0.3)
    return replace(
        seen,
        how="faulthandler" if threads else "none",
        threads=threads,
        note="" if threads else f"{why}; {also}",
    )


def dump(
    pid: int, seconds: float = 10.0, record: process_records.ProcessRecord | None = None
) -> tuple[Stack, ...]:
    """Return the stacks of a process of this host and of its Python descendants, within about `seconds`.

    `record` is the rank's (`process_records.read_records`): with a record the stacks carry its rank, and a
    process that py-spy may not read gets SIGUSR2. Raises nothing: a stack that cannot be read has `how` none
    and the reason in `note`.
    """
    program = py_spy()
    below = [child for child in process_table.children(pid) if _is_python(child) and not _is_watcher(child)]
    rounds = -(-(1 + len(below)) // AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        looks = [pool.submit(_look, one, seconds / rounds, record, program) for one in (pid, *below)]
        return tuple(look.result() for look in looks)


def _is_python(pid: int) -> bool:
    return "python" in Path((process_table.command_line(pid) or ("",))[0]).name


def _is_watcher(pid: int) -> bool:
    return any("trainer.health.watch.monitor_process" in word for word in process_table.command_line(pid))
