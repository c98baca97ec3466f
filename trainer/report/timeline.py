"""Timeline of a run: a bar of where time went, above its attempts and events."""
# ruff: noqa: E501

import html

from trainer.report import event_marks
from trainer.report.goodput import Ledger
from trainer.report.read import RunData
from trainer.run_folder.metrics import seconds_as_text
from vidcurate.curation.report import svg

INKS = {
    "idle": "part-idle", "other": "part-other", "productive": "ink-2", "start-up": "ink-4", "data wait": "ink-1",
    "checkpoint": "ink-3", "sampling": "ink-5", "validation": "ink-0", "lost": "ink-6",
}  # fmt: skip


UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def lasting(seconds: float) -> str:
    """Return a duration as a table shows it: 92.9 s, then 1:02:03 (h:mm:ss), then 2 d 1:02:03."""
    if abs(seconds) < 600:
        return f"{seconds:,.1f} s"
    whole = round(abs(seconds))
    days, rest = divmod(whole, 86400)
    reported = f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return ("-" if seconds < 0 else "") + (f"{days:,} d {reported}" if days else reported)


def bar(found: Ledger) -> str:
    """Return the run's life as a bar of 600 columns, each in the ink of the part that most of it was."""
    columns, wall = 600, max(found.wall_seconds * 1e6, 1.0)
    first = found.intervals[0][0] if found.intervals else 0
    cells: list[dict[str, float]] = [{} for _ in range(columns)]
    for begin, end, part in found.intervals:
        low, high = (begin - first) / wall * columns, (end - first) / wall * columns
        for cell in range(int(low), min(int(high), columns - 1) + 1):
            share = min(high, cell + 1) - max(low, cell)
            cells[cell][part] = cells[cell].get(part, 0.0) + max(share, 0.0)
    tops = [max(cell, key=lambda part: cell[part]) if cell else "other" for cell in cells]
    parts, start = [], 0
    for number in range(1, columns + 1):
        if number == columns or tops[number] != tops[start]:
            parts.append(
                f'<rect class="{INKS[tops[start]]}" x="{start}" y="0" width="{number - start}" height="26">'
                f"<title>{tops[start]}</title></rect>"
            )
            start = number
    label = html.escape(f"The run's {seconds_as_text(found.wall_seconds)} from left to right, by what it did")
    return f'<svg class="life" viewBox="0 0 600 26" preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def strip(number: int, run: RunData, found: Ledger) -> str:
    """Return attempts as bars with the gaps between them, and events as flags, on the scale of `bar`."""

    def at(seconds: float) -> str:  # events of other processes may lie outside of the run's time
        return f"{100 * min(max((seconds - found.began) / (found.wall_seconds or 1.0), 0.0), 1.0):.3f}%"

    parts = ['<line class="grid" x1="0" x2="100%" y1="29" y2="29"/>']
    for count, one in enumerate(found.attempts, start=1):
        after, lasted = one.began - found.began, one.ended - one.began
        words = html.escape(
            f"attempt {count}: {one.kind} at step {one.step}, after {lasting(after)}, lasted {lasting(lasted)}"
        )
        width = f"{100 * lasted / (found.wall_seconds or 1.0):.3f}%"
        parts.append(
            f'<rect class="attempt" x="{at(one.began)}" y="24" width="{width}" height="10"><title>{words}</title></rect>'
        )
    size, unit = next(pair for pair in UNITS if found.wall_seconds >= 3 * pair[0] or pair[1] == "s")
    for value in svg.ticks(0.0, found.wall_seconds / size, 4):
        share = value * size / (found.wall_seconds or 1.0)
        anchor = "start" if share < 0.05 else "end" if share > 0.95 else "middle"
        parts.append(
            f'<text x="{at(found.began + value * size)}" y="50" text-anchor="{anchor}">{svg.shown(value)} {unit}</text>'
        )
    loud_last = sorted(
        event_marks.flagged(run), key=lambda pair: pair[1]["event"] not in event_marks.QUIET
    )  # on top
    for count, event in loud_last:
        if "time" not in event:
            continue
        x, ink, target = at(event["time"]), event_marks.ink(event), event_marks.target(number, count)
        words = html.escape(f"{lasting(event['time'] - found.began)}: {event_marks.words_of(event)}")
        drawn = (
            f'<title>{words}</title><line class="mark ink-{ink}" x1="{x}" x2="{x}" y1="8" y2="34"/>'
            f'<circle class="flag ink-{ink}" cx="{x}" cy="8" r="5"/>'
        )
        parts.append(f'<a href="#{target}" aria-label="{words}">{drawn}</a>' if target else f"<g>{drawn}</g>")
    label = f"{len(found.attempts)} attempts and the events, over the same time"
    return f'<svg class="times" role="group" aria-label="{label}">{"".join(parts)}</svg>'
