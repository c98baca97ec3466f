"""Goodput: where a run's time went, a ledger that adds up to the wall time.

A pure function of the run's log files. From the start of the first process to the last sign of the run, every
microsecond belongs to one of PARTS; if several claim it (a validation within repeated steps), the later one
in PARTS counts. Time without a log entry is `other` within an attempt and `idle` between two.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]
Interval = tuple[int, int, str]  # microseconds since the epoch, a part

PARTS = {
    "idle": "between two attempts: the last sign of one to the beginning of the next process",
    "other": "within an attempt, without a log entry: writing logs, waiting for another rank to end",
    "productive": "updates that the run still has",
    "start-up": "to a process's first update, and by how much that took longer than others (compiling)",
    "data wait": "waiting for clips",
    "checkpoint": "the training held up by a save",
    "sampling": "making samples",
    "validation": "measuring the validation loss",
    "lost": "updates made again after a kill, or given up by a rollback",
}
BEGINNINGS = ("start", "resume", "load", "load_from_scratch", "weights")
ENDING = ("save", "sample", "stop", "done")
OUTSIDE = ("restart", "excluded", "gave_up", "served")  # written by processes besides the training


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One process group's life. Times are seconds since the epoch; `step` is its first step."""

    kind: str
    step: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """`seconds` by part, in the order of PARTS; their sum is `wall_seconds`. `intervals` do not overlap."""

    began: float
    wall_seconds: float
    seconds: dict[str, float]
    attempts: tuple[Attempt, ...]
    intervals: tuple[Interval, ...]

    @property
    def goodput(self) -> float:
        """The productive share of the wall time."""
        return self.seconds["productive"] / self.wall_seconds if self.wall_seconds else 0.0


def _micro(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _attempts(
    lines: Sequence[Line], rounds: Sequence[Line], events: Sequence[Line]
) -> list[tuple[Line, int, int]]:
    """Return (event, start, end) of each attempt, in order."""
    begins = [event for event in events if event["event"] in BEGINNINGS]
    starts = [_micro(min(event.get("process_began", event["time"]), event["time"])) for event in begins]
    signs = [_micro(line["time"]) for line in (*lines, *rounds)]
    signs += [_micro(event["time"]) for event in events if event["event"] not in OUTSIDE]
    signs += [_micro(event["lost_until"]) for event in events if "lost_until" in event]
    signs.sort()
    ends = [_micro(line["time"]) for line in (*lines, *rounds)]
    ends += [_micro(event["time"]) for event in events if event["event"] in ENDING]
    for number, event in enumerate(begins[1:], start=1):  # two attempts may be of one process
        before = [end for end in ends if end < _micro(event["time"])]
        starts[number] = max([starts[number], *before])
    found = []
    for number, (event, began) in enumerate(zip(begins, starts, strict=True)):
        until = starts[number + 1] if number + 1 < len(starts) else signs[-1] + 1
        ended = max((sign for sign in signs if began <= sign < until), default=began)
        found.append((event, began, max(ended, began)))
    return found


def _painted(lines: Sequence[Line], rounds: Sequence[Line], events: Sequence[Line]) -> list[Interval]:
    """Return the intervals of each line and event, overlapping."""
    found: list[Interval] = []
    attempts = _attempts(lines, rounds, events)
    ends = {line["step"]: _micro(line["time"]) for line in lines}
    steps = [(_micro(line["time"]) - _micro(line["seconds"]), _micro(line["time"]), line) for line in lines]
    usual = (
        _micro(statistics.median(line["seconds"] - line["data_seconds"] for line in lines)) if lines else 0
    )
    for number, (_, began, ended) in enumerate(attempts):
        found.append((began, ended, "other"))
        if number:
            found.append((attempts[number - 1][2], began, "idle"))
        mine = [step for step in steps if began <= step[1] <= ended]
        if mine:
            first, last, line = min(mine, key=lambda step: step[1])
            found.append((began, first, "start-up"))
            waited = first + _micro(line["data_seconds"])
            found.append((waited, max(waited, last - usual), "start-up"))
    for first, last, line in steps:
        found.append((first, last, "productive"))
        found.append((first, first + _micro(line["data_seconds"]), "data wait"))
    found += [
        (_micro(line["time"]) - _micro(line["seconds"]), _micro(line["time"]), "validation")
        for line in rounds
    ]
    for event in events:
        at = _micro(event["time"])
        if event["event"] == "sample" and "seconds" in event:
            found.append((at - _micro(event["seconds"]), at, "sampling"))
        if event["event"] == "save" and "stall_seconds" in event:
            # A background save delays the training at its start and is logged at its end.
            begins = ends.get(event["step"], at - _micro(event["stall_seconds"]))
            found.append((begins, begins + _micro(event["stall_seconds"]), "checkpoint"))
        if "lost_from" in event:
            found.append((_micro(event["lost_from"]), _micro(event["lost_until"]), "lost"))
    return found


def _parted(painted: Sequence[Interval], first: int, last: int) -> list[Interval]:
    """Return the intervals cut to [first, last], the later of PARTS on top, without gaps or overlaps."""
    order = list(PARTS)
    turns: list[tuple[int, int, int]] = []
    for begin, end, part in painted:
        begin, end = max(begin, first), min(end, last)
        if begin < end:
            turns += [(begin, 1, order.index(part)), (end, -1, order.index(part))]
    turns.sort()
    open_ = [0] * len(order)
    parted: list[Interval] = []
    at = first
    for place, change, number in [*turns, (last, 0, 0)]:
        if place > at:
            top = max((rank for rank, count in enumerate(open_) if count), default=order.index("other"))
            if parted and parted[-1][2] == order[top]:
                parted[-1] = (parted[-1][0], place, order[top])
            else:
                parted.append((at, place, order[top]))
            at = place
        open_[number] += change
    return parted


def ledger(lines: Sequence[Line], rounds: Sequence[Line], events: Sequence[Line]) -> Ledger | None:
    """Return where the time went; None for logs without a start or without times (older runs).

    `lines`, `rounds` and `events` are those of metrics.jsonl, validation.jsonl and events.jsonl.
    """
    events = [event for event in events if "time" in event]
    attempts = _attempts(lines, rounds, events)
    if not attempts:
        return None
    first, last = min(began for _, began, _ in attempts), max(ended for _, _, ended in attempts)
    parted = _parted(_painted(lines, rounds, events), first, last)
    sums = dict.fromkeys(PARTS, 0)
    for begin, end, part in parted:
        sums[part] += end - begin
    return Ledger(
        began=first / 1e6,
        wall_seconds=(last - first) / 1e6,
        seconds={part: total / 1e6 for part, total in sums.items()},
        attempts=tuple(
            Attempt(kind=event["event"], step=event["step"], began=began / 1e6, ended=ended / 1e6)
            for event, began, ended in attempts
        ),
        intervals=tuple(parted),
    )
