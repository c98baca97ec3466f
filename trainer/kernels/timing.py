"""How long several ways to compute the same take on a GPU, where the best is to be taken ever after."""

import statistics
from collections.abc import Callable, Sequence

import torch

TIMED, WARM = 5, 1
AHEAD_CYCLES = 4_000_000  # about 2 ms, in which the host has handed over all ways


def milliseconds(ways: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median time of each way, of a few rounds in which each has its turn.

    The GPU is kept busy until all ways of a round wait in its stream: else the host's time for a call would
    count, which is hidden in a training step.
    """
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(WARM + TIMED):
        marks = []
        torch.cuda._sleep(AHEAD_CYCLES)
        for way in ways:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            way()
            end.record()
            marks.append((begin, end))
        torch.cuda.synchronize()
        for kept, (begin, end) in zip(times, marks, strict=True):
            kept.append(begin.elapsed_time(end))
    return [statistics.median(kept[WARM:]) for kept in times]
