"""Progress of a stage on stderr: a bar on a terminal, a line every 5 s in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from vidcurate.executor.map_clips import Progress

LINE_EVERY_SECONDS = 5.0


def _left(done: int, total: int, rate: float) -> str:
    if not rate or done >= total:
        return ""
    left = round((total - done) / rate)
    return f", {left // 60}:{left % 60:02d} left"


class _Rate:
    """Units per second since the first report, without the units done before: a stage may resume."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int) -> float:
        self._first = self._first or (time.monotonic(), done)
        since, before = self._first
        return (done - before) / max(time.monotonic() - since, 1e-6)


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Yield a function (done, total, unit) that shows progress, rate and time left of `what`."""
    if quiet:
        yield lambda done, total, unit: None
        return
    console = Console(stderr=True)
    rate_of = _Rate()
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
                bar.update(task, completed=done, total=total, unit=unit, rate=f"{rate_of(done):,.1f}/s")

            yield show
        return
    last = time.monotonic()

    def line(done: int, total: int, unit: str) -> None:
        nonlocal last
        rate = rate_of(done)
        if time.monotonic() - last >= LINE_EVERY_SECONDS:
            last = time.monotonic()
            left = _left(done, total, rate)
            print(f"{what}: {done:,} of {total:,} {unit}, {rate:,.1f}/s{left}", file=sys.stderr, flush=True)

    yield line
