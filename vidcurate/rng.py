"""Random numbers as hashes of a name, independent of earlier draws.

Every random choice of the data pipeline (which clips a bucket keeps, an epoch's order, a start frame, the
noise of a step) is a hash of the name of the choice. So workers, ranks, restarts and other choices cannot
shift it. The mixing function is the finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), which hashes
ids 8 bytes at a time. Arithmetic is modulo 2^64; arrays are numpy uint64, scalars Python ints.
"""

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vidcurate.errors import InputError

Words = NDArray[np.uint64]
T = TypeVar("T")

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_ROWS_PER_CHUNK = 1 << 18  # with 1 << 16 threads wait for the GIL longer than they compute
_CHUNKS_FOR_THREADS = 8
_ROWS_TO_PACK = 1 << 16
MOST_THREADS = min(4, len(os.sched_getaffinity(0)))


def mix(words: Words) -> Words:
    """Mix the words with a bijection of the 64-bit numbers."""
    mixed = words + _STEP
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MULTIPLY_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MULTIPLY_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def key(*parts: int | str) -> int:
    """Hash the parts to 64 bits; ("1", 2), (1, 2) and (12,) all differ."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def scale_to_range(number: int, limit: int) -> int:
    """Scale the 64-bit `number` to 0 … limit − 1."""
    return (number * limit) >> 64


def uniform(words: Words, draw_key: int) -> NDArray[np.float64]:
    """Return a uniform number in [0, 1) per word, different for each key."""
    return (mix(words ^ np.uint64(draw_key)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def id_hashes(ids: Any) -> Words:
    """Return a 64-bit hash of each id, uint64 (n,).

    `ids` is a sequence of strings or a pyarrow string array (millions per second). The hash of an id depends
    on its UTF-8 bytes alone. Raises InputError for a missing id.
    """
    if isinstance(ids, pa.ChunkedArray):
        parts = [id_hashes(chunk) for chunk in ids.chunks]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)
    if not isinstance(ids, pa.Array):
        ids = pa.array(ids, type=pa.large_string())
    if ids.null_count:
        raise InputError(f"{ids.null_count} of {len(ids)} clips have no id; every clip needs one.")
    if ids.type not in (pa.string(), pa.large_string()):  # a cast loads pyarrow.compute: 0.05 s
        ids = ids.cast(pa.large_string())
    kind: Any = np.int32 if ids.type == pa.string() else np.int64
    count = len(ids)
    hashes = np.empty(count, dtype=np.uint64)
    if count == 0:
        return hashes
    buffers = ids.buffers()
    ends = np.frombuffer(buffers[1], dtype=kind)[ids.offset : ids.offset + count + 1]
    data = np.frombuffer(buffers[2], dtype=np.uint8) if buffers[2] else np.empty(0, dtype=np.uint8)

    def fill(rows: slice) -> None:
        chunk = ends[rows.start : rows.stop + 1].astype(np.int64)
        hashes[rows] = _hash_chunk(data[chunk[0] : chunk[-1]], chunk - chunk[0])

    by_chunks(count, fill)
    return hashes


def by_chunks(count: int, work: Callable[[slice], T]) -> list[T]:
    """Return `work` of each chunk of `count` rows, in order, in a few threads when there are many chunks.

    For numpy work, which releases the GIL; a chunk's temporaries take some megabytes.
    """
    firsts = range(0, count, _ROWS_PER_CHUNK)
    stretches = [slice(first, min(count, first + _ROWS_PER_CHUNK)) for first in firsts]
    if len(stretches) < _CHUNKS_FOR_THREADS:
        return list(map(work, stretches))
    with ThreadPoolExecutor(MOST_THREADS) as threads:
        return list(threads.map(work, stretches))


def _hash_chunk(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Words:
    padded = np.zeros(len(data) + 8, dtype=np.uint8)
    padded[: len(data)] = data
    # Overlapping view: the 8 bytes at any offset as one word.
    words: Words = np.ndarray(len(data) + 1, dtype="<u8", buffer=padded.data, strides=(1,))
    starts, lengths = ends[:-1], np.diff(ends)
    hashes = mix(lengths.astype(np.uint64))
    open_rows: Any = slice(None)
    for done in range(0, int(lengths.max(initial=0)), 8):
        left = lengths - done
        if left.min() <= 0:
            open_rows = np.flatnonzero(left > 0)
        left = left[open_rows]
        word = words[starts[open_rows] + done].astype(np.uint64)
        unused = np.maximum(8 - left, 0).astype(np.uint64) * np.uint64(8)
        word = (word << unused) >> unused if unused.any() else word
        hashes[open_rows] = mix(hashes[open_rows] ^ word)
    return hashes


def sort_by_hash(hashes: Words) -> NDArray[np.int64]:
    """Return the argsort of the hashes; equal hashes in any order.

    Sorts the hashes with their low bits replaced by their indices: several times as fast as numpy's argsort.
    Afterwards sorts again where the remaining high bits are equal.
    """
    if len(hashes) < _ROWS_TO_PACK:
        return np.argsort(hashes)
    low = np.uint64((1 << (len(hashes) - 1).bit_length()) - 1)
    packed = hashes & ~low
    packed |= np.arange(len(hashes), dtype=np.uint64)
    packed.sort()
    places = (packed & low).astype(np.int64)
    packed &= ~low
    same = np.flatnonzero(packed[1:] == packed[:-1])
    if len(same):
        among = np.union1d(same, same + 1)
        places[among] = places[among][np.argsort(hashes[places[among]])]
    return places


def hash_bytes(data: bytes | memoryview) -> str:
    """Return the hash of these bytes, 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def hash_text(texts: Sequence[str]) -> str:
    """Return the hash of these texts in this order, 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


# ── permutations ────────────────────────────────────────────────────────────────────────────────────────────

SMALL = 4096  # largest permutation made by sorting: a Feistel network is uneven on small ranges
_ROUNDS = 8


@lru_cache(maxsize=512)
def _small_permutation(count: int, draw_key: int) -> NDArray[np.int64]:
    order = np.argsort(mix(np.arange(count, dtype=np.uint64) ^ np.uint64(draw_key)), kind="stable")
    order.flags.writeable = False
    return order


def permute(count: int, draw_key: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values at these positions of the permutation of 0 … count − 1 with this key.

    The cost depends on the number of positions, not on `count`: a Feistel network over a grid of about
    sqrt(count) x sqrt(count), with cycle walking for values outside (Black & Rogaway, CT-RSA 2002).
    """
    if count <= SMALL:
        return _small_permutation(count, draw_key)[positions]
    return _cycle_walk(count, draw_key, positions, range(_ROUNDS))


def unpermute(count: int, draw_key: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of these values in `permute`: its inverse."""
    if count <= SMALL:
        return np.argsort(_small_permutation(count, draw_key), kind="stable")[values]
    return _cycle_walk(count, draw_key, values, range(_ROUNDS - 1, -1, -1))


def _cycle_walk(count: int, draw_key: int, start: NDArray[np.int64], rounds: range) -> NDArray[np.int64]:
    tall = math.isqrt(count - 1) + 1
    wide = -(-count // tall)
    backwards = rounds.step < 0
    keys = mix(np.arange(_ROUNDS, dtype=np.uint64) * _STEP + np.uint64(draw_key))
    cells = start.astype(np.uint64)
    outside: Any = np.arange(len(cells))
    while len(outside):
        high, low = np.divmod(cells[outside], np.uint64(wide))
        for number in rounds:
            if number % 2 == 0:
                high = _rotate(high, mix(low ^ keys[number]), tall, backwards)
            else:
                low = _rotate(low, mix(high ^ keys[number]), wide, backwards)
        cells[outside] = high * np.uint64(wide) + low
        outside = outside[cells[outside] >= count]
    return cells.astype(np.int64)


def _rotate(values: Words, by: Words, size: int, backwards: bool) -> Words:
    by = by % np.uint64(size)
    return (values + (np.uint64(size) - by if backwards else by)) % np.uint64(size)
