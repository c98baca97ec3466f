"""Telling how far a stage is: a bar on a terminal, a line every few seconds in a log. Both go to stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from vidcurate.engine import Progress

LINE_EVERY_SECONDS = 5.0


def _left(done: int, total: int, seconds: float) -> str:
    if not done or done >= total:
        return ""
    left = round(seconds / done * (total - done))
    return f", {left // 60}:{left % 60:02d} left"


@contextmanager
def telling(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Yield a function (done, total, unit) that shows the progress of `what` with its rate and time left."""
    if quiet:
        yield lambda done, total, unit: None
        return
    console = Console(stderr=True)
    start = time.monotonic()
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]} {task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None, unit="", rate="")

            def show(done: int, total: int, unit: str) -> None:
                rate = done / max(time.monotonic() - start, 1e-6)
                bar.update(task, completed=done, total=total, unit=unit, rate=f"{rate:,.1f}/s")

            yield show
        return
    last = start

    def line(done: int, total: int, unit: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_EVERY_SECONDS:
            last = now
            seconds = now - start
            rate = done / max(seconds, 1e-6)
            left = _left(done, total, seconds)
            print(
                f"{what}: {done:,} of {total:,} {unit}, {rate:,.1f}/s{left}",
                file=sys.stderr,
                flush=True,
            )

    yield line
