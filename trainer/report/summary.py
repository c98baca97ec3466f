"""Run summary at the top of the report: the run's state and its problems."""
# ruff: noqa: E501

import html
from datetime import UTC, datetime
from typing import Any

from trainer.report import event_marks, read, timeline
from trainer.report.read import RunData

# Events after which a run does not continue automatically, as text.
ENDS = {
    "done": "Done",
    "stop": "Stopped on a signal and saved",
    "gave_up": "The launch gave up",
    "stall": "Hung, and ended",
    "failed": "Ended on an error",
    "refused": "The last start was refused",
}
STRICT = {
    "stop": "Stopped by the guard",
    "drain": "Ended by the guard for a bad node",
}  # by the guard's action


def moment(seconds: float) -> str:
    """Return seconds since the epoch as date and time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _end(event: dict[str, Any]) -> str | None:
    if event.get("saved") is False:
        return "Stopped at once by a second Ctrl-C"
    return STRICT.get(str(event.get("action"))) if event["event"] == "guard" else ENDS.get(event["event"])


def _linked(number: int, count: int, words: str) -> str:
    target = event_marks.target(number, count)
    return f'<a href="#{target}">{html.escape(words)}</a>' if target else html.escape(words)


def standing(number: int, run: RunData) -> str:
    """Return the state of run `number` of the page, in at most two sentences of HTML."""
    step = max([run.lines[-1]["step"] if run.lines else 0, *(event["step"] for event in run.events)])
    ended = None
    for count, event in enumerate(run.shown_events):
        if event["event"] == "refused" and ended is not None and ended[1]["event"] == "done":
            continue  # the run stays done
        if _end(event) is not None:
            ended = (count, event)
        elif event["event"] in event_marks.BEGUN:
            ended = None
    if ended is None:
        how = f"Not done: still running, or killed. Last step {step:,}"
    else:
        how = f"{_linked(number, ended[0], _end(ended[1]) or '')} at step {ended[1]['step']:,}"
        reason = ended[1].get("reason") or ended[1].get("why")
        how += f" ({html.escape(event_marks.fact(reason))})" if reason else ""
    if run.ledger:
        how += f"; begun {moment(run.ledger.began)}, last sign {moment(run.ledger.began + run.ledger.wall_seconds)} UTC"
    first: dict[str, tuple[int, int]] = {}
    for count, event in enumerate(run.shown_events):
        if event_marks.is_problem(event):
            before, times = first.get(event["event"], (count, 0))
            first[event["event"]] = (before, times + event.get(read.TIMES, 1))
    problems = ", ".join(
        f"{times:,} × {_linked(number, count, name)}" for name, (count, times) in first.items()
    )
    return f"<p>{how}. {f'To look at: {problems}.' if problems else 'No problem is logged.'}</p>"


def key_of_flags(run: RunData) -> str:
    """Return the legend of the bar, the strip and the flags' inks, as HTML."""
    inks = sorted({event_marks.ink(event) for _, event in event_marks.flagged(run)})
    keys = "".join(
        f'<span><i class="key dot ink-{ink}"></i>{event_marks.MEANINGS[ink]}</span>' for ink in inks
    )
    return (
        '<p class="legend"><span>Above: what it did, by the table below. Under it: attempts, with events as flags; '
        f"each says more when the pointer rests on it and leads to its row.</span>{keys}</p>"
    )


def after(run: RunData, event: dict[str, Any]) -> tuple[str, str]:
    """Return an event's time, since the run's start and in UTC; "" without a time."""
    if "time" not in event:
        return "", ""
    since = timeline.lasting(event["time"] - run.ledger.began) if run.ledger else ""
    return since, moment(event["time"])
