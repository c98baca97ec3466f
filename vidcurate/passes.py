"""The stream of one cell: its clips in exact passes, without end, each pass in an order of its own.

A clip is an ordinal, 0 … n − 1. Place p of the stream is offset p mod n of pass p div n. Micro-batches of m
clips are cut from the stream one after the other, so one of them may hold the end of a pass and the start of
the next; it never holds a clip twice. Nothing is iterated: any place costs the same.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate import draws

Ordinals = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """`count` clips (n), read in micro-batches of `micro_batch_size` (m ≤ n); `seed` and `name` make it."""

    seed: int
    name: str
    count: int
    micro_batch_size: int


def _key(stream: Stream, number: int) -> int:
    """Return the key of the order of pass `number`.

    With fewer clips than two micro-batches the end of a pass and the start of the next cannot be kept apart
    by moving clips; such a cell keeps one order until a micro-batch and a pass end together.
    """
    if stream.count < 2 * stream.micro_batch_size:
        number -= number % (stream.micro_batch_size // math.gcd(stream.count, stream.micro_batch_size))
    return draws.key("pass", stream.seed, stream.name, number)


def _permute(stream: Stream, number: int, offsets: Ordinals) -> Ordinals:
    """Return what pass `number` has at these offsets before micro-batches are looked at."""
    return draws.permute(stream.count, _key(stream, number), offsets)


def _unpermute(stream: Stream, number: int, ordinals: Ordinals) -> Ordinals:
    """Return the offsets at which `_permute` has these ordinals."""
    return draws.unpermute(stream.count, _key(stream, number), ordinals)


def _head(stream: Stream, number: int) -> Ordinals:
    """Return the first m ordinals of a pass, none of which the straddling micro-batch already has.

    That micro-batch takes the last t clips of the pass before and the first m − t of this one. Those of the
    latter that are among the former change places with the next ones that are not; as n ≥ 2m, there are
    enough of these within the first m, and the end of the pass stays as it is.
    """
    count, size = stream.count, stream.micro_batch_size
    head = _permute(stream, number, np.arange(size))
    tail_size = number * count % size
    if number == 0 or tail_size == 0:
        return head
    tail = _permute(stream, number - 1, np.arange(count - tail_size, count))
    clashes = np.isin(head, tail)
    cut = size - tail_size
    away = np.flatnonzero(clashes[:cut])
    into = cut + np.flatnonzero(~clashes[cut:])[: len(away)]
    head[away], head[into] = head[into], head[away]
    return head


def ordinals_of_pass(stream: Stream, number: int, offsets: Ordinals) -> Ordinals:
    """Return the ordinals at these offsets (0 … n − 1) of pass `number`."""
    size = stream.micro_batch_size
    ordinals = _permute(stream, number, offsets)
    early = offsets < size
    if stream.count >= 2 * size and early.any():
        ordinals = np.where(early, _head(stream, number)[np.where(early, offsets, 0)], ordinals)
    return ordinals


def micro_batch(stream: Stream, occurrence: int) -> tuple[Ordinals, Ordinals]:
    """Return (ordinals, pass numbers) of the stream's micro-batch number `occurrence`, each (m,)."""
    count, size = stream.count, stream.micro_batch_size
    number, first = divmod(occurrence * size, count)
    offsets = np.arange(first, first + size)
    ordinals = ordinals_of_pass(stream, number, offsets[offsets < count])
    if offsets[-1] >= count:
        following = ordinals_of_pass(stream, number + 1, offsets[offsets >= count] - count)
        ordinals = np.concatenate([ordinals, following])
    return ordinals, number + offsets // count


def occurrences(stream: Stream, ordinal: int) -> Iterator[int]:
    """Yield, without end, the numbers of the micro-batches that hold a clip."""
    size, number = stream.micro_batch_size, 0
    while True:
        offset = int(_unpermute(stream, number, np.array([ordinal]))[0])
        if stream.count >= 2 * size:
            early = np.flatnonzero(_head(stream, number) == ordinal)
            offset = int(early[0]) if len(early) else offset
        yield (number * stream.count + offset) // size
        number += 1
