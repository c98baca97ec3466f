"""Which cell's turn it is: a fixed, even mixture of any number of endless streams.

The streams are the leaves of a Huffman tree over their weights. At each fork the first j turns give
round(j·left/(left + right)) to the left. So which stream has turn k, and its how-manieth this is, is found by
walking down once, in whole numbers, for any k. In every prefix a stream has its weight's share to within 1.68
turns, whatever the weights: a fork adds an error of at most ½, which shrinks with the share on the way down,
and the weights on a Huffman path grow at least like Fibonacci's numbers F (½ · Σ 1/F = 1.68). The worst found
is 1.3. Nothing is drawn here: what is random is which clips a turn takes.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fork:
    left: "Fork | int"  # an int is a stream's number
    right: "Fork | int"
    left_weight: int
    right_weight: int

    @property
    def weight(self) -> int:
        return self.left_weight + self.right_weight

    def left_turns(self, turns: int) -> int:
        """Return how many of the first `turns` go to the left: turns · share, rounded half up."""
        return (2 * turns * self.left_weight + self.weight) // (2 * self.weight)


@dataclass(frozen=True, slots=True)
class Mixture:
    """`weights`: whole numbers above 0, one per stream. `paths`: (fork, whether left) from the root down."""

    weights: tuple[int, ...]
    root: Fork | int
    paths: tuple[tuple[tuple[Fork, bool], ...], ...]


def mixture(weights: Sequence[int]) -> Mixture:
    """Return the mixture of streams with these weights, at least one and all above 0."""
    if not weights or min(weights) < 1:
        raise ValueError(f"weights must be whole numbers above 0, got {list(weights)[:8]}")
    heap: list[tuple[int, int, Fork | int]] = [
        (weight, number, number) for number, weight in enumerate(weights)
    ]
    heapq.heapify(heap)
    made = len(heap)
    while len(heap) > 1:
        light, heavy = heapq.heappop(heap), heapq.heappop(heap)
        fork = Fork(heavy[2], light[2], heavy[0], light[0])  # the heavier one takes the first turn
        heapq.heappush(heap, (fork.weight, made, fork))
        made += 1
    root = heap[0][2]
    paths: dict[int, tuple[tuple[Fork, bool], ...]] = {}
    open_nodes: list[tuple[Fork | int, tuple[tuple[Fork, bool], ...]]] = [(root, ())]
    while open_nodes:
        node, path = open_nodes.pop()
        if isinstance(node, int):
            paths[node] = path
        else:
            open_nodes += [(node.left, (*path, (node, True))), (node.right, (*path, (node, False)))]
    return Mixture(tuple(weights), root, tuple(paths[number] for number in range(len(weights))))


def turn(mix: Mixture, position: int) -> tuple[int, int]:
    """Return (stream, occurrence): whose turn `position` is, and how many turns it had before."""
    node = mix.root
    while isinstance(node, Fork):
        before = node.left_turns(position)
        if node.left_turns(position + 1) > before:
            node, position = node.left, before
        else:
            node, position = node.right, position - before
    return node, position


def turns_before(mix: Mixture, position: int) -> list[int]:
    """Return how many of the first `position` turns each stream has."""
    counts: list[int] = []
    for path in mix.paths:
        count = position
        for fork, is_left in path:
            count = fork.left_turns(count) if is_left else count - fork.left_turns(count)
        counts.append(count)
    return counts


def position_of(mix: Mixture, stream: int, occurrence: int) -> int:
    """Return the position of a stream's turn number `occurrence`: the inverse of `turn`."""
    position = occurrence
    for fork, is_left in reversed(mix.paths[stream]):
        if is_left:  # the first j with round((j + 1)·left/all) above `position`
            position = -(-fork.weight * (2 * position + 1) // (2 * fork.left_weight)) - 1
        else:
            position = fork.weight * (2 * position + 1) // (2 * fork.right_weight)
    return position


def largest_error(mix: Mixture) -> float:
    """Return a bound, for these weights, on how far any prefix is from the mixture, in turns."""
    worst = 0.0
    for path in mix.paths:
        error = 0.0
        for fork, is_left in path:
            share = (fork.left_weight if is_left else fork.right_weight) / fork.weight
            error = 0.5 + error * share
        worst = max(worst, error)
    return worst
