"""Unseen black bars: tell the padded copy of a dark clip from the clip itself.

Beside a dark picture a black bar has no edge, so the frame scores find none. Two clips that look alike show
it: where their shapes differ, one is either squeezed or padded; where they do not, and the border of one is
dark, that one may be padded on all sides. A squeezed copy has the same thumbnail; a padded one has the
thumbnail of the other in its middle, and black around it.
"""

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.dedup.orientations import ORIENTATIONS
from vidcurate.curation.dedup.pairs import Pairs
from vidcurate.curation.dedup.thumbnails import CELLS, Thumbnails, residuals, turned

_LEAST_DIFFERENCE = 0.03  # of the ratio of width to height: less is rounding
_MOST_RESIDUAL = 0.9  # of the squeezed thumbnail's residual
_LEAST_GAIN = 0.25  # levels by which the residual must fall
_BRIGHTEST = 16  # levels at the border of a thumbnail that may have bars on all sides: black, and coded
_WINDOW = 0.85  # of each side is picture then, about, where the sizes do not say it
_PAIRS_AT_ONCE = 1 << 15
_BORDER = np.pad(np.zeros((CELLS - 2, CELLS - 2), dtype=np.bool_), 1, constant_values=True)


def _padded(thumbnails: Thumbnails, shares: NDArray[np.float64]) -> Thumbnails:
    """Return the thumbnails (N, 8, 8, 3), each in the middle `shares` (N,) of its rows, black around it."""
    cells = np.arange(CELLS)
    edges = (np.arange(CELLS + 1)[None, :] - CELLS / 2) / shares[:, None] + CELLS / 2
    begin, end = edges[:, :-1, None], edges[:, 1:, None]
    overlap = np.clip(np.minimum(end, cells + 1) - np.maximum(begin, cells), 0, None)
    weights = (overlap * shares[:, None, None]).astype(np.float32)
    padded: Thumbnails = (weights @ thumbnails.reshape(-1, CELLS, CELLS * 3)).reshape(thumbnails.shape)
    return padded


def _fits(target: Thumbnails, other: Thumbnails, shares: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether `target` shows `other` in the middle `shares` (N, 2) of its rows and columns."""
    padded = _padded(_padded(other, shares[:, 0]).swapaxes(1, 2), shares[:, 1]).swapaxes(1, 2)
    between = residuals(target, padded)
    squeezed = residuals(target, other)
    fits: NDArray[np.bool_] = (between < _MOST_RESIDUAL * squeezed) & (squeezed - between > _LEAST_GAIN)
    return fits


def _shares(target: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return which shares (N, 2) of the target's height and width the other would have between bars.

    Both are sizes (N, 2), height and width. Of another shape: it fills one side. Of the same shape: it has
    its own size, or where the target is no larger, _WINDOW of both sides.
    """
    sides = other / target
    filled = sides / sides.max(axis=1, keepdims=True)
    differs = np.abs(np.log(filled)).max(axis=1) > _LEAST_DIFFERENCE
    window = np.where(sides.max(axis=1) < 1 - _LEAST_DIFFERENCE, sides.max(axis=1), _WINDOW)
    return np.where(differs[:, None], filled, window[:, None])


def picture_shares(
    thumbnails: NDArray[np.uint8], sizes: NDArray[np.float64], pairs: Pairs
) -> NDArray[np.float64]:
    """Return the share of each row's area that is not in unseen bars, float64 (rows,); 1 without such bars.

    `thumbnails` is uint8 (rows, 192), all 0 where missing; `sizes` is (rows, 2), height and width inside the
    bars that were seen, NaN where unknown; `pairs` are alike, `note` is the orientation of `second`.
    """
    result = np.ones(len(thumbnails))
    known = np.any(thumbnails, axis=1)
    is_dark = thumbnails.reshape(-1, CELLS, CELLS, 3)[:, _BORDER].max(axis=(1, 2)) <= _BRIGHTEST
    for number, (name, (transposes, _, _)) in enumerate(ORIENTATIONS.items()):
        both = known[pairs.first] & known[pairs.second]
        members = np.flatnonzero((pairs.note == number) & both)
        for start in range(0, len(members), _PAIRS_AT_ONCE):
            some = members[start : start + _PAIRS_AT_ONCE]
            first, second = pairs.first[some], pairs.second[some]
            one, other = (
                thumbnails[rows].reshape(-1, CELLS, CELLS, 3).astype(np.float32) for rows in (first, second)
            )
            ends = (
                (first, one, sizes[first]),
                (second, turned(other, name), sizes[second][:, :: -1 if transposes else 1]),
            )
            for (rows, target, size), (_, inner, inner_size) in (ends, ends[::-1]):
                shares = _shares(size, inner_size)
                may = np.flatnonzero(is_dark[rows] | (shares.max(axis=1) == 1))
                may = may[_fits(target[may], inner[may], shares[may])]
                np.minimum.at(result, rows[may], shares[may].prod(axis=1))
    return result
