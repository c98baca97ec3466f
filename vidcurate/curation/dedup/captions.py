"""Caption duplicates: MinHash over word trigrams, then exact Jaccard overlap.

A caption is a set of runs of three words (Broder 1997) of lower-case letters and digits; in scripts without
spaces each character is a word. The signature of 128 minima is split into bands, and captions that share a
band are compared in full: the distance is 1 - Jaccard of their runs. The number of bands follows from the
threshold: a pair exactly at the threshold is found with a probability of at least 0.99.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.dedup.pairs import (
    NO_PAIRS,
    Pairs,
    Rows,
    Words,
    pairs_of,
    share_a_key,
    sorted_unique,
    unique_pairs,
)
from vidcurate.executor.map_clips import Progress, no_progress

HASHES = 128
_RUN = 3
_ROWS_PER_SLICE = 65_536
_RUNS_AT_ONCE = 1 << 16  # small enough for the cache
_PAIRS_AT_ONCE = 1 << 16
# In scripts without spaces each character is a word.
_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = rf"[{_NO_SPACES}]|[\p{{L}}\p{{M}}\p{{N}}&&[^{_NO_SPACES}]]+"

Halves = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Hashed runs of words: those of caption c are `hashes[ends[c] : ends[c + 1]]`."""

    hashes: Words
    ends: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionPairs:
    """Pairs of rows whose captions overlap, and the number of skipped comparisons (see `share_a_key`)."""

    pairs: Pairs
    comparisons_skipped: int


def _word_hash(word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def runs(captions: pl.Series) -> Runs:
    """Return the runs of three words of each caption (String); a shorter caption is one run, null none."""
    words = captions.fill_null("").str.to_lowercase().str.extract_all(WORD)
    lengths = words.list.len().to_numpy().astype(np.int64)
    encoded = words.list.explode(keep_nulls=False, empty_as_null=False).to_arrow().dictionary_encode()
    distinct = np.array([_word_hash(word) for word in encoded.dictionary.to_pylist()], dtype=np.uint64)
    flat = distinct[encoded.indices.to_numpy()] if len(distinct) else np.empty(0, dtype=np.uint64)
    counts = np.where(lengths >= _RUN, lengths - _RUN + 1, np.minimum(lengths, 1))
    ends = np.concatenate([[0], np.cumsum(counts)])
    begins = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    at = np.repeat(begins - ends[:-1], counts) + np.arange(ends[-1])
    last = np.repeat(begins + lengths - 1, counts)
    mixed = np.zeros(len(at), dtype=np.uint64)
    for step in range(_RUN):
        place = np.minimum(at + step, last)  # a caption of one or two words repeats its last
        mixed = (mixed ^ flat[place]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return Runs(hashes=mixed, ends=ends)


def _multipliers() -> tuple[Halves, Halves]:
    draw = np.random.default_rng(20_251_121)  # fixed: the same captions give the same signatures
    factors = draw.integers(0, 2**31, HASHES, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return factors, draw.integers(0, 2**32, HASHES, dtype=np.uint32)


def signatures(found: Runs) -> Halves:
    """Return the MinHash signatures, uint32 (captions, HASHES); all ones without runs."""
    factors, offsets = _multipliers()
    count = len(found.ends) - 1
    result = np.full((count, HASHES), 2**32 - 1, dtype=np.uint32)
    spoken = np.flatnonzero(np.diff(found.ends))
    starts = found.ends[:-1][spoken]
    short = (found.hashes >> np.uint64(32)).astype(np.uint32)
    first = 0
    while first < len(spoken):
        begin = starts[first]
        last = max(first + 1, int(np.searchsorted(starts, begin + _RUNS_AT_ONCE)))
        end = starts[last] if last < len(spoken) else len(short)
        piece, places = short[begin:end], starts[first:last] - begin
        block = np.empty((HASHES, last - first), dtype=np.uint32)
        for number in range(HASHES):
            np.minimum.reduceat(piece * factors[number] + offsets[number], places, out=block[number])
        result[spoken[first:last]] = block.T
        first = last
    return result


def bands_for(threshold: float) -> tuple[int, int]:
    """Return (bands, rows per band): the widest bands that find a pair at `threshold` with 0.99 or more."""
    for rows in range(32, 1, -1):
        bands = HASHES // rows
        if 1 - (1 - threshold**rows) ** bands >= 0.99:
            return bands, rows
    return HASHES, 1


def overlap(found: Runs, first: Rows, second: Rows) -> NDArray[np.float64]:
    """Return the Jaccard overlap of pairs of captions (at most 2^16); 0 when both are empty."""
    sizes = np.diff(found.ends)
    sides = []
    for rows in (first, second):
        lengths = sizes[rows]
        begin = np.repeat(found.ends[rows] - (np.cumsum(lengths) - lengths), lengths)
        pair = np.repeat(np.arange(len(rows), dtype=np.uint64), lengths)
        # Sort key: 16 bits of the pair, 48 bits of the hash.
        keys = pair << np.uint64(48) | found.hashes[begin + np.arange(len(begin))] >> np.uint64(16)
        sides.append(sorted_unique(keys))
    both = np.sort(np.concatenate(sides))
    in_both = both[1:][both[1:] == both[:-1]]
    common = np.bincount((in_both >> np.uint64(48)).astype(np.int64), minlength=len(first))
    union = np.bincount((both >> np.uint64(48)).astype(np.int64), minlength=len(first)) - common
    share: NDArray[np.float64] = np.divide(common, union, out=np.zeros(len(first)), where=union > 0)
    return share


def _band_keys(part: Halves) -> Words:
    mixed = np.zeros(len(part), dtype=np.uint64)
    for column in range(part.shape[1]):
        mixed = (mixed ^ part[:, column]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def find_caption_pairs(
    captions: pl.Series, threshold: float, *, progress: Progress = no_progress
) -> CaptionPairs:
    """Return the pairs of rows of `captions` (String) whose runs overlap by `threshold` or more (Jaccard)."""
    count = len(captions)
    marks = np.empty((count, HASHES), dtype=np.uint32)
    speaks = np.zeros(count, dtype=np.bool_)
    for start in range(0, count, _ROWS_PER_SLICE):
        part = runs(captions[start : start + _ROWS_PER_SLICE])
        marks[start : start + _ROWS_PER_SLICE] = signatures(part)
        speaks[start : start + _ROWS_PER_SLICE] = np.diff(part.ends) > 0
        progress(min(start + _ROWS_PER_SLICE, count), count, "captions")
    rows = np.flatnonzero(speaks)
    marks = marks[rows] if len(rows) < count else marks
    bands, width = bands_for(threshold)
    # The share of equal minima estimates the overlap with a standard deviation of 0.035 at 0.8; pairs more
    # than four deviations below the threshold are not compared in full.
    least = (threshold - 0.15) * HASHES
    first: list[Rows] = []
    second: list[Rows] = []
    skipped = 0
    index_bits = max(len(rows) - 1, 1).bit_length()
    for band in range(bands):
        keys = _band_keys(marks[:, band * width : (band + 1) * width])
        key_bits = min(64 - index_bits, 40)
        a, b, beyond = share_a_key(keys >> np.uint64(64 - key_bits), np.zeros_like(keys), key_bits)
        for begin in range(0, len(a), _PAIRS_AT_ONCE):
            piece = slice(begin, begin + _PAIRS_AT_ONCE)
            alike = np.count_nonzero(marks[a[piece]] == marks[b[piece]], axis=1) >= least
            first.append(a[piece][alike])
            second.append(b[piece][alike])
        skipped += beyond
    if not first:
        return CaptionPairs(pairs=NO_PAIRS, comparisons_skipped=skipped)
    low, high = unique_pairs(np.concatenate(first), np.concatenate(second), len(rows))
    low, high = rows[low], rows[high]
    return CaptionPairs(pairs=_measured(captions, low, high, threshold), comparisons_skipped=skipped)


def _measured(captions: pl.Series, low: Rows, high: Rows, threshold: float) -> Pairs:
    distances = []
    for start in range(0, len(low), _PAIRS_AT_ONCE):
        a, b = low[start : start + _PAIRS_AT_ONCE], high[start : start + _PAIRS_AT_ONCE]
        used, place = np.unique(np.concatenate([a, b]), return_inverse=True)
        there = runs(captions.gather(used))
        distances.append(1 - overlap(there, place[: len(a)], place[len(a) :]))
    distance = np.concatenate(distances) if distances else np.empty(0)
    pairs = pairs_of(low, high, distance, np.zeros(len(low), dtype=np.int8))
    return pairs.where(distance <= 1 - threshold + 1e-9)


def written_alike(captions: pl.Series) -> Rows:
    """Return, per row, the first row with the same words in the same order; -1 without a word."""
    words = captions.fill_null("").str.to_lowercase().str.extract_all(WORD).list.join(" ")
    frame = words.alias("words").to_frame().with_row_index("row")
    first = frame.select(pl.col("row").first().over("words").cast(pl.Int64)).to_series().to_numpy()
    return np.where(words.str.len_bytes().to_numpy() > 0, first, -1)
