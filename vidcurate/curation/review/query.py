"""Query of the review grid: which clips, in which order."""

import re
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from vidcurate.curation.review.clip_rows import ClipRows, Places
from vidcurate.curation.review.similar_clips import distances
from vidcurate.recipe.recipe import Recipe

Mask = NDArray[np.bool_]
_WORD = re.compile(r'(-?)(?:"([^"]+)"|(\S+))')
MOST_WORDS = 16
_SAMPLED_TEXTS = 2048  # in these a search counts which of its words is the rarest


class Range(Recipe):
    """Range of a numeric column; both ends belong to it."""

    min: float | None = None
    """the smallest value"""
    max: float | None = None
    """the largest value"""
    unknown: bool = False
    """also rows without a value"""


class Sample(Recipe):
    """Random sample, as many rows of each group as there are, up to an equal share."""

    size: int = Field(default=60, ge=1, le=10_000, description="number of rows")
    by: str | None = None
    """column whose values are the groups; null: one group"""
    seed: int = Field(default=0, ge=0, description="another seed draws other rows")


class Query(Recipe):
    """What the grid shows. Every part that is set narrows the rows down."""

    text: str = Field(default="", max_length=1000)
    """words that the caption has, "phrases", -without"""
    contains: dict[str, str] = Field(default_factory=dict)
    """text column → words that it has"""
    ranges: dict[str, Range] = Field(default_factory=dict)
    """numeric column → range"""
    words: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """column → the values that are shown, as text; `unknown` for none"""
    clips: tuple[str, ...] = Field(default=(), max_length=1000)
    """the rows with these ids, in this order unless they are sorted"""
    cluster: str | None = None
    """one cluster of duplicates, by rank"""
    near: int | None = Field(default=None, ge=0, description="rows that look like this one, nearest first")
    decided: Literal["", "any", "none", "keep", "reject", "caption", "tag", "disputed"] = ""
    """by the decisions of the reviewers"""
    limits: dict[str, Range] | None = None
    """thresholds to try: the rows that change sides, borderline first"""
    side: Literal["both", "kept", "rejected"] = "both"
    """of those rows: all, newly kept or newly rejected"""
    sample: Sample | None = None
    """a random sample of the rows that are left"""
    sort: str | None = None
    """column to sort by; null: the table's order"""
    descending: bool = False
    """largest first"""
    both_ends: bool = False
    """smallest, largest, second smallest …: outliers of both ends first"""


def _has(column: pl.Series, wanted: str) -> Mask:
    """Return which texts contain `wanted` in any case (N,); null contains nothing."""
    found = column.str.contains(f"(?i){pl.escape_regex(wanted)}")
    return found.fill_null(value=False).to_numpy()


def search(column: pl.Series, text: str) -> Mask:
    """Return which texts have every word of `text`, in any case; -word: which do not.

    "Several words" in quotes are one phrase. Null has no word.
    """
    words = [(minus, phrase or word) for minus, phrase, word in _WORD.findall(text)[:MOST_WORDS]]
    if len(words) > 1:  # What fewest texts pass goes first; the others are looked for only in those.
        some = column.gather_every(len(column) // _SAMPLED_TEXTS + 1)
        passing = {one: int((_has(some, one[1]) ^ bool(one[0])).sum()) for one in set(words)}
        words.sort(key=lambda one: (passing[one], -len(one[1])))
    at: NDArray[np.int64] | None = None
    for minus, wanted in words:
        has = _has(column if at is None else column.gather(at), wanted)
        passes = np.flatnonzero(~has if minus else has)
        at = passes if at is None else at[passes]
    mask = np.full(len(column), at is None)
    if at is not None:
        mask[at] = True
    return mask


def in_range(values: NDArray[np.float64], wanted: Range) -> Mask:
    """Return which values lie in the range; NaN is a row without a value."""
    mask = np.ones(len(values), dtype=np.bool_)
    if wanted.min is not None:
        mask &= values >= wanted.min
    if wanted.max is not None:
        mask &= values <= wanted.max
    unknown = np.isnan(values)
    return mask | unknown if wanted.unknown else mask & ~unknown


def _is_listed(rows: ClipRows, name: str, wanted: tuple[str, ...]) -> Mask:
    groups = rows.groups(name)
    if groups is None:
        return rows.column(name).cast(pl.String).fill_null("unknown").is_in(list(wanted)).to_numpy()
    chosen = np.isin(np.asarray(groups.names, dtype=object), np.asarray(wanted, dtype=object))
    return np.asarray(chosen[groups.place], dtype=np.bool_)


def matching(rows: ClipRows, query: Query, *, without: str | None = None) -> Mask:
    """Return which rows the query's filters let through (N,); `without` ignores the filter of one column.

    Filters are text, contains, ranges, words, clips and cluster. Raises ColumnError.
    """
    mask = np.ones(len(rows), dtype=np.bool_)
    if query.clips:
        mask &= rows.column("clip_id").is_in(list(query.clips)).fill_null(value=False).to_numpy()
    for name, wanted in query.ranges.items():
        if name != without:
            mask &= in_range(rows.values(name), wanted)
    for name, listed in query.words.items():
        if name != without:
            mask &= _is_listed(rows, name, listed)
    if query.cluster is not None:
        mask &= (rows.column("duplicate_cluster") == query.cluster).fill_null(value=False).to_numpy()
    for name, text in query.contains.items():
        mask &= search(rows.column(name).cast(pl.String), text)
    if query.text.strip():
        mask &= search(rows.column("caption"), query.text)
    return mask


def _drawn(rows: ClipRows, places: Places, sample: Sample) -> Places:
    """Return a random sample of `places` in the table's order: groups in turn until `size` rows are drawn."""
    rng = np.random.default_rng(sample.seed)
    mixed = rng.permutation(places)
    if sample.by is None:
        return np.sort(mixed[: sample.size])
    groups = rows.groups(sample.by)
    if groups is None:  # many values: strata are tenths of the column's order
        rank = np.empty(len(rows), dtype=np.int64)
        rank[rows.ascending(sample.by)] = np.arange(len(rows))
        stratum = rank[mixed] * 10 // max(len(rows), 1)
    else:
        stratum = groups.place[mixed]
    order = np.argsort(stratum, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(stratum[order]) != 0]) if len(order) else order
    turn = np.empty(len(order), dtype=np.int64)
    lengths = np.diff(np.r_[starts, len(order)])
    turn[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    first = np.argsort(turn, kind="stable")[: sample.size]
    return np.sort(mixed[first])


def _both_ends(places: Places) -> Places:
    """Return sorted places as lowest, highest, second lowest, second highest …"""
    half = (len(places) + 1) // 2
    mixed = np.empty_like(places)
    mixed[0::2] = places[:half]
    mixed[1::2] = places[half:][::-1]
    return mixed


def ordered(
    rows: ClipRows, query: Query, mask: Mask, scored: NDArray[np.float64] | None = None
) -> tuple[Places, dict[str, Any]]:
    """Return the places that the grid shows, in order, and what to say of them.

    `scored` (N,) orders by rising score instead of the query's column (NaN: not shown). Raises ColumnError.
    """
    notes: dict[str, Any] = {}
    if query.near is not None:
        scored = distances(rows, query.near)
        notes["near"] = rows.column("clip_id")[query.near]
    if scored is not None:
        chosen = np.flatnonzero(mask & ~np.isnan(scored))
        order = chosen[np.argsort(scored[chosen], kind="stable")].astype(np.uint32)
        return (_drawn(rows, order, query.sample) if query.sample else order), notes
    if query.sample is not None:
        mask = _mask_of(_drawn(rows, np.flatnonzero(mask).astype(np.uint32), query.sample), len(rows))
    name = query.sort or ("duplicate_rank" if query.cluster is not None else None)
    if name is None:
        places = np.flatnonzero(mask).astype(np.uint32)
        if query.clips:
            turn = {clip_id: at for at, clip_id in enumerate(dict.fromkeys(query.clips))}
            turns = [turn[clip_id] for clip_id in rows.column("clip_id").gather(places)]
            places = places[np.argsort(turns, kind="stable")]
        return places, notes
    order = rows.ascending(name)
    known = len(order) - rows.num_unknown(name)
    first, last = order[:known], order[known:]
    first = first[mask[first]]
    if query.both_ends:
        return _both_ends(first), notes
    if query.descending:
        first = first[::-1]
    return np.concatenate([first, last[mask[last]]]), notes


def _mask_of(places: Places, height: int) -> Mask:
    mask = np.zeros(height, dtype=np.bool_)
    mask[places] = True
    return mask
