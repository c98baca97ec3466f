"""Mixture: a deterministic, even interleaving of any number of weighted streams.

The streams are the leaves of a Huffman tree over their weights. At each fork, round(j·left/(left + right)) of
the first j turns go to the left. So one walk down the tree, in integers, finds for any k the stream of turn k
and the stream's number of earlier turns. In every prefix a stream has its weight's share to within 1.68
turns, whatever the weights: a fork adds an error of at most ½, which shrinks with the share on the way down,
and the weights on a Huffman path grow at least like Fibonacci numbers F (½ · Σ 1/F = 1.68). The largest error
found is 1.3. Nothing here is random; `epoch_shuffle` chooses the clips of a turn.

Weights may change, in two ways:

- `piecewise`: the weights are one known function of the turn, constant in pieces (a ramp is many short
  pieces). A fork gives to the left what is due there by each turn, rounded, so a piece makes good the
  rounding error of the previous one, and errors never add up.
- `chained`: another mixture takes over at a turn. Every earlier turn stays, and every stream counts on from
  its turns so far. For changes that were unknown before.

Both may give a stream the weight 0 for a while. With `run` = n, n consecutive turns go to one stream.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

Weights = Sequence[int]  # whole numbers of 0 or more, one per stream, at least one above 0


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork of the Huffman tree.

    In piece i, `left_weights[i]` of `weights[i]` turns go to the left. Piece i begins when `begins[i]` of
    this fork's turns are due and `left_begins[i]` of the left's, both in fractions of a turn, `unit` per
    turn.
    """

    left: "Fork | int"  # an int is a stream's number
    right: "Fork | int"
    unit: int
    begins: tuple[int, ...]
    left_begins: tuple[int, ...]
    weights: tuple[int, ...]
    left_weights: tuple[int, ...]

    def left_turns(self, turns: int) -> int:
        """Return how many of the first `turns` turns go to the left: the number due, rounded half up."""
        at = turns * self.unit
        piece = bisect_right(self.begins, at) - 1
        weight = self.weights[piece]
        due = self.left_begins[piece] * weight + (at - self.begins[piece]) * self.left_weights[piece]
        return (2 * due + self.unit * weight) // (2 * self.unit * weight)

    def left_turn(self, number: int) -> int | None:
        """Return the turn that is the left's turn `number`: the last j with left_turns(j) <= `number`."""
        goal = (2 * number + 1) * self.unit  # twice what must be due
        piece = bisect_left(self.left_begins, goal, key=lambda due: 2 * due) - 1
        begin, due = self.begins[piece], self.left_begins[piece]
        weight, left = self.weights[piece], self.left_weights[piece]
        if not left:
            return None
        return -(-(2 * begin * left + (goal - 2 * due) * weight) // (2 * left * self.unit)) - 1

    def right_turn(self, number: int) -> int | None:
        """Return the turn that is the right's turn `number`."""
        goal = (2 * number + 1) * self.unit
        places = range(len(self.begins))
        piece = bisect_right(places, goal, key=lambda i: 2 * (self.begins[i] - self.left_begins[i])) - 1
        begin, due = self.begins[piece], self.begins[piece] - self.left_begins[piece]
        weight, right = self.weights[piece], self.weights[piece] - self.left_weights[piece]
        if not right:
            return None
        return (2 * begin * right + (goal - 2 * due) * weight) // (2 * right * self.unit)

    def largest_shares(self) -> tuple[float, float]:
        """Return the largest share of the left and of the right in any piece."""
        shares = [left / weight for left, weight in zip(self.left_weights, self.weights, strict=True)]
        return max(shares), 1 - min(shares)


Path = tuple[tuple[Fork, bool], ...]  # (fork, whether left) from the root down


@dataclass(frozen=True, slots=True)
class Span:
    """Turns from `first` on that share one tree. `counts`: turns of each stream before `first`.

    `run` consecutive turns go to one stream. `pieces`: (first turn within the span, weights). `paths`: None
    for a stream without turns.
    """

    first: int
    counts: tuple[int, ...]
    run: int
    pieces: tuple[tuple[int, tuple[int, ...]], ...]
    root: Fork | int
    paths: tuple[Path | None, ...]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Endless turns of streams 0 … n − 1; `mixture`, `piecewise` and `chained` make one."""

    spans: tuple[Span, ...]

    @property
    def num_streams(self) -> int:
        return len(self.spans[0].counts)


# ── constructors ────────────────────────────────────────────────────────────────────────────────────────────


def mixture(weights: Weights, *, run: int = 1) -> Mixture:
    """Return the mixture of streams with these constant weights, at least one stream, all above 0."""
    if not weights or min(weights) < 1:
        raise ValueError(f"weights must be whole numbers above 0, got {list(weights)[:8]}")
    return piecewise([(0, weights)], run=run)


def piecewise(pieces: Sequence[tuple[int, Weights]], *, run: int = 1) -> Mixture:
    """Return the mixture of these (first turn, weights); the first begins at turn 0, the last has no end.

    `run`: number of consecutive turns of one stream; a piece begins with a run. Streams whose weights change
    in proportion share a subtree, in which nothing changes. A turn may come a little before or after its
    weight changes, within `largest_error`; `chained` changes weights exactly at a turn. Raises ValueError for
    turns that do not rise, weights below 0 or all 0, and pieces within a run.
    """
    firsts = [first for first, _ in pieces]
    if not pieces or firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
        raise ValueError(f"pieces must begin with turn 0 and follow each other, got {firsts[:8]}")
    if run < 1 or any(first % run for first in firsts):
        raise ValueError(f"pieces must begin with a run of {run} turns, got {firsts[:8]}")
    for _, weights in pieces:
        if len(weights) != len(pieces[0][1]) or not any(weights) or min(weights) < 0:
            raise ValueError(f"weights must be 0 or more, one per stream, got {list(weights)[:8]}")
    totals = [sum(weights) for _, weights in pieces]
    unit = math.lcm(*totals)
    scales = [unit // total for total in totals]
    courses = [
        tuple(weights[stream] * scale for (_, weights), scale in zip(pieces, scales, strict=True))
        for stream in range(len(pieces[0][1]))
    ]
    lengths = [(after - before) // run for before, after in pairwise(firsts)]
    together: dict[tuple[int, ...], list[int]] = {}
    for stream, course in enumerate(courses):
        if divisor := math.gcd(*course):
            together.setdefault(tuple(part // divisor for part in course), []).append(stream)
    trees = [
        _tree([(max(courses[stream]), courses[stream], stream) for stream in streams], unit, lengths)
        for streams in together.values()
    ]
    _, root = _tree([(max(course), course, node) for course, node in trees], unit, lengths)
    paths: list[Path | None] = [None] * len(courses)
    open_nodes: list[tuple[Fork | int, Path]] = [(root, ())]
    while open_nodes:
        node, path = open_nodes.pop()
        if isinstance(node, int):
            paths[node] = path
        else:
            open_nodes += [(node.left, (*path, (node, True))), (node.right, (*path, (node, False)))]
    span = Span(
        first=0,
        counts=(0,) * len(courses),
        run=run,
        pieces=tuple((first, tuple(weights)) for first, weights in pieces),
        root=root,
        paths=tuple(paths),
    )
    return Mixture((span,))


Course = tuple[int, ...]  # the weight of a node in each piece


def _tree(
    nodes: Iterable[tuple[int, Course, Fork | int]], unit: int, lengths: Sequence[int]
) -> tuple[Course, Fork | int]:
    """Return the Huffman tree over nodes given as (weight, course, node), and the tree's course."""
    heap = [(weight, number, course, node) for number, (weight, course, node) in enumerate(nodes)]
    heapq.heapify(heap)
    made = len(heap)
    while len(heap) > 1:
        light, heavy = heapq.heappop(heap), heapq.heappop(heap)
        course = tuple(a + b for a, b in zip(heavy[2], light[2], strict=True))
        fork = _fork(heavy[3], light[3], heavy[2], course, unit, lengths)  # the heavier gets the first turn
        heapq.heappush(heap, (heavy[0] + light[0], made, course, fork))
        made += 1
    return heap[0][2], heap[0][3]


def _fork(
    left: Fork | int,
    right: Fork | int,
    left_course: Course,
    course: Course,
    unit: int,
    lengths: Sequence[int],
) -> Fork:
    begin = left_begin = 0
    parts: list[tuple[int, int, int, int]] = []
    for weight, left_weight, length in zip(course, left_course, [*lengths, 0], strict=True):
        if weight:
            same = parts and parts[-1][3] * weight == left_weight * parts[-1][2]
            if not same:
                parts.append((begin, left_begin, weight, left_weight))
        begin, left_begin = begin + length * weight, left_begin + length * left_weight
    if len(parts) == 1:  # keep the integers small when the shares never change
        (_, _, weight, left_weight) = parts[0]
        divisor = math.gcd(weight, left_weight)
        unit, parts = 1, [(0, 0, weight // divisor, left_weight // divisor)]
    begins, left_begins, weights, left_weights = zip(*parts, strict=True)
    return Fork(left, right, unit, begins, left_begins, weights, left_weights)


def chained(parts: Sequence[tuple[int, Mixture]]) -> Mixture:
    """Return the mixture that follows each part from its first turn on; the first part begins at turn 0.

    A part counts turns from its first turn. Streams keep counting their own turns. So later parts never
    change earlier turns. A stream that does not exist yet, or no longer, has the weight 0. Raises ValueError
    for turns that do not rise and for different numbers of streams.
    """
    firsts = [first for first, _ in parts]
    if not parts or firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
        raise ValueError(f"parts must begin with turn 0 and follow each other, got {firsts[:8]}")
    spans: list[Span] = []
    for (first, mix), end in zip(parts, [*firsts[1:], None], strict=True):
        if mix.num_streams != parts[0][1].num_streams:
            raise ValueError(f"parts have {parts[0][1].num_streams} and {mix.num_streams} streams")
        had = turns_before(Mixture(tuple(spans)), first) if spans else [0] * mix.num_streams
        spans += [
            replace(
                span,
                first=first + span.first,
                counts=tuple(a + b for a, b in zip(had, span.counts, strict=True)),
            )
            for span in mix.spans
            if end is None or first + span.first < end
        ]
    return Mixture(tuple(spans))


# ── queries ─────────────────────────────────────────────────────────────────────────────────────────────────


def _span(mix: Mixture, position: int) -> Span:
    if len(mix.spans) == 1:
        return mix.spans[0]
    return mix.spans[bisect_right(mix.spans, position, key=lambda span: span.first) - 1]


def stream_at(mix: Mixture, position: int) -> tuple[int, int]:
    """Return (stream, occurrence) of turn `position`: the stream and its number of earlier turns."""
    span = _span(mix, position)
    number, within = divmod(position - span.first, span.run)
    node = span.root
    while isinstance(node, Fork):
        before = node.left_turns(number)
        if node.left_turns(number + 1) > before:
            node, number = node.left, before
        else:
            node, number = node.right, number - before
    return node, span.counts[node] + number * span.run + within


def turns_before(mix: Mixture, position: int) -> list[int]:
    """Return the number of turns of each stream among the first `position`."""
    span = _span(mix, position)
    number, within = divmod(position - span.first, span.run)
    counts = list(span.counts)
    open_nodes = [(span.root, number)]
    while open_nodes:
        node, turns = open_nodes.pop()
        if isinstance(node, Fork):
            left = node.left_turns(turns)
            open_nodes += [(node.left, left), (node.right, turns - left)]
        else:
            counts[node] += turns * span.run
    if within:
        counts[stream_at(mix, position)[0]] += within
    return counts


def position_of(mix: Mixture, stream: int, occurrence: int) -> int | None:
    """Return the position of a stream's turn number `occurrence`: the inverse of `stream_at`.

    None when the stream never gets that many turns, as its weight has become 0.
    """
    span = mix.spans[bisect_right(mix.spans, occurrence, key=lambda span: span.counts[stream]) - 1]
    path = span.paths[stream]
    if path is None:
        return None
    number: int | None
    number, within = divmod(occurrence - span.counts[stream], span.run)
    for fork, is_left in reversed(path):
        number = fork.left_turn(number) if is_left else fork.right_turn(number)
        if number is None:
            return None
    return span.first + number * span.run + within


def due(mix: Mixture, position: int) -> list[Fraction]:
    """Return the exact share of each stream in the first `position` turns, as fractions of turns.

    After a chained mixture the shares count on from the streams' turns at that point.
    """
    span = _span(mix, position)
    counts = [Fraction(count) for count in span.counts]
    ends = [*(first for first, _ in span.pieces[1:]), None]
    for (first, weights), end in zip(span.pieces, ends, strict=True):
        turns = (position - span.first if end is None else min(end, position - span.first)) - first
        if turns > 0:
            total = sum(weights)
            counts = [had + Fraction(turns * w, total) for had, w in zip(counts, weights, strict=True)]
    return counts


def largest_error(mix: Mixture) -> float:
    """Return an upper bound, in turns, on the difference of any prefix from `due`."""
    worst = 0.0
    for span in mix.spans:
        for path in span.paths:
            error = 0.0
            for fork, is_left in path or ():
                left, right = fork.largest_shares()
                error = 0.5 + error * (left if is_left else right)
            worst = max(worst, error * span.run)
    return worst
