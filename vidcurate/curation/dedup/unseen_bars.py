"""Unseen black bars: tell the padded copy of a dark clip from the clip itself.

Beside a dark picture a black bar has no edge, so the frame scores find none. Two clips that look alike show
it: where their shapes differ, one is either squeezed or padded. A squeezed copy has the same thumbnail; a
padded one has the thumbnail of the other in its middle, and black around it.
"""

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.dedup.orientations import ORIENTATIONS
from vidcurate.curation.dedup.pairs import Pairs
from vidcurate.curation.dedup.thumbnails import CELLS, Thumbnails, residuals, turned

_LEAST_DIFFERENCE = 0.03  # of the ratio of width to height: less is rounding
_MOST_RESIDUAL = 0.9  # of the squeezed thumbnail's residual
_LEAST_GAIN = 0.25  # levels by which the residual must fall
_PAIRS_AT_ONCE = 1 << 15


def _padded(thumbnails: Thumbnails, shares: NDArray[np.float64]) -> Thumbnails:
    """Return the thumbnails (N, 8, 8, 3), each in the middle `shares` (N,) of its rows, black around it."""
    cells = np.arange(CELLS)
    edges = (np.arange(CELLS + 1)[None, :] - CELLS / 2) / shares[:, None] + CELLS / 2
    begin, end = edges[:, :-1, None], edges[:, 1:, None]
    overlap = np.clip(np.minimum(end, cells + 1) - np.maximum(begin, cells), 0, None)
    padded: Thumbnails = np.einsum("nrs,nsck->nrck", overlap * shares[:, None, None], thumbnails)
    return padded


def _fits(target: Thumbnails, other: Thumbnails, shape_ratio: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether `target` shows `other` between bars.

    `shape_ratio` (N,) is the width / height of the target over that of the other.
    """
    tall = shape_ratio < 1
    shares = np.where(tall, shape_ratio, 1 / shape_ratio)
    flips = ~tall[:, None, None, None]
    upright = np.where(flips, other.swapaxes(1, 2), other)
    padded = _padded(upright, shares)
    between = residuals(target, np.where(flips, padded.swapaxes(1, 2), padded))
    squeezed = residuals(target, other)
    fits: NDArray[np.bool_] = (between < _MOST_RESIDUAL * squeezed) & (squeezed - between > _LEAST_GAIN)
    return fits


def picture_shares(
    thumbnails: NDArray[np.uint8], sizes: NDArray[np.float64], pairs: Pairs
) -> NDArray[np.float64]:
    """Return the share of each row's area that is not in unseen bars, float64 (rows,); 1 without such bars.

    `thumbnails` is uint8 (rows, 192), all 0 where missing; `sizes` is (rows, 2), height and width inside the
    bars that were seen, NaN where unknown; `pairs` are alike, `note` is the orientation of `second`.
    """
    result = np.ones(len(thumbnails))
    known = np.any(thumbnails, axis=1)
    for number, (name, (transposes, _, _)) in enumerate(ORIENTATIONS.items()):
        first, second = sizes[pairs.first], sizes[pairs.second][:, :: -1 if transposes else 1]
        ratio = (second[:, 1] / second[:, 0]) / (first[:, 1] / first[:, 0])
        differs = np.abs(np.log(np.where(np.isnan(ratio), 1, ratio))) > _LEAST_DIFFERENCE
        both = known[pairs.first] & known[pairs.second]
        members = np.flatnonzero((pairs.note == number) & differs & both)
        for start in range(0, len(members), _PAIRS_AT_ONCE):
            some = members[start : start + _PAIRS_AT_ONCE]
            one, other = (
                thumbnails[rows[some]].reshape(-1, CELLS, CELLS, 3).astype(np.float32)
                for rows in (pairs.first, pairs.second)
            )
            other = turned(other, name)
            share = np.minimum(ratio[some], 1 / ratio[some])
            for rows, fits in (
                (pairs.second[some], _fits(other, one, ratio[some])),
                (pairs.first[some], _fits(one, other, 1 / ratio[some])),
            ):
                np.minimum.at(result, rows[fits], share[fits])
    return result
