"""The other side of the four time stamps: when a line came and was answered; and who keeps this clock."""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from trainer.health import clock_offset


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """First say who keeps the clock, and then answer every line that comes, until no more does."""
    yield asdict(clock_offset.discipline())
    while sys.stdin.readline():
        received = time.time_ns()
        yield {"received": received, "answered": time.time_ns()}
