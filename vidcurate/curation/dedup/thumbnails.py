"""Thumbnail comparison: reject pairs whose hashes agree but whose colours do not.

Hashes describe shapes, not colours. The thumbnails of a pair (8 x 8 cells) are aligned in the orientation
that the hashes found; brightness and contrast of the second are fitted to the first (gains from 1/2 to 2);
the distance is the root mean square of the residual, in levels of 255.
"""

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.dedup.orientations import ORIENTATIONS
from vidcurate.curation.dedup.pairs import Pairs

CELLS = 8
_GAINS = (0.5, 2.0)
_PAIRS_AT_ONCE = 1 << 16

Thumbnails = NDArray[np.float32]


def turned(thumbnails: Thumbnails, orientation: str) -> Thumbnails:
    """Return the thumbnails (N, 8, 8, 3) of the pictures in `orientation`."""
    transpose, left_right, top_bottom = ORIENTATIONS[orientation]
    result = thumbnails.swapaxes(1, 2) if transpose else thumbnails
    result = result[:, :, ::-1] if left_right else result
    return result[:, ::-1] if top_bottom else result


def residuals(one: Thumbnails, other: Thumbnails) -> NDArray[np.float64]:
    """Return the distance of each pair of thumbnails (N, 8, 8, 3), float64 (N,)."""
    first, second = (part.reshape(-1, 3 * CELLS**2).astype(np.float64) for part in (one, other))
    first = first - first.mean(axis=1, keepdims=True)
    second = second - second.mean(axis=1, keepdims=True)
    power = np.maximum(np.sum(second * second, axis=1), 1e-9)
    gains = np.clip(np.sum(first * second, axis=1) / power, *_GAINS)
    left: NDArray[np.float64] = np.sqrt(np.mean((first - gains[:, None] * second) ** 2, axis=1))
    return left


def distances(thumbnails: NDArray[np.uint8], known: NDArray[np.bool_], pairs: Pairs) -> NDArray[np.float64]:
    """Return the distance of each of `pairs` (`note` is the orientation); 0 unless both are `known`.

    `thumbnails` is uint8 (rows, 192).
    """
    result = np.zeros(len(pairs))
    for number, name in enumerate(ORIENTATIONS):
        members = np.flatnonzero((pairs.note == number) & known[pairs.first] & known[pairs.second])
        for start in range(0, len(members), _PAIRS_AT_ONCE):
            some = members[start : start + _PAIRS_AT_ONCE]
            one, other = (
                thumbnails[rows[some]].reshape(-1, CELLS, CELLS, 3).astype(np.float32)
                for rows in (pairs.first, pairs.second)
            )
            # The fit is not symmetric: with a low gain any picture fits a faint one.
            back = residuals(turned(other, name), one)
            result[some] = np.maximum(residuals(one, turned(other, name)), back)
    return result
