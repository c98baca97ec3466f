"""Likeness as a list of pairs, and the finding of pairs that share a key."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Words = NDArray[np.uint64]

# Entries of one bucket are compared with this many that follow them; a look or a phrase that thousands share
# would otherwise cost the square of their number.
WINDOW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of rows that are alike, each once with `first` < `second`, in order.

    `distance` is float64, 0 for the same; its unit is the kind's. `note` is a small number whose meaning is
    the kind's.
    """

    first: Rows
    second: Rows
    distance: NDArray[np.float64]
    note: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.first)

    def where(self, keep: NDArray[np.bool_]) -> "Pairs":
        return Pairs(
            first=self.first[keep],
            second=self.second[keep],
            distance=self.distance[keep],
            note=self.note[keep],
        )


def pairs_of(first: Rows, second: Rows, distance: NDArray[np.float64], note: NDArray[np.int8]) -> Pairs:
    return Pairs(first=first, second=second, distance=distance, note=note)


NO_PAIRS = pairs_of(
    np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0), np.empty(0, dtype=np.int8)
)


def sorted_unique(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the distinct values in order. (numpy.unique goes by a hash table since 2.3, which is several
    times slower than a sort of 64-bit words.)"""
    ordered = np.sort(values)
    new = np.ones(len(ordered), dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def unique_pairs(first: Rows, second: Rows, count: int) -> tuple[Rows, Rows]:
    """Return each pair of different rows (below `count`) once, the smaller row first, in order."""
    low, high = np.minimum(first, second), np.maximum(first, second)
    joined = sorted_unique((low * count + high)[low != high]).astype(np.int64)
    return joined // max(count, 1), joined % max(count, 1)


def share_a_key(keys: Words, rest: Words, key_bits: int) -> tuple[Rows, Rows, int]:
    """Return (first, second) entries whose `keys` (below 2^key_bits) are equal, and how many pairs were not
    looked at because their bucket holds more than WINDOW others.

    Within a bucket the entries stand in the order of `rest` (its highest bits), so that those compared are
    the likeliest.
    """
    count = len(keys)
    index_bits = max(count - 1, 1).bit_length()
    rest_bits = 64 - key_bits - index_bits
    assert rest_bits >= 0, "too many entries for these keys"
    packed = (keys << np.uint64(64 - key_bits)) | np.arange(count, dtype=np.uint64)
    if rest_bits:
        packed |= (rest >> np.uint64(64 - rest_bits)) << np.uint64(index_bits)
    packed.sort()
    index = (packed & np.uint64((1 << index_bits) - 1)).astype(np.int64)
    bucket = packed >> np.uint64(64 - key_bits)
    here = np.arange(count, dtype=np.int64)
    first: list[Rows] = []
    second: list[Rows] = []
    for step in range(1, WINDOW + 1):
        here = here[here < count - step]
        here = here[bucket[here] == bucket[here + step]]
        if not len(here):
            return _joined(first), _joined(second), 0
        first.append(index[here])
        second.append(index[here + step])
    ends = np.flatnonzero(np.append(bucket[1:] != bucket[:-1], True))
    beyond = np.maximum(np.diff(ends, prepend=-1) - 1 - WINDOW, 0)
    return _joined(first), _joined(second), int(np.sum(beyond * (beyond + 1) // 2))


def _joined(parts: list[Rows]) -> Rows:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
