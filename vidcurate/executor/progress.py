"""Progress of a stage on stderr: a bar on a terminal, a line every 5 s in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, Task
from rich.text import Text

from vidcurate.executor.map_clips import Progress

LINE_EVERY_SECONDS = 5.0
_SMALLEST_BAR = 6
_BAR_COLUMNS = 2 + _SMALLEST_BAR


def _left(done: int, total: int, rate: float) -> str:
    """Return the time left, such as `1:02:03 left`; empty when it is not known."""
    if not rate or done >= total:
        return ""
    minutes, seconds = divmod(round((total - done) / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left"


def fitted(width: int, what: str, done: int, total: int, unit: str, rate: float) -> tuple[str, str]:
    """Return the progress as text of at most `width` characters, before and after the bar.

    Count, total and time left always stay. The unit, the rate, then the notes behind the unit
    (`clips (3 failed)`) are there when they fit.
    """
    name, _, notes = unit.partition(" ")
    before, count, left = what, f"{done:,}/{total:,}", _left(done, total, rate)
    parts = [count, "", "", "", left]
    optional = ((1, name), (3, f"{rate:,.1f}/s" if rate else ""), (2, notes))
    for place, part in optional:
        tried = [*parts]
        tried[place] = part
        if len(" ".join([before, *filter(None, tried)])) + _BAR_COLUMNS > width:
            break
        parts = tried
    return before, " ".join(filter(None, parts))


class _FittedColumn(ProgressColumn):
    """The whole line of a task as one column, so that rich cuts nothing off."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> RenderableType:
        if task.total is None:
            return Text(task.description)
        done, total, width = int(task.completed), int(task.total), self._console.width
        unit, rate = task.fields["unit"], task.fields["rate"]
        before, after = fitted(width, task.description, done, total, unit, rate)
        size = min(40, width - len(before) - len(after) - 2)
        line = Text(before, no_wrap=True, overflow="ellipsis")
        if size >= _SMALLEST_BAR:
            filled = size * done // total if total else size
            line.append(" ").append("━" * filled, style="bar.complete")
            line.append("━" * (size - filled), style="bar.back")
        return line.append(f" {after}")


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
        with Bar(_FittedColumn(console), console=console, transient=True) as bar:
            task = bar.add_task(what, total=None, unit="", rate=0.0)

            def show(done: int, total: int, unit: str) -> None:
                bar.update(task, completed=done, total=total, unit=unit, rate=rate_of(done))

            yield show
        return
    last = time.monotonic()

    def line(done: int, total: int, unit: str) -> None:
        nonlocal last
        rate = rate_of(done)
        if time.monotonic() - last >= LINE_EVERY_SECONDS:
            last = time.monotonic()
            left = _left(done, total, rate)
            words = f"{what}: {done:,} of {total:,} {unit}, {rate:,.1f}/s"
            print(f"{words}, {left}" if left else words, file=sys.stderr, flush=True)

    yield line
