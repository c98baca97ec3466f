"""Heartbeat of a decode worker: its phase, since when, and its stack.

One anonymous file per worker. Its first bytes hold the phase (`beat`); faulthandler writes the stack behind
them, when the worker crashes or receives SIGUSR2. The C signal handler writes the stack without the GIL, so
a worker that hangs inside a C library reports too. Unlike py-spy and gdb, this needs no right to trace a
process. A process that waits for a disk or a network and takes no signals (state D) writes no stack: for that
one, only the phase, the state and the kernel function are known.
"""

import faulthandler
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from vidcurate.executor.shared_memory import anonymous_file

_BEAT_BYTES = 1024
_MOST_STACK_BYTES = 16384
_MOST_NAME = 200  # characters of a clip's id
_LOOK_SECONDS = 0.01
_MOST_LOOKS = 100
STOPPED = "stopped"
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": STOPPED, "t": "traced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """State of a worker: `phase` (start, idle, read or decode) and seconds in that phase.

    `state`: running, sleeping, stopped, ended, unknown …, and the kernel function in which the worker waits,
    where /proc shows one. `stack`: faulthandler's output, innermost frame first.
    """

    phase: str
    seconds: float
    state: str
    stack: str

    @property
    def innermost(self) -> str:
        """The innermost frame of the stack, in one line."""
        frames = [line.strip() for line in self.stack.splitlines() if line.lstrip().startswith("File ")]
        return frames[0] if frames else f"its stack: {self.stack.splitlines()[0]}"

    def as_event(self) -> dict[str, object]:
        return {
            "phase": self.phase,
            "seconds_in_phase": round(self.seconds, 3),
            "state": self.state,
            "stack": self.stack,
        }


# ── the parent's side ───────────────────────────────────────────────────────────────────────────────────────


def new_page() -> int:
    """Return the descriptor of a new heartbeat file, for one worker to inherit."""
    page = anonymous_file(_BEAT_BYTES)
    os.lseek(page, _BEAT_BYTES, os.SEEK_SET)  # the worker shares this offset and writes its stack here
    return page


def _state(process_id: int) -> str:
    try:
        letter = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
        waits_in = Path(f"/proc/{process_id}/wchan").read_text().strip("0\n")
    except (OSError, IndexError):
        return "ended" if os.path.isdir("/proc/self") else "unknown"
    state = _STATES.get(letter, letter)
    return f"{state} in {waits_in}" if waits_in and state != STOPPED else state


def _stack(page: int) -> str:
    return os.pread(page, _MOST_STACK_BYTES, _BEAT_BYTES).decode(errors="replace").strip()


def read_heartbeat(page: int, process_id: int, *, ask: bool) -> WorkerState:
    """Return a worker's state. `ask` requests its stack: the worker stays alive, a stopped one continues.

    A crashed worker has already written its stack; a killed worker has none.
    """
    now, state = time.monotonic(), _state(process_id)
    try:
        phase, since = json.loads(os.pread(page, _BEAT_BYTES, 0).split(b"\0")[0])[:2]
    except ValueError:
        phase, since = "start", now
    stack = _stack(page)
    if ask and state != "ended":
        os.kill(process_id, signal.SIGUSR2)
        os.kill(process_id, signal.SIGCONT)
        for _ in range(_MOST_LOOKS):  # a count, not a timeout: a suspended machine would exceed any timeout
            time.sleep(_LOOK_SECONDS)
            before, stack = stack, _stack(page)
            if stack and stack == before:
                break
    return WorkerState(phase=phase, seconds=now - since, state=state, stack=stack or "none came")


# ── the worker's side ───────────────────────────────────────────────────────────────────────────────────────


def start_work(page: int) -> None:
    """Make faulthandler write the stack to the heartbeat file on a crash and on SIGUSR2."""
    faulthandler.enable(file=page)
    faulthandler.register(signal.SIGUSR2, file=page)


def beat(page: int, phase: str, clip_id: str | None = None) -> None:
    """Write this process's current phase to the heartbeat file."""
    text = json.dumps([phase, time.monotonic(), clip_id and clip_id[:_MOST_NAME]]).encode()
    os.pwrite(page, text[: _BEAT_BYTES - 1].ljust(_BEAT_BYTES, b"\0"), 0)
