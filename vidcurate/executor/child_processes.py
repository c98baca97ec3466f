"""Child processes with a socket each: start, wait with deadlines, kill.

The core of both worker pools (`executor.worker_processes`, `loader.decode.worker_pool`). A child is a fresh
interpreter: never forked, so the child shares no lock, thread or GPU context with the parent, and never
importing the caller's main module.
"""

import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

START_SECONDS = 120.0
_POLL_SECONDS = 0.25  # longest wait while a child has a deadline
_PAST_SECONDS = 0.002  # from a deadline to the end of the wait for it
# Terminals and schedulers send these to the whole process group; the parent handles them for its children.
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def ignoring(numbers: Iterable[int]) -> str:
    """Return the first line of a `python -c` child started under `group_signals_blocked`."""
    return (
        f"import signal as s; [s.signal(number, s.SIG_IGN) for number in {tuple(map(int, numbers))}]; "
        f"s.pthread_sigmask(s.SIG_UNBLOCK, {tuple(map(int, GROUP_SIGNALS))}); "
    )


@contextmanager
def group_signals_blocked(numbers: Iterable[int] = GROUP_SIGNALS) -> Iterator[None]:
    """Block these signals in this thread; a child that starts inside inherits the block.

    Otherwise a Ctrl-C while Python starts in the child, before its first line, prints a traceback. The
    parent's own signals arrive at the end of the block.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True, eq=False, kw_only=True)
class Child:
    """A child process, our end of its socket, and its deadline `due` (monotonic seconds)."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    due: float
    is_ready: bool = False

    def set_deadline(self, seconds: float | None) -> None:
        """Set the deadline to `seconds` from now; None: no deadline."""
        self.due = float("inf") if seconds is None else time.monotonic() + seconds


C = TypeVar("C", bound=Child)


def start_child(
    arguments: Callable[[int], Sequence[str]],
    *,
    pass_fds: Iterable[int] = (),
    env: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Start Python with `arguments(descriptor of its socket)`; return the fields of a `Child`.

    GROUP_SIGNALS are blocked in the child until its program unblocks them (`ignoring`).
    """
    ours, theirs = socket.socketpair()
    with theirs, group_signals_blocked():
        process = subprocess.Popen(
            [sys.executable, *arguments(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), *pass_fds),
            env=env,
        )
    return {"process": process, "channel": ours, "due": time.monotonic() + START_SECONDS}


def kill(process: "subprocess.Popen[bytes]", wait_seconds: float) -> None:
    """Kill a process; give up waiting after `wait_seconds`: a dead disk can hold even a killed process."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(wait_seconds)


class ChildSelector(Generic[C]):
    """Waits for messages and deadlines of the children in `children`.

    Only the time in `wait` counts towards a deadline: between two waits the caller may be slow, or the whole
    job stopped, and the children with it.
    """

    def __init__(self) -> None:
        self.children: list[C] = []
        self._selector = selectors.DefaultSelector()
        self._last_wait = time.monotonic()  # when it ended

    def add(self, child: C) -> None:
        self._selector.register(child.channel, selectors.EVENT_READ, child)
        self.children.append(child)

    def add_wakeup(self, listener: socket.socket) -> None:
        """Also wake `wait` when `listener` has data; `wait` then returns a None."""
        self._selector.register(listener, selectors.EVENT_READ, None)

    def kill(self, child: C, wait_seconds: float) -> None:
        """Kill a child and forget it."""
        kill(child.process, wait_seconds)
        self._selector.unregister(child.channel)
        child.channel.close()
        self.children.remove(child)

    def seconds_to_deadline(self) -> float | None:
        """Return how long to wait for messages, at most 0.25 s; None when no child has a deadline."""
        due = min((child.due for child in self.children), default=float("inf"))
        if due == float("inf"):
            return None
        return min(max(0.0, due - self._last_wait) + _PAST_SECONDS, _POLL_SECONDS)

    def wait(self, seconds: float | None) -> list[C | None]:
        """Wait for messages for `seconds` (None: no limit); return the children that have sent one.

        All deadlines move by the time since the last wait. When this one took longer than asked, the machine
        or the job was suspended, and the children with it: they move by the excess, too.
        """
        began = time.monotonic()
        self.postpone_deadlines(began - self._last_wait)
        ready = [key.data for key, _ in self._selector.select(seconds)]
        self._last_wait = time.monotonic()
        if seconds is not None:
            self.postpone_deadlines(self._last_wait - began - seconds)
        return ready

    def is_late(self, child: C) -> bool:
        """Return whether the child's deadline had passed when the last wait ended."""
        return child.due <= self._last_wait

    def postpone_deadlines(self, seconds: float) -> None:
        """Move all deadlines by `seconds`; a negative number changes nothing."""
        for child in self.children:
            child.due += max(0.0, seconds)

    def close(self) -> None:
        self._selector.close()
