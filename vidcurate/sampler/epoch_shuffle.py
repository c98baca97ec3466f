"""Epoch shuffle: endless stream of one cell's clips, each epoch in a new order.

An epoch is one exact pass over the clips of a cell. A clip is an ordinal. A stream of n clips has n places
per epoch, and place p is offset p mod n of epoch p div n. Micro-batches of m clips follow each other in the
stream, so one micro-batch may hold the end of an epoch and the start of the next; no micro-batch holds a clip
twice. Every place costs the same to compute: nothing iterates.

A stream that was changed on the way (`changes.changed_stream`) begins with a partial epoch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.sampler import shard_blocks
from vidcurate.sampler.shard_blocks import Blocks

Ordinals = NDArray[np.int64]

NONE: Ordinals = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """Stream of `count` clips (n) in micro-batches of `micro_batch_size` (m ≤ n), keyed by `seed` and `name`.

    The clips are the ordinals from 0 on without the `dead` ones (sorted), which were removed. Places count
    from the beginning or, with a `partial` epoch, from the change; whole epochs are numbered from
    `first_epoch` on. With `blocks`, a whole epoch reads a few blocks at a time, unless the cell has fewer
    clips than two micro-batches.
    """

    seed: int
    name: str
    count: int
    micro_batch_size: int
    dead: Ordinals = field(default_factory=lambda: NONE)
    partial: "PartialEpoch | None" = None
    first_epoch: int = 0
    blocks: Blocks | None = None

    @property
    def num_ordinals(self) -> int:
        """Number of ordinals ever given out."""
        return self.count + len(self.dead)

    @property
    def partial_size(self) -> int:
        return self.partial.num_left + self.partial.num_added if self.partial else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialEpoch:
    """Rest of the epoch during which a change came.

    `previous`: the stream before the change, which had shown `place` clips. Its open epoch had `num_left`
    clips to show, without the removed ones, which had the places `gone` (sorted, counted from `place`).
    `num_added` ordinals are new. `number` counts the changes of one cell.
    """

    previous: Stream
    place: int
    num_left: int
    gone: Ordinals
    num_added: int
    number: int


def open_epoch(stream: Stream, place: int) -> tuple[int, int]:
    """Return the number of the epoch of the clip shown last, and how many clips the epoch has left."""
    if place <= stream.partial_size and stream.partial:
        return stream.first_epoch - 1, stream.partial_size - place
    whole, shown = divmod(place - stream.partial_size, stream.count)
    if shown:
        return stream.first_epoch + whole, stream.count - shown
    return stream.first_epoch + whole - 1, 0


# ── place → clip ────────────────────────────────────────────────────────────────────────────────────────────


def _kept(gone: Ordinals, numbers: Ordinals) -> Ordinals:
    """Return the values at these places in the sequence 0, 1, 2 … without `gone` (sorted)."""
    if not len(gone):
        return numbers
    return numbers + np.searchsorted(gone - np.arange(len(gone)), numbers, side="right")


def number_of_kept(gone: Ordinals, values: Ordinals) -> Ordinals:
    """Return the inverse of `_kept`, for values that are not in `gone`."""
    return values - np.searchsorted(gone, values)


def _partial_key(stream: Stream) -> int:
    assert stream.partial
    return rng.key("lead", stream.seed, stream.name, stream.partial.number, stream.first_epoch)


def _partial_ordinals(stream: Stream, places: Ordinals) -> Ordinals:
    """Return the ordinals at these places of the partial epoch."""
    partial = stream.partial
    assert partial
    if partial.num_added:  # without new clips the epoch keeps its order
        places = rng.permute(stream.partial_size, _partial_key(stream), places)
    left = places < partial.num_left
    ordinals = partial.previous.num_ordinals + places - partial.num_left
    ordinals[left] = ordinals_at(partial.previous, partial.place + _kept(partial.gone, places[left]))
    return ordinals


def _epoch_key(stream: Stream, number: int) -> int:
    """Return the key of the order of whole epoch `number`.

    With fewer clips than two micro-batches, no exchange of clips can keep the end of an epoch and the start
    of the next apart; such a cell keeps one order until a micro-batch and an epoch end together.
    """
    if stream.count < 2 * stream.micro_batch_size:
        number = _first_of_same_order(stream, number)
    return rng.key("pass", stream.seed, stream.name, number)


def _first_of_same_order(stream: Stream, number: int) -> int:
    """Return the last epoch up to this one that begins with a micro-batch, or the first epoch."""
    count, size = stream.count, stream.micro_batch_size
    period = size // math.gcd(count, size)
    begun = number - stream.first_epoch
    for back in range(min(period, begun + 1)):
        if (stream.partial_size + (begun - back) * count) % size == 0:
            return number - back
    return stream.first_epoch


def _permute(stream: Stream, number: int, offsets: Ordinals) -> Ordinals:
    """Return the values (0 … n − 1) at these offsets of epoch `number`, before `_head` moves any clip."""
    key = _epoch_key(stream, number)
    if stream.blocks is None or stream.count < 2 * stream.micro_batch_size:
        return rng.permute(stream.count, key, offsets)
    return shard_blocks.permute(stream.blocks, rng.key("blocks", stream.seed, number), key, offsets)


def _unpermute(stream: Stream, number: int, values: Ordinals) -> Ordinals:
    """Return the offsets at which `_permute` has these values."""
    key = _epoch_key(stream, number)
    if stream.blocks is None or stream.count < 2 * stream.micro_batch_size:
        return rng.unpermute(stream.count, key, values)
    return shard_blocks.unpermute(stream.blocks, rng.key("blocks", stream.seed, number), key, values)


def _head(stream: Stream, number: int) -> Ordinals:
    """Return the first ordinals of an epoch, without a repeat in the micro-batch that spans two epochs.

    That micro-batch takes the last t clips of the previous epoch and the first m − t of this one. Clips of
    the latter that are also among the former change places with the next clips that are not. As n ≥ 2m,
    the first m clips hold enough of these, and the end of the epoch stays as it is. A cell with fewer clips
    keeps its order, so the exchange covers its whole first order after a partial epoch, and no other.
    """
    count, size = stream.count, stream.micro_batch_size
    is_small = count < 2 * size
    begun = number - stream.first_epoch
    if is_small and _first_of_same_order(stream, number) != stream.first_epoch:
        return NONE
    tail_size = stream.partial_size % size if is_small else (stream.partial_size + begun * count) % size
    if is_small and not tail_size:
        return NONE
    head = _kept(stream.dead, _permute(stream, number, np.arange(count if is_small else size)))
    if not tail_size:
        return head
    if begun and not is_small:
        last = np.arange(count - tail_size, count)
        tail = _kept(stream.dead, _permute(stream, number - 1, last))
    else:
        tail = _partial_ordinals(stream, np.arange(stream.partial_size - tail_size, stream.partial_size))
    clashes = np.isin(head, tail)
    cut = size - tail_size
    away = np.flatnonzero(clashes[:cut])
    into = cut + np.flatnonzero(~clashes[cut:])[: len(away)]
    head[away], head[into] = head[into], head[away]
    return head


def _epoch_ordinals(stream: Stream, number: int, offsets: Ordinals) -> Ordinals:
    """Return the ordinals at these offsets (0 … n − 1) of whole epoch `number`."""
    ordinals = _kept(stream.dead, _permute(stream, number, offsets))
    is_small = stream.count < 2 * stream.micro_batch_size
    if is_small or (offsets < stream.micro_batch_size).any():
        head = _head(stream, number)
        early = offsets < len(head)
        ordinals = np.where(early, head[np.where(early, offsets, 0)], ordinals) if early.any() else ordinals
    return ordinals


def _epoch_offsets(stream: Stream, number: int, ordinals: Ordinals) -> Ordinals:
    """Return the offsets of clips in whole epoch `number`."""
    offsets = _unpermute(stream, number, number_of_kept(stream.dead, ordinals))
    head = _head(stream, number)
    if len(head):
        by_ordinal = np.argsort(head)
        at = np.minimum(np.searchsorted(head[by_ordinal], ordinals), len(head) - 1)
        offsets = np.where(head[by_ordinal[at]] == ordinals, by_ordinal[at], offsets)
    return offsets


def epochs_at(stream: Stream, places: Ordinals) -> Ordinals:
    """Return the epoch numbers of these places."""
    if stream.partial is None:
        return stream.first_epoch + places // stream.count
    return (
        stream.first_epoch
        + (places - stream.partial_size) // stream.count * (places >= stream.partial_size)
        - (places < stream.partial_size)
    )


def ordinals_at(stream: Stream, places: Ordinals) -> Ordinals:
    """Return the ordinals of the clips at these places (0 …, in any order)."""
    return _ordinals_in(stream, places, epochs_at(stream, places))


def _ordinals_in(stream: Stream, places: Ordinals, numbers: Ordinals) -> Ordinals:
    """Return the ordinals at these places, which lie in the epochs `numbers`."""
    if len(numbers) and numbers.min() == numbers.max():
        number = int(numbers[0])
        if number < stream.first_epoch:
            return _partial_ordinals(stream, places)
        begin = stream.partial_size + (number - stream.first_epoch) * stream.count
        return _epoch_ordinals(stream, number, places - begin)
    found = np.empty_like(places)
    for number in np.unique(numbers):
        here = numbers == number
        found[here] = _ordinals_in(stream, places[here], numbers[here])
    return found


def places_in_epoch(stream: Stream, number: int, ordinals: Ordinals) -> Ordinals:
    """Return the places at which epoch `number` shows these clips, -1 for a clip that it does not show.

    Epoch `first_epoch` − 1 is the partial one.
    """
    if number >= stream.first_epoch:
        begin = stream.partial_size + (number - stream.first_epoch) * stream.count
        known = (ordinals < stream.num_ordinals) & ~np.isin(ordinals, stream.dead)
        places = np.full(len(ordinals), -1)
        places[known] = begin + _epoch_offsets(stream, number, ordinals[known])
        return places
    partial = stream.partial
    assert partial
    before = (
        places_in_epoch(partial.previous, open_epoch(partial.previous, partial.place)[0], ordinals)
        - partial.place
    )
    is_new = ordinals >= partial.previous.num_ordinals
    values = np.where(is_new, partial.num_left + ordinals - partial.previous.num_ordinals, -1)
    is_left = ~is_new & (before >= 0) & ~np.isin(before, partial.gone)
    values[is_left] = number_of_kept(partial.gone, before[is_left])
    shown = (values >= 0) & (values < stream.partial_size)
    if partial.num_added:
        values[shown] = rng.unpermute(stream.partial_size, _partial_key(stream), values[shown])
    return np.where(shown, values, -1)


# ── queries ─────────────────────────────────────────────────────────────────────────────────────────────────


def micro_batch(stream: Stream, occurrence: int) -> tuple[Ordinals, Ordinals]:
    """Return (ordinals, epoch numbers) of the stream's micro-batch number `occurrence`, each (m,)."""
    places = occurrence * stream.micro_batch_size + np.arange(stream.micro_batch_size)
    numbers = epochs_at(stream, places)
    return _ordinals_in(stream, places, numbers), numbers


def micro_batches(stream: Stream, occurrences: NDArray[np.int64]) -> tuple[Ordinals, Ordinals]:
    """Return (ordinals, epoch numbers) of k of the stream's micro-batches, each (k, m).

    Much cheaper than k calls of `micro_batch`.
    """
    size = stream.micro_batch_size
    places = (occurrences[:, None] * size + np.arange(size)).reshape(-1)
    numbers = epochs_at(stream, places)
    ordinals = _ordinals_in(stream, places, numbers)
    return ordinals.reshape(-1, size), numbers.reshape(-1, size)


def occurrences(stream: Stream, ordinal: int) -> Iterator[int]:
    """Yield the numbers of the micro-batches that hold a clip; endless, unless the clip was removed."""
    one = np.array([ordinal])
    number = stream.first_epoch - (stream.partial is not None)
    while True:
        place = int(places_in_epoch(stream, number, one)[0])
        if place >= 0:
            yield place // stream.micro_batch_size
        elif number >= stream.first_epoch:
            return
        number += 1


def times_shown(stream: Stream, place: int) -> Ordinals:
    """Return how often each ordinal was shown in the first `place` clips of the stream."""
    shown = np.zeros(stream.num_ordinals, dtype=np.int64)
    if stream.partial:
        before = times_shown(stream.partial.previous, stream.partial.place)
        shown[: len(before)] = before
        shown[_partial_ordinals(stream, np.arange(min(place, stream.partial_size)))] += 1
    whole, rest = divmod(max(0, place - stream.partial_size), stream.count)
    shown[_kept(stream.dead, np.arange(stream.count))] += whole
    shown[_epoch_ordinals(stream, stream.first_epoch + whole, np.arange(rest))] += 1
    return shown
