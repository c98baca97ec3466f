"""Stop requests: signals and findings that end a training after the current step.

The first SIGTERM, SIGUSR1, SIGHUP (a terminal that closes) or Ctrl-C lets the step end, saves and stops. A
second Ctrl-C ends the process at once, by a thread: the main thread may wait in a collective, where no Python
signal handler runs.

torchrun gives each rank a session of its own. It passes the first Ctrl-C on as SIGINT and the second as
SIGTERM (the shutdown that follows its own exception), and leaves its ranks behind when it is killed: the
kernel then sends them SIGINT.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trainer.cli import exit_codes
from trainer.distributed.rank import COPY_SECONDS

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
# Kept where the parent process ignores them: a script's background jobs, nohup.
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)
NAMES = tuple(number.name for number in STOP_SIGNALS)
FIRST = "SIGINT: the run saves after this step and stops; once more ends it at once without saving"
SECOND = "interrupted; the same command continues from the newest checkpoint"

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2  # Linux's prctl options


class Stop:
    """`name`: the first stop signal that arrived, else the finding that ends the run; "" before.

    The second Ctrl-C calls `at_once` before the process ends.
    """

    def __init__(self) -> None:
        self.name = ""
        self.at_once: Callable[[], None] = lambda: None

    def __call__(self, number: int, frame: object) -> None:
        if self.name not in NAMES:
            self.name = signal.Signals(number).name


def deciding_name(names: Sequence[str]) -> str:
    """Return the name that ends the run, of all ranks' names ("" is none): a signal before a finding."""
    asked = [name for name in names if name]
    return next((name for name in asked if name in NAMES), asked[0] if asked else "a signal")


@contextmanager
def _under_torchrun() -> Iterator[bool]:
    """Give whether torchrun is the parent; while it is, have the kernel send SIGINT when torchrun ends.

    The agents of `launch` ask the kernel for SIGTERM before a rank begins: they are not torchrun.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or sys.platform != "linux":
        yield False
        return
    prctl, given = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(PR_GET_PDEATHSIG, ctypes.byref(given))
    if given.value:
        yield False
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGINT)
    try:
        yield True
    finally:
        prctl(PR_SET_PDEATHSIG, 0)


@contextmanager
def listening(*, is_first: bool = True) -> Iterator[Stop]:
    """Listen for STOP_SIGNALS; rank 0 (`is_first`) prints what a Ctrl-C does.

    Ctrl-C and SIGHUP stay ignored where the parent process ignores them.
    """
    stop = Stop()
    numbers = [
        number
        for number in STOP_SIGNALS
        if number not in _MAY_BE_IGNORED or signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in numbers}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    with _under_torchrun() as is_torchrun:
        thread = threading.Thread(
            target=_count_interrupts, args=(reading, stop, is_first, is_torchrun), daemon=True
        )
        thread.start()
        try:
            yield stop
        finally:
            signal.set_wakeup_fd(wakeup)
            os.close(writing)
            thread.join()
            os.close(reading)
            for number, handler in before.items():
                signal.signal(number, handler)


def _count_interrupts(reading: int, stop: Stop, is_first: bool, is_torchrun: bool) -> None:
    """Print a line at the first Ctrl-C, end the process at the second; return when the pipe closes.

    `is_torchrun`: a SIGTERM after the first Ctrl-C is torchrun's second.
    """
    count = 0
    while received := os.read(reading, 64):
        for number in received:
            if number != signal.SIGINT and not (is_torchrun and count and number == signal.SIGTERM):
                continue
            count += 1
            if is_first:
                print(FIRST if count == 1 else SECOND, file=sys.stderr, flush=True)
            if count == 2:
                stop.at_once()
                if is_first:
                    time.sleep(2 * COPY_SECONDS)  # for the line to reach the console
                os._exit(exit_codes.INTERRUPTED)
