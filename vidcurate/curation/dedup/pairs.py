"""Duplicate pairs, and search for pairs that share a key."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Words = NDArray[np.uint64]

# Each entry of a bucket is compared with this many that follow it: a hash or phrase shared by thousands of
# clips would otherwise cost the square of their number.
WINDOW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of similar rows, each once with `first` < `second`, in order.

    `distance` is float64, 0 for equal rows; its unit and the meaning of `note` (a small number) depend on the
    kind.
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
    """Return the distinct values in order.

    numpy.unique uses a hash table since 2.3, several times slower than a sort of 64-bit words.
    """
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
    """Return (first, second, skipped): entries with equal `keys` (below 2^key_bits), and skipped pairs.

    In a bucket of more than WINDOW entries, pairs further apart are skipped. The entries are sorted by `rest`
    (its highest bits), so that the likeliest pairs are compared.
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
