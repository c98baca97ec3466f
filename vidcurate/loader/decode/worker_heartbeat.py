"""What a decode worker shows of itself: what it is doing and since when, and its stack.

One anonymous file per worker. Its first bytes say what the worker does (`beat`); behind them faulthandler
writes the stack, when the worker crashes or when it is asked with SIGUSR2. That is written by the signal
handler itself, without the GIL: it comes also from a worker that hangs inside a C library. It needs no rights
to trace a process, as py-spy and gdb do. It does not come from a process that waits for a disk or a network
and takes no signals (state D): of that one the phase, the state and the kernel's function are all there is.
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
    """What was seen of a worker: `phase` (start, idle, read or decode) and for how long.

    `state`: running, sleeping, stopped, ended, unknown …, and the kernel's function that it waits in, where
    that can be read. `stack`: what faulthandler wrote, a thread's innermost frame first.
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
    """Return the descriptor of the file for one worker, to be passed on to it."""
    page = anonymous_file(_BEAT_BYTES)
    os.lseek(page, _BEAT_BYTES, os.SEEK_SET)  # the worker shares the offset: its stack goes here
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
    """Return what a worker is doing. `ask` it for its stack: it stays alive, a stopped one is woken.

    A worker that has crashed left its stack already; one that was killed has none.
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
        for _ in range(_MOST_LOOKS):  # not a time: after a machine that stood still it would be over
            time.sleep(_LOOK_SECONDS)
            before, stack = stack, _stack(page)
            if stack and stack == before:
                break
    return WorkerState(phase=phase, seconds=now - since, state=state, stack=stack or "none came")


# ── the worker's side ───────────────────────────────────────────────────────────────────────────────────────


def start_work(page: int) -> None:
    """Have the stack written into the page on a crash and on SIGUSR2."""
    faulthandler.enable(file=page)
    faulthandler.register(signal.SIGUSR2, file=page)


def beat(page: int, phase: str, clip_id: str | None = None) -> None:
    """Show what this process does from now on."""
    said = json.dumps([phase, time.monotonic(), clip_id and clip_id[:_MOST_NAME]]).encode()
    os.pwrite(page, said[: _BEAT_BYTES - 1].ljust(_BEAT_BYTES, b"\0"), 0)
