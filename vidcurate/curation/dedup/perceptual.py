"""Perceptual duplicates: hashes of five frames compared in any orientation.

Two clips are duplicates when at least `min_frames` of their five frames are within `max_bits` of each other,
all in one orientation. The distance of a pair is that of its `min_frames`-th best frame, so that a black or
title frame at one end neither creates nor hides a duplicate. A frame whose hash has few bits set (black, one
colour) is uninformative and is not compared.

A million clips make 5e11 pairs, so pairs are found by keys: a hash in canonical orientation is split into six
parts of ten bits, and two clips are compared when two parts of one frame are equal (bit sampling after Indyk
and Motwani 1998; multi-index hashing after Norouzi et al. 2012). docs/dedup.md has what this misses.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.dedup.orientations import MEAN, ORIENTATIONS, transposed, turned, without_mirrors
from vidcurate.curation.dedup.pairs import NO_PAIRS, Pairs, Rows, Words, pairs_of, share_a_key, unique_pairs
from vidcurate.executor.map_clips import Progress, no_progress

NAMES = tuple(ORIENTATIONS)
_PARTS, _PART_BITS = 6, 10
_SILENT = 99  # distance of an uninformative frame: more than any other
_PAIRS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceptualPairs:
    """Perceptual pairs; `pairs.note` is the orientation of `second` as an index into NAMES.

    `silent_rows` have too few informative frames; `comparisons_skipped`: too many clips share a key.
    """

    pairs: Pairs
    silent_rows: int
    comparisons_skipped: int


def says_something(hashes: Words, min_set_bits: int) -> NDArray[np.bool_]:
    """Return which hashes have at least `min_set_bits` bits set, and as many not set."""
    set_bits = np.bitwise_count(hashes & ~MEAN)
    speaks: NDArray[np.bool_] = (set_bits >= min_set_bits) & (set_bits <= 63 - min_set_bits)
    return speaks


def _parts(hashes: Words) -> list[Words]:
    # Bits 0, 1, 8 and 9 are constant in canonical orientation; the other 60 form the parts.
    packed = (hashes >> np.uint64(10) << np.uint64(6)) | (hashes >> np.uint64(2) & np.uint64(63))
    mask = np.uint64((1 << _PART_BITS) - 1)
    return [packed >> np.uint64(_PART_BITS * number) & mask for number in range(_PARTS)]


def _candidates(hashes: Words, speaks: NDArray[np.bool_], max_bits: int) -> tuple[Rows, Rows, int]:
    """Return the pairs of rows of one frame (hashes is (N,)) whose distance may be within `max_bits`."""
    rows = np.flatnonzero(speaks)
    plain = hashes[rows] & ~MEAN
    entries = np.concatenate([without_mirrors(plain), without_mirrors(transposed(plain))])
    parts = _parts(entries)
    first: list[Rows] = []
    second: list[Rows] = []
    skipped = 0
    for one, other in itertools.combinations(range(_PARTS), 2):
        keys = parts[one] << np.uint64(_PART_BITS) | parts[other]
        rest = np.zeros_like(keys)
        for number in range(_PARTS):
            if number not in (one, other):
                rest = rest << np.uint64(_PART_BITS) | parts[number]
        a, b, beyond = share_a_key(keys, rest << np.uint64(24), 2 * _PART_BITS)
        # A wrong sign among the three that distinguish mirror images flips a quarter of the bits: another
        # frame finds such a pair.
        near = np.bitwise_count(entries[a] ^ entries[b]) <= max_bits
        first.append(a[near] % len(rows))
        second.append(b[near] % len(rows))
        skipped += beyond
    low, high = unique_pairs(np.concatenate(first), np.concatenate(second), len(rows))
    return rows[low], rows[high], skipped


def frame_distances(a: Words, b: Words, speaks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of differing bits, _SILENT where either hash is uninformative; all (P, F)."""
    return np.where(speaks, np.bitwise_count((a ^ b) & ~MEAN), _SILENT).astype(np.int64)


def measure(
    hashes: Words,
    speaks: NDArray[np.bool_],
    first: Rows,
    second: Rows,
    *,
    min_frames: int,
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return (distance in bits, index of the orientation in NAMES) of pairs of rows of `hashes` (N, F)."""
    a, b = hashes[first], hashes[second]
    both = speaks[first] & speaks[second]
    best = np.full(len(first), float(_SILENT))
    note = np.zeros(len(first), dtype=np.int8)
    for number, name in enumerate(NAMES):
        distances = np.sort(frame_distances(a, turned(b, name), both), axis=1)[:, min_frames - 1]
        better = distances < best
        best[better] = distances[better]
        note[better] = number
    return best, note


def find_perceptual_pairs(
    hashes: Words,
    *,
    max_bits: int,
    min_frames: int,
    min_set_bits: int,
    progress: Progress = no_progress,
) -> PerceptualPairs:
    """Return the duplicate pairs of rows of `hashes` (uint64 (N, F), 0 for no frame)."""
    speaks = says_something(hashes, min_set_bits)
    silent = np.sum(speaks, axis=1) < min_frames
    speaks[silent] = False
    count, frames = hashes.shape
    firsts: list[Rows] = []
    seconds: list[Rows] = []
    skipped = 0
    for frame in range(frames):
        a, b, beyond = _candidates(hashes[:, frame], speaks[:, frame], max_bits)
        firsts.append(a)
        seconds.append(b)
        skipped += beyond
        progress(frame + 1, frames, "frames")
    found = [NO_PAIRS]
    first, second = unique_pairs(np.concatenate(firsts), np.concatenate(seconds), count)
    for start in range(0, len(first), _PAIRS_AT_ONCE):
        a, b = first[start : start + _PAIRS_AT_ONCE], second[start : start + _PAIRS_AT_ONCE]
        distance, note = measure(hashes, speaks, a, b, min_frames=min_frames)
        found.append(pairs_of(a, b, distance, note).where(distance <= max_bits))
    return PerceptualPairs(
        pairs=pairs_of(
            np.concatenate([part.first for part in found]),
            np.concatenate([part.second for part in found]),
            np.concatenate([part.distance for part in found]),
            np.concatenate([part.note for part in found]),
        ),
        silent_rows=int(silent.sum()),
        comparisons_skipped=skipped,
    )
