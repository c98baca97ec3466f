"""The signals that ask a training to stop: they set a name, and the step in progress ends first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stop:
    """The name of the first stop signal that came, "" before."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self, number: int, frame: object) -> None:
        self.name = self.name or signal.Signals(number).name


@contextmanager
def listening() -> Iterator[Stop]:
    """Listen for STOP_SIGNALS; the step in progress ends first."""
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
