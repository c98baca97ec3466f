"""Event marks: which events get a flag, its colour, text and link."""

import re
from collections.abc import Sequence
from typing import Any

from trainer.report.curves import Mark
from trainer.report.read import RunData

# The ink of an event's flag; unlisted events are shown, too.
EVENT_INKS = {
    "guard": 6,
    "stall": 6,
    "xid": 6,
    "ecc": 6,
    "gave_up": 6,
    "failed": 6,
    "refused": 6,
    "excluded": 6,
    "slow_rank": 1,
    "throughput_drop": 1,
    "clock_step": 1,
}
EVENT_INKS |= {
    "checkpoint_damaged": 1,
    "latest_damaged": 1,
    "clip_substituted": 1,
    "worker_replaced": 1,
    "tracker_failed": 1,
    "data_changed": 3,
    "resume": 0,
    "start": 0,
    "restart": 0,
    "stop": 4,
    "save": 7,
}
# What the inks say, on the page.
MEANINGS = {
    0: "begun",
    1: "slower, a clip or worker replaced, a checkpoint damaged",
    3: "data or plan changed",
    4: "saved and left on a signal",
    6: "guard, stall, GPU, node left out, given up, ended on an error",
    7: "other",
}
BEGUN = ("start", "resume", "load", "load_from_scratch", "weights")
QUIET = ("save", "stage", "done", "sample", "start")  # with more events, only those that matter get a flag
MOST_FLAGS = 60
MOST_EVENTS = 400
_DIGEST = re.compile(r"[0-9a-f]{32,}")
BRIEF = 110  # letters of the line with an event's facts


def ink(event: dict[str, Any]) -> int:
    """Return the ink of an event's flag."""
    return EVENT_INKS.get(event["event"], 7)


def is_problem(event: dict[str, Any]) -> bool:
    """Return whether a person should look at an event."""
    return ink(event) in (1, 6)


def brief(event: dict[str, Any]) -> str:
    """Return an event's facts in one short line, deciding ones first, without empty ones, not escaped."""
    first = [key for key in ("action", "reason", "why", "clip", "clip_id", "kind") if key in event]
    rest = [key for key in event if key not in (*first, "event", "step", "time")]
    shown = [key for key in first + rest if event[key] not in ([], {}, "", None)]
    text = ", ".join(f"{key.replace('_', ' ')} {_short(event[key])}" for key in shown)
    return text if len(text) <= BRIEF else f"{text[:BRIEF].rstrip()} …"


def _short(value: Any) -> str:
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return f"{value[:12]} …"
    return f"{value:.4g}" if isinstance(value, float) else fact(value).rstrip(".")


def words_of(event: dict[str, Any]) -> str:
    """Return an event with its step and facts in one line, not escaped."""
    facts = [f"{key}: {fact(value)}" for key, value in event.items() if key not in ("event", "step", "time")]
    return f"{event['event']} at step {event['step']}" + (f" ({'; '.join(facts)})" if facts else "")


def fact(value: Any) -> str:
    """Return a fact's value as at most 300 letters."""
    text = _words(value, depth=0)
    return text if len(text) <= 300 else f"{text[:300]} …"


def _words(value: Any, depth: int) -> str:
    """Return a value of JSON as text: `too small 1, too short 2` for an object, inner ones in brackets."""
    if not isinstance(value, dict | list) or depth > 3:
        return str(value)
    if isinstance(value, list):
        text = ", ".join(_words(one, depth + 1) for one in value)
    else:
        text = ", ".join(f"{key.replace('_', ' ')} {_words(one, depth + 1)}" for key, one in value.items())
    return f"({text})" if depth else text


def flagged(run: RunData) -> list[tuple[int, dict[str, Any]]]:
    """Return the events that get a flag, with their numbers: all, or the ones that matter."""
    every = list(enumerate(run.shown_events))
    loud = [pair for pair in every if pair[1]["event"] not in QUIET]
    chosen = every if len(every) <= MOST_FLAGS else loud
    return chosen[:MOST_FLAGS]


def target(number: int, count: int) -> str:
    """Return the id of the row of event `count` of run `number`; "" where the table ends before it."""
    return f"event-{number}-{count}" if count < MOST_EVENTS else ""


def marks(runs: Sequence[RunData]) -> list[Mark]:
    """Return the flags of all runs on the axis of steps."""
    return [
        Mark(
            x=float(event["step"]),
            words=(f"{run.name}: " if len(runs) > 1 else "") + words_of(event),
            ink=ink(event),
            target=target(number, count),
        )
        for number, run in enumerate(runs)
        for count, event in flagged(run)
    ]
