"""Throughput of ranks: seconds of each rank per step, slow ranks, a falling rate.

A step takes as long as its slowest rank, and all ranks then measure the same time: a slow rank shows only in
its time before it waits for the others. That is its data wait and its micro-batches (without communication
between them, see `trainer.distributed.parallelize`), measured on a GPU by the device's own clock. The ranks
exchange the seconds in the sum that each step makes anyway.
"""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.distributed.mesh import World

LEAST_SECONDS = 0.05
"""a rank slower by less than this per step is not reported: on a small model this is noise"""
MIXES = 256
HISTORY = 100
RECENT = 5


@dataclass(frozen=True, slots=True)
class OwnSeconds:
    """What one rank did by itself in a step: seconds of data wait and of computing, and FLOPs computed."""

    data: float
    compute: float
    flops: float


class Stopwatch:
    """The time of each of this rank's micro-batches; on a GPU by events in its stream, read when past."""

    def __init__(self, world: World) -> None:
        self._on_gpu = world.device.type == "cuda"
        self._marks: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """Say that a micro-batch is over, as far as the host is concerned."""
        if self._on_gpu:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._events[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds between the marks; to be asked when the device is past them, else it waits."""
        if not self._on_gpu:
            return [end - begin for begin, end in itertools.pairwise(self._marks)]
        self._events[-1].synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(self._events)]


def rank_seconds(own: Sequence[OwnSeconds]) -> dict[str, object]:
    """Return least, median and most of the ranks' seconds, and the slowest rank, for metrics.jsonl."""
    found: dict[str, object] = {}
    for name in ("data", "compute"):
        values = sorted(getattr(one, name) for one in own)
        found[name] = [round(value, 6) for value in (values[0], statistics.median(values), values[-1])]
    totals = [one.data + one.compute for one in own]
    return found | {"slowest": totals.index(max(totals))}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank that took `factor` times the others' median over `steps` steps; seconds are means of a step.

    `by`: data, or compute, whichever is more of what it takes too long. Computing is compared at equal FLOPs.
    """

    rank: int
    factor: float
    by: str
    seconds: float
    seconds_of_others: float
    data_seconds: float
    compute_seconds: float
    steps: int


class SlowRanks:
    """Compares the ranks over windows of `steps` steps; tells once, and again when it was better since."""

    def __init__(self, factor: float, steps: int) -> None:
        self._factor, self._steps = factor, steps
        self._seen: list[Sequence[OwnSeconds]] = []
        self._reported: set[int] = set()

    def add(self, own: Sequence[OwnSeconds]) -> list[SlowRank]:
        """Take one step's seconds of all ranks; return who was slow, at the end of a window, else nothing."""
        if len(own) < 2:
            return []
        self._seen.append(own)
        if len(self._seen) < self._steps:
            return []
        window, self._seen = self._seen, []
        found = _slow(window, self._factor)
        new = [slow for slow in found if slow.rank not in self._reported]
        self._reported = {slow.rank for slow in found}
        return new


def _slow(window: Sequence[Sequence[OwnSeconds]], factor: float) -> list[SlowRank]:
    count, ranks = len(window), len(window[0])
    data = [sum(step[rank].data for step in window) / count for rank in range(ranks)]
    raw = [sum(step[rank].compute for step in window) / count for rank in range(ranks)]
    work = [sum(step[rank].flops for step in window) / count for rank in range(ranks)]
    usual = sum(work) / ranks
    # At equal work: a rank that was given more clips is not slow. One that was given none has no pace.
    compute = [raw[rank] * usual / work[rank] if work[rank] else 0.0 for rank in range(ranks)]
    found = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        data_of_others = statistics.median(data[other] for other in others)
        paces = [compute[other] for other in others if work[other]] or [compute[rank]]
        compute_of_others = statistics.median(paces)
        total, total_of_others = data[rank] + compute[rank], data_of_others + compute_of_others
        if total <= factor * total_of_others or total - total_of_others < LEAST_SECONDS:
            continue
        by_data = data[rank] - data_of_others > compute[rank] - compute_of_others
        found.append(
            SlowRank(
                rank=rank,
                factor=round(total / max(total_of_others, 1e-9), 2),
                by="data" if by_data else "compute",
                seconds=round(total, 4),
                seconds_of_others=round(total_of_others, 4),
                data_seconds=round(data[rank], 4),
                compute_seconds=round(raw[rank], 4),
                steps=count,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The last steps of a mix of buckets were slower than the run's own median for it; tokens/s."""

    mix: str
    tokens_per_second: float
    usual: float
    share: float


class Throughput:
    """The run's rate by mix of buckets: reports a drop of `share` below its median once until it is over.

    A step of long clips is slower than one of short ones: only like is compared with like.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._rates: dict[str, deque[float]] = {}
        self._reported: set[str] = set()

    def add(self, buckets: Sequence[str], tokens_per_second: float) -> Drop | None:
        mix = " ".join(f"{buckets.count(name)}x{name}" for name in sorted(set(buckets)))
        rates = self._rates.setdefault(mix, deque(maxlen=HISTORY))
        if len(self._rates) > MIXES:
            self._rates.pop(next(iter(self._rates)))
        rates.append(tokens_per_second)
        if len(rates) < 3 * RECENT:
            return None
        values = list(rates)
        recent, usual = statistics.median(values[-RECENT:]), statistics.median(values[:-RECENT])
        if recent >= (1 - self._share) * usual:
            self._reported.discard(mix)
            return None
        if mix in self._reported:
            return None
        self._reported.add(mix)
        share = round(1 - recent / usual, 3)
        return Drop(mix=mix, tokens_per_second=round(recent, 1), usual=round(usual, 1), share=share)
