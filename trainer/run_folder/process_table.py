"""Process table: read /proc for a process's state, start time, parent, children.

A process id alone does not identify a process, because the kernel reuses it; id, start time and boot id do.
Stdlib only: the monitor process and the tools on other hosts import this.
"""

import pwd
import signal
import socket
from contextlib import suppress
from pathlib import Path

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


def host_name() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """Return the id of this boot of the machine, "" where the system has none."""
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def read_stat(pid: int) -> tuple[str, list[str]]:
    """Return the name in /proc/PID/stat and the fields after it (state, parent, …); none for no process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return "", []
    end = text.rfind(")")  # the name is in parentheses and may hold any character
    return text[text.find("(") + 1 : end], text[end + 1 :].split()


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None where there is none."""
    _, found = read_stat(pid)
    return int(found[19]) if len(found) > 19 else None


def parent(pid: int) -> int:
    """Return the id of a process's parent, 0 where there is none."""
    _, found = read_stat(pid)
    return int(found[1]) if found else 0


def user_name(number: int) -> str:
    """Return the name of a user id; the id itself where it has no name, as in some containers."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def state(pid: int) -> str:
    """Return a process's state: running, sleeping, stopped, waiting for a device, ended."""
    _, found = read_stat(pid)
    return STATES.get(found[0], found[0]) if found else "ended"


def children(pid: int) -> list[int]:
    """Return the ids of all living descendants of `pid`; loader workers are among them."""
    parents: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        _, found = read_stat(int(folder.name))
        if found and found[0] not in "ZX":
            parents.setdefault(int(found[1]), []).append(int(folder.name))
    below, open_ = [], [pid]
    while open_:
        theirs = sorted(parents.get(open_.pop(), []))
        below += theirs
        open_ += theirs
    return sorted(below)


def catches_usr2(pid: int) -> bool:
    """Return whether a process handles SIGUSR2; without a handler the signal would kill it."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False


def command_line(pid: int) -> tuple[str, ...]:
    """Return the arguments that a process was started with; none where they cannot be read."""
    with suppress(OSError):
        text = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        return tuple(text.removesuffix("\0").split("\0")) if text else ()
    return ()


def is_loader_worker(pid: int) -> bool:
    """Return whether a process is a decode worker of a loader."""
    return any("vidcurate.loader.decode.worker_process" in word for word in command_line(pid))
