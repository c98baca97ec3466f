"""Stop requests: signals and findings that end a training after the current step.

The first SIGTERM, SIGUSR1 or Ctrl-C lets the step end, saves and stops. A second Ctrl-C ends the process at
once, by a thread: the main thread may wait in a collective, where no Python signal handler runs.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trainer.cli import exit_codes

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
NAMES = tuple(number.name for number in STOP_SIGNALS)
FIRST = "SIGINT: the run saves after this step and stops; once more ends it at once without saving"
SECOND = "interrupted; the same command continues from the newest checkpoint"


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
def listening(*, is_first: bool = True) -> Iterator[Stop]:
    """Listen for STOP_SIGNALS; rank 0 (`is_first`) prints what a Ctrl-C does.

    Ctrl-C stays ignored where the parent process ignores it, as a script's background jobs do.
    """
    stop = Stop()
    numbers = [
        number
        for number in STOP_SIGNALS
        if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in numbers}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_count_interrupts, args=(reading, stop, is_first), daemon=True)
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


def _count_interrupts(reading: int, stop: Stop, is_first: bool) -> None:
    """Print a line at the first Ctrl-C, end the process at the second; return when the pipe closes."""
    count = 0
    while received := os.read(reading, 64):
        for _ in range(received.count(signal.SIGINT)):
            count += 1
            if is_first:
                print(FIRST if count == 1 else SECOND, file=sys.stderr, flush=True)
            if count == 2:
                stop.at_once()
                os._exit(exit_codes.INTERRUPTED)
