"""Dealing the micro-batches of a step to ranks so that the slowest has little more to do than the others.

A light module: plain Python.
"""

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

CLOSE = 1000  # who has at most one part in so many above the mean has little enough
ROUNDS = 100  # of exchanges
PARTNERS = 32  # that the fullest look at in a round, the emptiest first

Hand = tuple[int, ...]  # the costs of what a rank has, the greatest first


def assign_to_ranks(costs: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Return for each rank which of the micro-batches it gets, the costliest first.

    From the costliest on, each goes to the rank with the least so far (LPT; Graham 1969). Then those with the
    most exchange one or two of their own for none, one or two of a rank with less, as long as that lowers the
    greater of the two sums. `costs` are in any unit, and above 0.
    """
    numbers: dict[int, list[int]] = defaultdict(list)
    for number in reversed(range(len(costs))):
        numbers[costs[number]].append(number)
    hands = _even(Counter(_lpt(costs, num_ranks)))
    each = sorted(hands.elements(), reverse=True)
    return [[numbers[cost].pop() for cost in hand] for hand in each]


def _lpt(costs: Sequence[int], num_ranks: int) -> list[Hand]:
    hands: list[list[int]] = [[] for _ in range(num_ranks)]
    heap = [(0, rank) for rank in range(num_ranks)]
    for cost in sorted(costs, reverse=True):
        load, rank = heap[0]
        hands[rank].append(cost)
        heapq.heapreplace(heap, (load + cost, rank))
    return [tuple(hand) for hand in hands]


def _even(hands: Counter[Hand]) -> Counter[Hand]:
    """Return hands of the same costs with less in the fullest; equal hands exchange the same at once."""
    mean = sum(sum(hand) * count for hand, count in hands.items()) / hands.total()
    for _ in range(ROUNDS):
        full, *others = sorted(hands, key=lambda hand: (-sum(hand), hand))
        if sum(full) <= mean * (1 + 1 / CLOSE):
            break
        for other in others[: -PARTNERS - 1 : -1]:
            if after := _exchange(full, other):
                break
        else:
            break
        times = min(hands[full], hands[other])
        hands.subtract({full: times, other: times})
        hands.update(dict.fromkeys(after, times) if after[0] != after[1] else {after[0]: 2 * times})
        hands = +hands
    return hands


def _exchange(full: Hand, other: Hand) -> tuple[Hand, Hand] | None:
    """Return two hands after the exchange that leaves least in the fuller; None where none helps."""
    gap = sum(full) - sum(other)
    theirs = _bundles(other)
    sums = list(theirs)
    least, found = gap, None
    for given, ours in _bundles(full).items():
        near = bisect_left(sums, given - gap / 2)  # half the gap is what should go over
        for taken in sums[max(0, near - 1) : near + 1]:
            moved = given - taken
            if max(gap - moved, moved) < least:
                least, found = max(gap - moved, moved), (ours, theirs[taken])
    if found is None:
        return None
    ours, given_back = found
    return _changed(full, ours, given_back), _changed(other, given_back, ours)


def _changed(hand: Hand, without: Hand, with_: Hand) -> Hand:
    kept = Counter(hand) - Counter(without) + Counter(with_)
    return tuple(sorted(kept.elements(), reverse=True))


@lru_cache(4096)
def _bundles(hand: Hand) -> dict[int, Hand]:
    """Return sum → costs of none, one or two of a hand, from the least sum on."""
    found: dict[int, Hand] = {}
    for size in (0, 1, 2):
        for some in combinations(hand, size):
            found.setdefault(sum(some), some)
    return dict(sorted(found.items()))
