"""The stream of one cell: its clips in exact passes, without end, each pass in an order of its own.

A clip is an ordinal. A stream of n clips has n places a pass, and place p is offset p mod n of pass p div n.
Micro-batches of m clips are cut from the stream one after the other, so one of them may hold the end of a
pass and the start of the next; it never holds a clip twice. Nothing is iterated: any place costs the same.

Clips that are added, clips that are removed and another m make another stream of it, `changed`, from the
place on where the change came. It begins with a lead: what the open pass had left and what is new, mixed.
So nothing is shown again before all that is unseen was shown once, and what was shown before stays as it was.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.sampler import shard_blocks
from vidcurate.sampler.shard_blocks import Blocks

Ordinals = NDArray[np.int64]

NONE: Ordinals = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """`count` clips (n), read in micro-batches of `micro_batch_size` (m ≤ n); `seed` and `name` make it.

    Its clips are the ordinals from 0 on without the `dead` ones (sorted). Places count from the beginning or,
    with a `lead`, from the change; whole passes are numbered from `first_pass` on. With `blocks` a whole pass
    goes through these, a few at a time, unless it has fewer clips than two micro-batches.
    """

    seed: int
    name: str
    count: int
    micro_batch_size: int
    dead: Ordinals = field(default_factory=lambda: NONE)
    lead: "Lead | None" = None
    first_pass: int = 0
    blocks: Blocks | None = None

    @property
    def num_ordinals(self) -> int:
        """How many ordinals there have ever been."""
        return self.count + len(self.dead)

    @property
    def lead_size(self) -> int:
        return self.lead.num_left + self.lead.num_added if self.lead else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lead:
    """The pass in which a change came, from the change on.

    `cut`: the stream before, of which `place` clips had been shown. Its open pass had `num_left` more of them
    to show, without those that were removed; these stood at the places `gone` (sorted, counted from `place`).
    `num_added` ordinals are new. `number` tells the changes of one cell apart.
    """

    cut: Stream
    place: int
    num_left: int
    gone: Ordinals
    num_added: int
    number: int


def changed(
    stream: Stream, place: int, *, num_added: int, removed: Ordinals, micro_batch_size: int
) -> Stream:
    """Return the stream after a change that came when `place` clips had been shown, in whole micro-batches.

    The clips added get the next ordinals; `removed` are ordinals that the stream has. At least one clip must
    be left, and `micro_batch_size` of them.
    """
    dead = np.union1d(stream.dead, removed)
    count = stream.num_ordinals + num_added - len(dead)
    blocks = stream.blocks and stream.blocks.changed(_number_of_kept(stream.dead, removed), num_added)
    after = Stream(
        seed=stream.seed,
        name=stream.name,
        count=count,
        micro_batch_size=micro_batch_size,
        dead=dead,
        blocks=blocks,
    )
    if place == 0 and stream.lead is None:  # nothing was shown: there is no open pass
        return after
    open_pass, rest = _open_pass(stream, place)
    gone = np.sort(_places_in_pass(stream, open_pass, removed)) - place
    gone = gone[gone >= 0]
    lead = Lead(
        cut=stream,
        place=place,
        num_left=rest - len(gone),
        gone=gone,
        num_added=num_added,
        number=stream.lead.number + 1 if stream.lead else 1,
    )
    return replace(after, lead=lead, first_pass=open_pass + 1)


def _open_pass(stream: Stream, place: int) -> tuple[int, int]:
    """Return the number of the pass of the clip shown last, and how many clips it has left."""
    if place <= stream.lead_size and stream.lead:
        return stream.first_pass - 1, stream.lead_size - place
    whole, shown = divmod(place - stream.lead_size, stream.count)
    if shown:
        return stream.first_pass + whole, stream.count - shown
    return stream.first_pass + whole - 1, 0


# ── which clip stands where ─────────────────────────────────────────────────────────────────────────────────


def _kept(gone: Ordinals, numbers: Ordinals) -> Ordinals:
    """Return, counting from 0 and leaving out `gone` (sorted), which number comes at these places."""
    if not len(gone):
        return numbers
    return numbers + np.searchsorted(gone - np.arange(len(gone)), numbers, side="right")


def _number_of_kept(gone: Ordinals, values: Ordinals) -> Ordinals:
    """Return the inverse of `_kept`, for values that are not gone."""
    return values - np.searchsorted(gone, values)


def _lead_key(stream: Stream) -> int:
    assert stream.lead
    return rng.key("lead", stream.seed, stream.name, stream.lead.number, stream.first_pass)


def _lead_ordinals(stream: Stream, places: Ordinals) -> Ordinals:
    """Return the ordinals at these places of the lead."""
    lead = stream.lead
    assert lead
    if lead.num_added:  # without new clips the pass goes on as it was
        places = rng.permute(stream.lead_size, _lead_key(stream), places)
    left = places < lead.num_left
    ordinals = lead.cut.num_ordinals + places - lead.num_left
    ordinals[left] = ordinals_at(lead.cut, lead.place + _kept(lead.gone, places[left]))
    return ordinals


def _pass_key(stream: Stream, number: int) -> int:
    """Return the key of the order of whole pass `number`.

    With fewer clips than two micro-batches the end of a pass and the start of the next cannot be kept apart
    by moving clips; such a cell keeps one order until a micro-batch and a pass end together.
    """
    if stream.count < 2 * stream.micro_batch_size:
        number = _first_of_same_order(stream, number)
    return rng.key("pass", stream.seed, stream.name, number)


def _first_of_same_order(stream: Stream, number: int) -> int:
    """Return the last pass up to this one that begins with a micro-batch, or the first one of all."""
    count, size = stream.count, stream.micro_batch_size
    period = size // math.gcd(count, size)
    begun = number - stream.first_pass
    for back in range(min(period, begun + 1)):
        if (stream.lead_size + (begun - back) * count) % size == 0:
            return number - back
    return stream.first_pass


def _permute(stream: Stream, number: int, offsets: Ordinals) -> Ordinals:
    """Return what pass `number` has at these offsets, counted among the n; micro-batches not looked at."""
    key = _pass_key(stream, number)
    if stream.blocks is None or stream.count < 2 * stream.micro_batch_size:
        return rng.permute(stream.count, key, offsets)
    return shard_blocks.permute(stream.blocks, rng.key("blocks", stream.seed, number), key, offsets)


def _unpermute(stream: Stream, number: int, values: Ordinals) -> Ordinals:
    """Return the offsets at which `_permute` has these values."""
    key = _pass_key(stream, number)
    if stream.blocks is None or stream.count < 2 * stream.micro_batch_size:
        return rng.unpermute(stream.count, key, values)
    return shard_blocks.unpermute(stream.blocks, rng.key("blocks", stream.seed, number), key, values)


def _head(stream: Stream, number: int) -> Ordinals:
    """Return the first ordinals of a pass, none of which the straddling micro-batch already has.

    That micro-batch takes the last t clips of the pass before and the first m − t of this one. Those of the
    latter that are among the former change places with the next ones that are not. As n ≥ 2m, there are
    enough of these within the first m, and the end of the pass stays as it is. A cell with fewer clips keeps
    its order, so this is done to its first order only, after a lead, and within all of it.
    """
    count, size = stream.count, stream.micro_batch_size
    is_small = count < 2 * size
    begun = number - stream.first_pass
    if is_small and _first_of_same_order(stream, number) != stream.first_pass:
        return NONE
    tail_size = stream.lead_size % size if is_small else (stream.lead_size + begun * count) % size
    if is_small and not tail_size:
        return NONE
    head = _kept(stream.dead, _permute(stream, number, np.arange(count if is_small else size)))
    if not tail_size:
        return head
    if begun and not is_small:
        last = np.arange(count - tail_size, count)
        tail = _kept(stream.dead, _permute(stream, number - 1, last))
    else:
        tail = _lead_ordinals(stream, np.arange(stream.lead_size - tail_size, stream.lead_size))
    clashes = np.isin(head, tail)
    cut = size - tail_size
    away = np.flatnonzero(clashes[:cut])
    into = cut + np.flatnonzero(~clashes[cut:])[: len(away)]
    head[away], head[into] = head[into], head[away]
    return head


def _pass_ordinals(stream: Stream, number: int, offsets: Ordinals) -> Ordinals:
    """Return the ordinals at these offsets (0 … n − 1) of whole pass `number`."""
    ordinals = _kept(stream.dead, _permute(stream, number, offsets))
    is_small = stream.count < 2 * stream.micro_batch_size
    if is_small or (offsets < stream.micro_batch_size).any():
        head = _head(stream, number)
        early = offsets < len(head)
        ordinals = np.where(early, head[np.where(early, offsets, 0)], ordinals) if early.any() else ordinals
    return ordinals


def _pass_offsets(stream: Stream, number: int, ordinals: Ordinals) -> Ordinals:
    """Return the offsets of clips in whole pass `number`."""
    offsets = _unpermute(stream, number, _number_of_kept(stream.dead, ordinals))
    head = _head(stream, number)
    if len(head):
        by_ordinal = np.argsort(head)
        at = np.minimum(np.searchsorted(head[by_ordinal], ordinals), len(head) - 1)
        offsets = np.where(head[by_ordinal[at]] == ordinals, by_ordinal[at], offsets)
    return offsets


def passes_at(stream: Stream, places: Ordinals) -> Ordinals:
    """Return the number of the pass in which these places are."""
    if stream.lead is None:
        return stream.first_pass + places // stream.count
    return (
        stream.first_pass
        + (places - stream.lead_size) // stream.count * (places >= stream.lead_size)
        - (places < stream.lead_size)
    )


def ordinals_at(stream: Stream, places: Ordinals) -> Ordinals:
    """Return the ordinals of the clips at these places (0 …), in any order."""
    return _ordinals_in(stream, places, passes_at(stream, places))


def _ordinals_in(stream: Stream, places: Ordinals, numbers: Ordinals) -> Ordinals:
    """Return the ordinals at these places, which are in passes of these numbers."""
    if len(numbers) and numbers.min() == numbers.max():
        number = int(numbers[0])
        if number < stream.first_pass:
            return _lead_ordinals(stream, places)
        begin = stream.lead_size + (number - stream.first_pass) * stream.count
        return _pass_ordinals(stream, number, places - begin)
    found = np.empty_like(places)
    for number in np.unique(numbers):
        here = numbers == number
        found[here] = _ordinals_in(stream, places[here], numbers[here])
    return found


def _places_in_pass(stream: Stream, number: int, ordinals: Ordinals) -> Ordinals:
    """Return the places at which pass `number` shows these clips, -1 for one that it does not show.

    Pass `first_pass` − 1 is the lead.
    """
    if number >= stream.first_pass:
        begin = stream.lead_size + (number - stream.first_pass) * stream.count
        known = (ordinals < stream.num_ordinals) & ~np.isin(ordinals, stream.dead)
        places = np.full(len(ordinals), -1)
        places[known] = begin + _pass_offsets(stream, number, ordinals[known])
        return places
    lead = stream.lead
    assert lead
    before = _places_in_pass(lead.cut, _open_pass(lead.cut, lead.place)[0], ordinals) - lead.place
    is_new = ordinals >= lead.cut.num_ordinals
    values = np.where(is_new, lead.num_left + ordinals - lead.cut.num_ordinals, -1)
    is_left = ~is_new & (before >= 0) & ~np.isin(before, lead.gone)
    values[is_left] = _number_of_kept(lead.gone, before[is_left])
    shown = (values >= 0) & (values < stream.lead_size)
    if lead.num_added:
        values[shown] = rng.unpermute(stream.lead_size, _lead_key(stream), values[shown])
    return np.where(shown, values, -1)


# ── asked ───────────────────────────────────────────────────────────────────────────────────────────────────


def micro_batch(stream: Stream, occurrence: int) -> tuple[Ordinals, Ordinals]:
    """Return (ordinals, pass numbers) of the stream's micro-batch number `occurrence`, each (m,)."""
    places = occurrence * stream.micro_batch_size + np.arange(stream.micro_batch_size)
    numbers = passes_at(stream, places)
    return _ordinals_in(stream, places, numbers), numbers


def micro_batches(stream: Stream, occurrences: NDArray[np.int64]) -> tuple[Ordinals, Ordinals]:
    """Return (ordinals, pass numbers) of k of the stream's micro-batches, each (k, m).

    For many it costs a fraction of asking for each.
    """
    size = stream.micro_batch_size
    places = (occurrences[:, None] * size + np.arange(size)).reshape(-1)
    numbers = passes_at(stream, places)
    ordinals = _ordinals_in(stream, places, numbers)
    return ordinals.reshape(-1, size), numbers.reshape(-1, size)


def occurrences(stream: Stream, ordinal: int) -> Iterator[int]:
    """Yield the numbers of the micro-batches that hold a clip; without end, unless it is dead."""
    one = np.array([ordinal])
    number = stream.first_pass - (stream.lead is not None)
    while True:
        place = int(_places_in_pass(stream, number, one)[0])
        if place >= 0:
            yield place // stream.micro_batch_size
        elif number >= stream.first_pass:
            return
        number += 1


def times_shown(stream: Stream, place: int) -> Ordinals:
    """Return how often each ordinal has been shown when `place` clips of the stream have."""
    shown = np.zeros(stream.num_ordinals, dtype=np.int64)
    if stream.lead:
        before = times_shown(stream.lead.cut, stream.lead.place)
        shown[: len(before)] = before
        shown[_lead_ordinals(stream, np.arange(min(place, stream.lead_size)))] += 1
    whole, rest = divmod(max(0, place - stream.lead_size), stream.count)
    shown[_kept(stream.dead, np.arange(stream.count))] += whole
    shown[_pass_ordinals(stream, stream.first_pass + whole, np.arange(rest))] += 1
    return shown
