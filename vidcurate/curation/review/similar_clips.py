"""Similar clips: distances from a clip to all, by embedding or perceptual hash.

Embeddings come first, hashes where there are none.
"""

from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.dedup import semantic
from vidcurate.curation.dedup.perceptual import frame_distances, says_something
from vidcurate.curation.dedup.search import EMBEDDINGS
from vidcurate.curation.dedup.spec import PerceptualSpec
from vidcurate.curation.review.clip_rows import ClipRows
from vidcurate.errors import ColumnError, InputError

_FRAMES = 5
_MIN_SET_BITS = PerceptualSpec.min_set_bits  # a flat frame has fewer, and is not compared


def distances(rows: ClipRows, place: int) -> NDArray[np.float64]:
    """Return the distance of every clip to the one at `place` (N,); NaN: not comparable.

    One minus the cosine where `score-models` has written an embedding of the clip, else `look_distances`.
    Raises ColumnError and InputError as `look_distances` does, InputError for a damaged file of embeddings.
    """
    if not 0 <= place < len(rows):
        raise InputError(f"{rows.run}: no row {place}; the table has {len(rows)}.")
    path = rows.run / EMBEDDINGS
    if path.exists():
        at, vectors = _embeddings(rows, path.stat().st_mtime_ns)
        (own,) = np.nonzero(at == place)
        if len(own):
            found = np.full(len(rows), np.nan)
            found[at] = 1.0 - vectors @ vectors[own[0]]
            found[place] = 0.0
            return found
    return look_distances(rows, place)


@lru_cache(maxsize=1)
def _embeddings(rows: ClipRows, written_ns: int) -> tuple[NDArray[np.int64], semantic.Vectors]:
    return semantic.read_embeddings(rows.run / EMBEDDINGS, rows.column("clip_id"))


def look_distances(rows: ClipRows, place: int) -> NDArray[np.float64]:
    """Return the distance of every clip to the one at `place`, in bits of 63 (N,); NaN: not comparable.

    The distance is the mean over the five hashed frames that say something in both clips; at least three
    such frames are needed. Raises ColumnError when score-frames has not hashed the clips, InputError when
    the clip at `place` has no hashes.
    """
    if "perceptual_hashes" not in rows.schema:
        raise ColumnError(
            f"{rows.run}: no column perceptual_hashes. Run `vidcurate score-frames {rows.run}` first."
        )
    column = rows.column("perceptual_hashes")
    if not 0 <= place < len(rows):
        raise InputError(f"{rows.run}: no row {place}; the table has {len(rows)}.")
    has = (column.list.len() == _FRAMES).fill_null(value=False).to_numpy()
    at = np.flatnonzero(has)
    hashes = column.gather(at).list.explode().to_numpy().astype(np.uint64).reshape(len(at), _FRAMES)
    speaks = says_something(hashes, _MIN_SET_BITS)
    found = np.full(len(rows), np.nan)
    (own,) = np.nonzero(at == place)
    if not len(own):
        raise InputError(f"{rows.run}: the clip of row {place} has no perceptual hashes.")
    both = speaks & speaks[own[0]]
    bits = frame_distances(hashes, hashes[own[0]][None, :], both)
    count = both.sum(axis=1)
    comparable = count >= 3
    total = np.where(both, bits, 0).sum(axis=1)
    found[at[comparable]] = total[comparable] / count[comparable]
    found[place] = 0.0
    return found


def has_hashes(rows: ClipRows) -> bool:
    """Return whether clips of this run can be compared by look."""
    is_hashed = rows.schema.get("perceptual_hashes") == pl.List(pl.UInt64)
    return is_hashed or (rows.run / EMBEDDINGS).exists()
