"""Which cell's turn it is: a fixed, even mixture of any number of endless streams.

The streams are the leaves of a Huffman tree over their weights. At each fork the first j turns give
round(j·left/(left + right)) to the left. So which stream has turn k, and its how-manieth this is, is found by
walking down once, in whole numbers, for any k. In every prefix a stream has its weight's share to within 1.68
turns, whatever the weights: a fork adds an error of at most ½, which shrinks with the share on the way down,
and the weights on a Huffman path grow at least like Fibonacci's numbers F (½ · Σ 1/F = 1.68). The worst found
is 1.3. Nothing is drawn here: what is random is which clips a turn takes.

Weights may change, in two ways:

- `drifting`: they are one function of the turn, known from the start, constant in pieces (a ramp is many
  short ones). A fork whose first j turns are due by some moment gives to the left what is due there by then,
  rounded. So the error of a piece is made good in the next and never adds up, however many there are.
- `chained`: another mixture goes on from a turn. Every turn before it is as it was, and every stream counts
  on from the turns that it has had. This is for changes that nobody knew of before.

Both may give a stream the weight 0 for a while. With `run` = n the turns come n at a time to one stream.
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
    """Where the turns of some streams part.

    In piece i, `left_weights[i]` of `weights[i]` turns go to the left. It begins when `begins[i]` of this
    fork's turns are due and `left_begins[i]` of the left's, both counted in parts of a turn, `unit` to one.
    """

    left: "Fork | int"  # an int is a stream's number
    right: "Fork | int"
    unit: int
    begins: tuple[int, ...]
    left_begins: tuple[int, ...]
    weights: tuple[int, ...]
    left_weights: tuple[int, ...]

    def left_turns(self, turns: int) -> int:
        """Return how many of the first `turns` go to the left: those due there, rounded half up."""
        at = turns * self.unit
        piece = bisect_right(self.begins, at) - 1
        weight = self.weights[piece]
        due = self.left_begins[piece] * weight + (at - self.begins[piece]) * self.left_weights[piece]
        return (2 * due + self.unit * weight) // (2 * self.unit * weight)

    def left_turn(self, number: int) -> int | None:
        """Return which turn is the left's turn `number`: the last j with left_turns(j) <= `number`."""
        goal = (2 * number + 1) * self.unit  # twice what must be due
        piece = bisect_left(self.left_begins, goal, key=lambda due: 2 * due) - 1
        begin, due = self.begins[piece], self.left_begins[piece]
        weight, left = self.weights[piece], self.left_weights[piece]
        if not left:
            return None
        return -(-(2 * begin * left + (goal - 2 * due) * weight) // (2 * left * self.unit)) - 1

    def right_turn(self, number: int) -> int | None:
        """Return which turn is the right's turn `number`."""
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
    """Turns from `first` on, with one tree. `counts`: turns of each stream before.

    `run` turns in a row go to one stream. `pieces`: (first turn, counted in the span, weights). `paths`: None
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
    """Endless turns of streams 0 … n − 1; made by `mixture`, `drifting` and `chained`."""

    spans: tuple[Span, ...]

    @property
    def num_streams(self) -> int:
        return len(self.spans[0].counts)


# ── made ────────────────────────────────────────────────────────────────────────────────────────────────────


def mixture(weights: Weights, *, run: int = 1) -> Mixture:
    """Return the mixture of streams with these weights, at least one and all above 0."""
    if not weights or min(weights) < 1:
        raise ValueError(f"weights must be whole numbers above 0, got {list(weights)[:8]}")
    return drifting([(0, weights)], run=run)


def drifting(pieces: Sequence[tuple[int, Weights]], *, run: int = 1) -> Mixture:
    """Return the mixture with these (first turn, weights), the first from turn 0 on, the last without end.

    `run`: so many turns in a row go to one stream; pieces begin with a run. Streams whose weights move
    together keep a subtree of their own, in which nothing changes. A stream may have a turn a little before
    or after its weight says so, within `largest_error`; where that must not be, `chained` is strict. Raises
    ValueError for turns that do not rise, weights below 0 or all 0, and pieces within a run.
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
    """Return the Huffman tree over nodes given as (weight, course, node), and its course."""
    heap = [(weight, number, course, node) for number, (weight, course, node) in enumerate(nodes)]
    heapq.heapify(heap)
    made = len(heap)
    while len(heap) > 1:
        light, heavy = heapq.heappop(heap), heapq.heappop(heap)
        course = tuple(a + b for a, b in zip(heavy[2], light[2], strict=True))
        fork = _fork(heavy[3], light[3], heavy[2], course, unit, lengths)  # the heavier has the first turn
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
    if len(parts) == 1:  # whole numbers stay small where the shares never change
        (_, _, weight, left_weight) = parts[0]
        divisor = math.gcd(weight, left_weight)
        unit, parts = 1, [(0, 0, weight // divisor, left_weight // divisor)]
    begins, left_begins, weights, left_weights = zip(*parts, strict=True)
    return Fork(left, right, unit, begins, left_begins, weights, left_weights)


def chained(parts: Sequence[tuple[int, Mixture]]) -> Mixture:
    """Return the mixture that from each first turn on is the one given with it, the first from turn 0 on.

    A part's turns count from its first turn. Streams go on with the turns that they have had before. So
    whatever follows, the turns before a part's first are the same ones. A stream that is not there yet, or no
    longer, has the weight 0. Raises ValueError for turns that do not rise and another number of streams.
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


# ── asked ───────────────────────────────────────────────────────────────────────────────────────────────────


def _span(mix: Mixture, position: int) -> Span:
    if len(mix.spans) == 1:
        return mix.spans[0]
    return mix.spans[bisect_right(mix.spans, position, key=lambda span: span.first) - 1]


def turn(mix: Mixture, position: int) -> tuple[int, int]:
    """Return (stream, occurrence): whose turn `position` is, and how many turns it had before."""
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
    """Return how many of the first `position` turns each stream has."""
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
        counts[turn(mix, position)[0]] += within
    return counts


def position_of(mix: Mixture, stream: int, occurrence: int) -> int | None:
    """Return the position of a stream's turn number `occurrence`: the inverse of `turn`.

    None where the stream has so many turns never, as its weight has become 0.
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
    """Return what the weights would give each stream of the first `position` turns, were turns divisible.

    Where another mixture was chained on it counts from what the streams had had by then.
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
    """Return a bound, for this mixture, on how far any prefix is from what is `due`, in turns."""
    worst = 0.0
    for span in mix.spans:
        for path in span.paths:
            error = 0.0
            for fork, is_left in path or ():
                left, right = fork.largest_shares()
                error = 0.5 + error * (left if is_left else right)
            worst = max(worst, error * span.run)
    return worst
