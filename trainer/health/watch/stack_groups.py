"""Stack groups: group equal stacks of a run's processes and name the odd rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.health.watch import flight_recorder
from trainer.health.watch.flight_recorder import Wait
from trainer.health.watch.heartbeat import PHASES
from trainer.health.watch.stacks import Stack


@dataclass(frozen=True, slots=True)
class Odd:
    """The process that stands elsewhere than the others, and why it is taken for it."""

    stack: Stack
    why: str


def group(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Return ranks, then workers, in groups whose main threads stand at the same line, the largest first."""
    found: dict[tuple[object, ...], list[Stack]] = {}
    for stack in stacks:
        key = (stack.is_worker, stack.state == "stopped", stack.how == "none", stack.frames)
        found.setdefault(key, []).append(stack)
    return sorted(found.values(), key=lambda members: (members[0].is_worker, -len(members)))


def unmoved(first: Sequence[Stack], second: Sequence[Stack]) -> list[Stack]:
    """Return those of the second dump whose main thread has the same stack as in the first."""
    before = {(stack.host, stack.pid): stack.frames for stack in first}
    return [stack for stack in second if stack.frames and before.get((stack.host, stack.pid)) == stack.frames]


def odd_one(groups: Sequence[Sequence[Stack]]) -> Odd | None:
    """Return the rank that the others wait for, and why it is thought so; None where nothing tells it.

    In this order: one that has ended or was stopped; one that has not come to a collective in which others
    wait, by what the flight recorders say, or else by the stacks; one that gave no stack; one whose recorder
    says nothing while all others wait in a collective and it stands elsewhere: something there keeps the
    interpreter to itself; one that is behind the others in step and phase; one that stands apart from a
    majority. A worker is named when its rank waits for it: a stopped one.
    """
    ranks = [stack for members in groups for stack in members if not stack.is_worker]
    for state, why in (("ended", "has ended"), ("stopped", "is stopped (SIGSTOP)")):
        if gone := [stack for stack in ranks if stack.state == state]:
            return Odd(gone[0], why)
    for stack in (stack for members in groups for stack in members if stack.is_worker):
        if stack.state == "stopped":
            return Odd(stack, "is stopped (SIGSTOP)")
    if len(ranks) < 2:
        return Odd(ranks[0], "is alone") if ranks else None
    for wait in waits(ranks):
        if late := [stack for stack in ranks if stack.rank in wait.late]:
            return Odd(late[0], wait.why)
    away = [stack for stack in ranks if not stack.meets and stack.how != "none"]
    if away and any(stack.meets for stack in ranks):
        return Odd(away[0], "is not in the collective in which the others wait")
    if blind := [stack for stack in ranks if stack.how == "none"]:
        return Odd(blind[0], f"gave no stack ({blind[0].note})") if len(blind) < len(ranks) else None
    if odd := _without_report(ranks):
        return odd
    places = {id(stack): _place(stack) for stack in ranks}
    known = [place for place in places.values() if place is not None]
    if len(known) == len(ranks) and min(known) != max(known):
        behind = [stack for stack in ranks if places[id(stack)] == min(known)]
        return Odd(behind[0], f"is behind the others: step {behind[0].step}, {behind[0].phase}")
    sizes = [members for members in groups if not members[0].is_worker]
    if len(sizes) > 1 and len(sizes[0]) > len(sizes[1]):
        return Odd(sizes[-1][0], "stands elsewhere than the others")
    return None


def waits(stacks: Sequence[Stack]) -> list[Wait]:
    """Return the collectives that ranks wait in; none without records of the flight recorder."""
    reported = {
        stack.rank: stack.collectives for stack in stacks if stack.rank is not None and stack.collectives
    }
    return flight_recorder.waits(reported)


def _without_report(ranks: Sequence[Stack]) -> Odd | None:
    reported = [stack for stack in ranks if stack.collectives]
    for wait in waits(reported):
        waiting = [stack for stack in reported if stack.rank in wait.waiting]
        elsewhere = [
            stack
            for stack in ranks
            if not stack.collectives and stack.frames not in [other.frames for other in waiting]
        ]
        if elsewhere and len(waiting) == len(reported):
            return Odd(elsewhere[0], f"does not say where it is, while the others wait in {wait}")
    return None


def _place(stack: Stack) -> tuple[int, int] | None:
    if stack.step is None or stack.phase not in PHASES:
        return None
    return stack.step, PHASES.index(stack.phase)


# ── as text ─────────────────────────────────────────────────────────────────────────────────────────────────

MOST_FRAMES = 6
MOST_NAMES = 8


def odd_as_text(odd: Odd) -> str:
    """Return one line: who, why, where."""
    at = f", in {odd.stack.at}" if odd.stack.at else ""
    return f"{odd.stack.name} {odd.why}{at}"


def to_text(groups: Sequence[Sequence[Stack]], still: Sequence[Stack] | None = None) -> str:
    """Return the groups for one screen; with `still` of `unmoved`, each says how many of it did not move."""
    stood = {(stack.host, stack.pid) for stack in still or ()}
    lines = []
    if odd := odd_one(groups):
        lines += [f"odd: {odd_as_text(odd)}", ""]
    for wait in waits([stack for members in groups for stack in members if not stack.is_worker]):
        lines += [f"{_some([f'rank {rank}' for rank in wait.waiting])}: in {wait}", ""]
    for members in groups:
        lines.append(_some([stack.name for stack in members]))
        count = sum((stack.host, stack.pid) in stood for stack in members)
        facts = [members[0].state, members[0].phase]
        facts += [] if still is None else [f"{count} of {len(members)} did not move"]
        lines.append(f"  {', '.join(fact for fact in facts if fact)}")
        lines += [f"    {frame}" for frame in members[0].frames[:MOST_FRAMES]]
        if len(members[0].frames) > MOST_FRAMES:
            lines.append(f"    … {len(members[0].frames) - MOST_FRAMES} more")
        if members[0].note:
            lines.append(f"    {members[0].note}")
    return "\n".join(lines)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"
