"""Rank balance: assign a step's micro-batches to ranks with nearly equal cost.

A light module: plain Python.
"""

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

CLOSE = 1000  # stop when the slowest rank is at most 1/CLOSE above the mean
ROUNDS = 100  # most rounds of exchanges
PARTNERS = 32  # least loaded ranks that the slowest rank tries in a round

RankCosts = tuple[int, ...]  # costs of one rank's micro-batches, greatest first


def assign_to_ranks(costs: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Return, for each rank, the indices of its micro-batches, the costliest first.

    First longest-processing-time scheduling (LPT; Graham 1969): each micro-batch, the costliest first, goes
    to the rank with the smallest sum. Then the slowest ranks exchange one or two micro-batches for none, one
    or two of a faster rank, while that lowers the larger of the two sums. `costs` are in any unit, and above
    0.
    """
    numbers: dict[int, list[int]] = defaultdict(list)
    for number in reversed(range(len(costs))):
        numbers[costs[number]].append(number)
    ranks = _rebalance(Counter(_lpt(costs, num_ranks)))
    each = sorted(ranks.elements(), reverse=True)
    return [[numbers[cost].pop() for cost in rank_costs] for rank_costs in each]


def _lpt(costs: Sequence[int], num_ranks: int) -> list[RankCosts]:
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    heap = [(0, rank) for rank in range(num_ranks)]
    for cost in sorted(costs, reverse=True):
        load, rank = heap[0]
        ranks[rank].append(cost)
        heapq.heapreplace(heap, (load + cost, rank))
    return [tuple(rank_costs) for rank_costs in ranks]


def _rebalance(ranks: Counter[RankCosts]) -> Counter[RankCosts]:
    """Exchange micro-batches to lower the largest sum; ranks with equal costs do the same exchange."""
    mean = sum(sum(rank_costs) * count for rank_costs, count in ranks.items()) / ranks.total()
    for _ in range(ROUNDS):
        full, *others = sorted(ranks, key=lambda rank_costs: (-sum(rank_costs), rank_costs))
        if sum(full) <= mean * (1 + 1 / CLOSE):
            break
        for other in others[: -PARTNERS - 1 : -1]:
            if after := _exchange(full, other):
                break
        else:
            break
        times = min(ranks[full], ranks[other])
        ranks.subtract({full: times, other: times})
        ranks.update(dict.fromkeys(after, times) if after[0] != after[1] else {after[0]: 2 * times})
        ranks = +ranks
    return ranks


def _exchange(full: RankCosts, other: RankCosts) -> tuple[RankCosts, RankCosts] | None:
    """Return both ranks after the exchange with the smallest larger sum; None when no exchange helps."""
    gap = sum(full) - sum(other)
    theirs = _bundles(other)
    sums = list(theirs)
    least, found = gap, None
    for given, ours in _bundles(full).items():
        near = bisect_left(sums, given - gap / 2)  # the ideal exchange moves half the gap
        for taken in sums[max(0, near - 1) : near + 1]:
            moved = given - taken
            if max(gap - moved, moved) < least:
                least, found = max(gap - moved, moved), (ours, theirs[taken])
    if found is None:
        return None
    ours, given_back = found
    return _changed(full, ours, given_back), _changed(other, given_back, ours)


def _changed(rank_costs: RankCosts, without: RankCosts, with_: RankCosts) -> RankCosts:
    kept = Counter(rank_costs) - Counter(without) + Counter(with_)
    return tuple(sorted(kept.elements(), reverse=True))


@lru_cache(4096)
def _bundles(rank_costs: RankCosts) -> dict[int, RankCosts]:
    """Return sum → costs, for each choice of none, one or two micro-batches of a rank; smallest first."""
    found: dict[int, RankCosts] = {}
    for size in (0, 1, 2):
        for some in combinations(rank_costs, size):
            found.setdefault(sum(some), some)
    return dict(sorted(found.items()))
