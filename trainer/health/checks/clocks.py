"""Clock check: offset of each node's clock from rank 0's, by time stamps."""

import statistics
import time
from collections.abc import Mapping, Sequence

from trainer.health import clock_offset
from trainer.health.checks.check import Check
from trainer.health.checks.exchange import Board
from trainer.health.checks.spec import MAX_CLOCK_OFFSET_SECONDS

SAMPLES = 8
SECONDS = 5.0  # for one exchange


def offset(board: Board, rank: int, leaders: Sequence[int]) -> list[Check]:
    """Return the check of this node's clock against the first's; its leader asks, rank 0 answers all.

    `leaders` are the first ranks of the nodes, rank 0 among them. All of them call this together.
    """
    others = [leader for leader in leaders if leader != 0]
    if rank == 0:
        for leader in others:
            _answer(board, leader)
        return []
    if rank not in others:
        return []

    count = 0

    def exchange(line: str) -> str:
        nonlocal count
        board.put(f"clock/{rank}/{count}/asked", line)
        # The first answer comes when rank 0 has served the leaders before this one.
        said = board.take(f"clock/{rank}/{count}/answered", SECONDS * (len(others) if count == 0 else 1))
        count += 1
        return str(said)

    try:
        found = clock_offset.measure(exchange, SAMPLES)
    except ValueError as error:
        return [Check(name="clock", verdict="warn", value=f"could not be compared: {error}")]
    behind = -found.seconds  # of the first node's clock against this one's, seen from here
    surely = abs(found.seconds) - found.error_seconds
    return [
        Check(
            name="clock",
            verdict="bad" if surely > MAX_CLOCK_OFFSET_SECONDS else "ok",
            value=f"{1e3 * behind:+.3f} ms ± {1e3 * found.error_seconds:.3f} ms from rank 0's",
            limit=f"{MAX_CLOCK_OFFSET_SECONDS:g} s",
            advice=clock_offset.CHRONY if surely > MAX_CLOCK_OFFSET_SECONDS else "",
            figure=1e3 * behind,
            unit="ms",
        )
    ]


def against_most(found: Mapping[int, Sequence[Check]]) -> dict[int, list[Check]]:
    """Return all ranks' checks; where rank 0's clock is the odd one, it is bad and those like most are not.

    Of two nodes nothing says which is right, and rank 0's counts.
    """
    figures = {
        rank: check.figure
        for rank, checks in found.items()
        for check in checks
        if check.name == "clock" and check.figure is not None
    }
    middle = statistics.median([0.0, *figures.values()])
    limit = 1e3 * MAX_CLOCK_OFFSET_SECONDS
    if len(figures) < 2 or abs(middle) <= limit:
        return {rank: list(checks) for rank, checks in found.items()}
    checked: dict[int, list[Check]] = {0: [_from_most(None, -middle, limit), *found.get(0, ())]}
    for rank, checks in found.items():
        if rank in figures:
            checked[rank] = [
                _from_most(check, figures[rank] - middle, limit) if check.name == "clock" else check
                for check in checks
            ]
        else:
            checked.setdefault(rank, list(checks))
    return checked


def _from_most(check: Check | None, behind: float, limit: float) -> Check:
    """Return the check of a clock that is `behind` ms from most nodes'."""
    is_bad = abs(behind) > limit
    return Check(
        name="clock",
        verdict="bad" if is_bad else "ok",
        value=f"{behind:+.3f} ms from most nodes'" + (f" ({check.value})" if check else ""),
        limit=f"{limit / 1e3:g} s",
        advice=clock_offset.CHRONY if is_bad else "",
        figure=behind,
        unit="ms",
    )


def _answer(board: Board, leader: int) -> None:
    for count in range(SAMPLES):
        line = board.take(f"clock/{leader}/{count}/asked", SECONDS)
        if line is None:
            return  # the leader's own limit tells of it
        board.put(f"clock/{leader}/{count}/answered", clock_offset.answer(line, time.time_ns()))
