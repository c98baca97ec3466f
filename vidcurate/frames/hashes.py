"""What does the clip look like, in 5 x 64 bits? The signs of the lowest frequencies of five of its pictures.

The cosine transform of each picture says how much of each frequency is in it, as in pHash (Zauner 2010); bit
8·v + u says whether the frequency (v down, u across) is positive, and the bit of the mean is 0. Taking the
sign where pHash compares with the median makes the hashes of the turned and mirrored picture follow from the
hash alone (`dedup.orientations`). The picture is taken at the size it has: so low frequencies do not see it.
Five pictures, because a hash of the first takes all clips that fade in for one. Signs know neither colours
nor how strong a frequency is: a thumbnail of the middle picture is kept for that.
"""

from collections.abc import Sequence
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from vidcurate.frames.letterbox import Shares, bars, bright_shares
from vidcurate.frames.look import Columns, Look, Pixels

POSITIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
FLAT = 0  # the hash of a picture with nothing in it; no other picture has it
_BITS_A_SIDE = 8
_CELLS = 8
_FLATTEST = 2.0  # levels of standard deviation
_AT_ONCE = 64
_LATER_SECONDS = 0.001  # a position on the border of two frames is in the second, however times are rounded


@cache
def _cosines(length: int) -> NDArray[np.float32]:
    places = (np.arange(length) + 0.5) / length
    return np.cos(np.pi * np.arange(_BITS_A_SIDE)[:, None] * places).astype(np.float32)


def hash_pictures(pictures: Sequence[Pixels]) -> list[int]:
    """Return the 64-bit hash of each grey picture (H, W), all of one size.

    FLAT is the hash of one whose levels vary by less than two.
    """
    block = np.stack(pictures).astype(np.float32)
    height, width = block.shape[1:]
    bits = (_cosines(height) @ block @ _cosines(width).T > 0).reshape(len(pictures), -1)
    bits[:, 0] = False
    values = np.packbits(bits, axis=1, bitorder="little").view("<u8")[:, 0]
    flat = block.std(axis=(1, 2)) < _FLATTEST
    return [FLAT if is_flat else int(value) for value, is_flat in zip(values, flat, strict=True)]


class Hashes:
    """Pictures are hashed without their black bars: those of the frames so far, so that no frame waits."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._hashes: list[int] = []
        self._waiting: list[Pixels] = []
        self._thumbnails: list[Pixels] = []
        self._shares: Shares | None = None

    def see(self, look: Look) -> None:
        rows, columns = bright_shares(look.grey)
        if self._shares is not None and self._shares[0].shape == rows.shape:
            rows, columns = np.maximum(self._shares[0], rows), np.maximum(self._shares[1], columns)
        self._shares = rows, columns
        top, bottom, left, right = bars(self._shares)
        inside = slice(top, len(rows) - bottom), slice(left, len(columns) - right)
        self._seconds.append(look.seconds)
        picture = look.grey[inside]
        if len(self._waiting) == _AT_ONCE or (self._waiting and self._waiting[0].shape != picture.shape):
            self._flush()
        self._waiting.append(picture)
        self._thumbnails.append(cv2.resize(look.bgr[inside], (_CELLS, _CELLS), interpolation=cv2.INTER_AREA))

    def _flush(self) -> None:
        if self._waiting:
            self._hashes += hash_pictures(self._waiting)
            self._waiting = []

    def finish(self, end_seconds: float) -> Columns:
        self._flush()
        times = [share * end_seconds + _LATER_SECONDS for share in POSITIONS]
        shown = np.searchsorted(self._seconds, times, side="right") - 1
        middle = self._thumbnails[max(0, int(shown[POSITIONS.index(0.5)]))]
        return {
            "perceptual_hashes": [self._hashes[max(0, number)] for number in shown],
            "perceptual_thumbnail": middle[:, :, ::-1].reshape(-1).tolist(),
        }
