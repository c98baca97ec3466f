"""Stop requests: signals and findings that end a training after the current step."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
NAMES = tuple(number.name for number in STOP_SIGNALS)


class Stop:
    """`name`: the first stop signal that arrived, else the finding that ends the run; "" before."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self, number: int, frame: object) -> None:
        if self.name not in NAMES:
            self.name = signal.Signals(number).name


def deciding_name(names: Sequence[str]) -> str:
    """Return the name that ends the run, of all ranks' names ("" is none): a signal before a finding."""
    asked = [name for name in names if name]
    return next((name for name in asked if name in NAMES), asked[0] if asked else "a signal")


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
