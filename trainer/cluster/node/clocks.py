"""Node clocks: time stamps of each line, and this clock's time daemon."""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from trainer.health import clock_offset


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """First report the time daemon, then answer every line until input ends."""
    yield asdict(clock_offset.discipline())
    while sys.stdin.readline():
        received = time.time_ns()
        yield {"received": received, "answered": time.time_ns()}
