"""Clock steps: detect that this host's clock was set during the run.

The check compares real time with monotonic time, every second. A clock that steps back broke collectives in
the published runs (NTP that polls every half hour). A daemon that slews moves the clock by at most 0.5 ms in
a second, which is not a step. Stdlib only.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

TRIES = 3
ADVICE = "run chronyd on every host, which slews the clock; let it step (makestep) at boot only"


def read_clocks() -> tuple[float, float]:
    """Return (seconds of the epoch, monotonic seconds), read at the same moment within a millisecond."""
    return _together(time.monotonic)


def _together(other: Callable[[], float]) -> tuple[float, float]:
    real, middle = 0.0, 0.0
    for _ in range(TRIES):
        before, real, after = other(), time.time(), other()
        middle = (before + after) / 2
        if after - before < 1e-3:  # else the process was put aside between the two
            break
    return real, middle


def boot_time() -> float:
    """Return when this machine was started, in seconds of the epoch, as its clock is set now."""
    real, since_boot = _together(lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    return real - since_boot


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """The clock was set by `seconds` (negative: back) within the last `within_seconds`."""

    seconds: float
    within_seconds: float

    def to_text(self, host: str) -> str:
        way = "back" if self.seconds < 0 else "forward"
        return f"{host}: the clock was set {way} by {abs(self.seconds):.3f} s during the run; {ADVICE}"


class ClockWatch:
    """Compares the two clocks; `look` returns a step of `least_seconds` or more since the last call."""

    def __init__(self, least_seconds: float, clocks: Callable[[], tuple[float, float]] | None = None) -> None:
        self._clocks = clocks or (lambda: read_clocks())
        self._least = least_seconds
        self._real, self._monotonic = self._clocks()

    def look(self) -> ClockStep | None:
        real, monotonic = self._clocks()
        passed = monotonic - self._monotonic
        jump = (real - self._real) - passed
        self._real, self._monotonic = real, monotonic
        if abs(jump) < self._least:
            return None
        return ClockStep(seconds=round(jump, 6), within_seconds=round(passed, 3))
