"""Perceptual hashes of a clip: DCT signs of five frames, 64 bits each.

As in pHash (Zauner 2010), from the cosine transform of each frame: bit 8·v + u is 1 when the coefficient of
frequency (v down, u across) is positive; the bit of the mean is 0. With signs, instead of pHash's comparison
with the median, the hashes of rotated and mirrored frames follow from the hash alone (`dedup.orientations`).
The frame is not resized first: low frequencies do not depend on its size. Five frames, because the first
frame alone would match all clips that fade in. Signs have no colours and no magnitudes: the thumbnail of the
middle frame has them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.frame_scores.letterbox import bars, bright_shares
from vidcurate.curation.frame_scores.scorer import SLACK_SECONDS, Columns, FrameView, Pixels

POSITIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
FLAT = 0  # hash of a flat frame, and of no other
_BITS_A_SIDE = 8
_CELLS = 8
_FLATTEST = 2.0  # levels of standard deviation
_MOST_KEPT = 512
_FRAMES_FOR_BARS = 16


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
    """Hashes of five of the clip's frames without their black bars.

    The five positions are known only at the end. Until then the scorer keeps at most 512 frames: when full,
    it drops every other frame and halves its sampling rate.
    """

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._kept: list[FrameView] = []
        self._stride = 1
        self._seen = 0

    def see(self, look: FrameView) -> None:
        if self._seen % self._stride == 0:
            if len(self._kept) == _MOST_KEPT:
                self._kept, self._seconds = self._kept[::2], self._seconds[::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                self._kept.append(replace(look, luma=None))
                self._seconds.append(look.seconds)
        self._seen += 1

    def _inside(self) -> tuple[slice, slice]:
        """Return the rows and columns of the small frame that are outside the bars of all sampled frames."""
        some = self._kept[:: max(1, len(self._kept) // _FRAMES_FOR_BARS)]
        shares = [bright_shares(look.grey) for look in some]
        rows, columns = (np.maximum.reduce([share[side] for share in shares]) for side in (0, 1))
        top, bottom, left, right = bars((rows, columns))
        return slice(top, len(rows) - bottom), slice(left, len(columns) - right)

    def finish(self, end_seconds: float) -> Columns:
        times = [share * end_seconds + SLACK_SECONDS for share in POSITIONS]
        shown = np.maximum(np.searchsorted(self._seconds, times, side="right") - 1, 0)
        looks = [self._kept[number] for number in shown]
        inside = self._inside()
        middle = looks[POSITIONS.index(0.5)].bgr[inside]
        thumbnail = cv2.resize(middle, (_CELLS, _CELLS), interpolation=cv2.INTER_AREA)
        return {
            "perceptual_hashes": hash_pictures([look.grey[inside] for look in looks]),
            "perceptual_thumbnail": thumbnail[:, :, ::-1].reshape(-1).tolist(),
        }
