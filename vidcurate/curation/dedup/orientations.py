"""Picture orientations: rotate and mirror a picture by its hash alone.

A bit of the hash is the sign of one DCT coefficient X[u, v] (u counts rows, v columns). A mirror image has
the same coefficients with the sign of every odd one flipped, a transposed picture has them transposed. So
the hash of a rotated or mirrored picture follows from the stored hash, without a second decode.
"""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_ROW = np.arange(64) // 8
_COLUMN = np.arange(64) % 8


def _mask(bits: NDArray[np.bool_]) -> np.uint64:
    return np.uint64(sum(1 << int(bit) for bit in np.flatnonzero(bits)))


MEAN = np.uint64(1)  # bit 0 is the mean, the same for every picture
ODD_COLUMNS = _mask(_COLUMN % 2 == 1)  # flipped by a mirror left to right
ODD_ROWS = _mask(_ROW % 2 == 1)  # flipped by a mirror top to bottom

# Orientation → (transposed, then mirrored left to right, then mirrored top to bottom).
ORIENTATIONS: dict[str, tuple[bool, bool, bool]] = {
    "same": (False, False, False),
    "rotated 90": (True, True, False),
    "rotated 180": (False, True, True),
    "rotated 270": (True, False, True),
    "mirrored": (False, True, False),
    "mirrored and rotated 90": (True, True, True),
    "mirrored and rotated 180": (False, False, True),
    "mirrored and rotated 270": (True, False, False),
}


def transposed(hashes: Hashes) -> Hashes:
    """Return the hashes of the transposed pictures: bit 8u + v becomes bit 8v + u."""
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
        moved = (hashes ^ (hashes >> np.uint64(shift))) & np.uint64(mask)
        hashes = hashes ^ moved ^ (moved << np.uint64(shift))
    return hashes


def turned(hashes: Hashes, orientation: str) -> Hashes:
    """Return the hashes of the pictures in `orientation` (a key of ORIENTATIONS, clockwise).

    Exact except for coefficients of 0, whose bit is 0 for either sign.
    """
    transpose, left_right, top_bottom = ORIENTATIONS[orientation]
    result = transposed(hashes) if transpose else hashes
    if left_right:
        result = result ^ ODD_COLUMNS
    if top_bottom:
        result = result ^ ODD_ROWS
    return result & ~MEAN


def without_mirrors(hashes: Hashes) -> Hashes:
    """Return the hashes of the mirror image that has X[0, 1], X[1, 0] and X[1, 1] positive.

    All mirror images of a picture give the same hash when these three signs (usually of its strongest
    coefficients) are read correctly. X[1, 1] alone sets the signs of the odd-odd coefficients, so that one
    wrong sign changes only its own quarter. The three bits are 0 in the result.
    """
    result = hashes & ~MEAN
    for bit, which in (
        (1, ODD_COLUMNS & ~ODD_ROWS),
        (8, ODD_ROWS & ~ODD_COLUMNS),
        (9, ODD_ROWS & ODD_COLUMNS),
    ):
        is_set = (result >> np.uint64(bit)) & np.uint64(1)
        result = result ^ (is_set * which)
    return result
