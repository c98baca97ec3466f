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

from vidcurate.curation.frame_scores.letterbox import Letterbox, bars, bright_shares
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


def _lines_inside(length: int, before: float, behind: float) -> NDArray[np.float32]:
    """Return the weights (lines, length) that scale a side to its part between bars, by area.

    The bars are in px of the side, with fractions. A pixel that a bar covers in part is darker by that part:
    its whole light is given to the rest.
    """
    edges = np.linspace(before, length - behind, max(1, round(length - before - behind)) + 1)
    pixels = np.clip(np.arange(length + 1), edges[0], edges[-1])
    begin = np.maximum(edges[:-1, None], pixels[:-1])
    shared = np.clip(np.minimum(edges[1:, None], pixels[1:]) - begin, 0, None)
    light = shared / np.maximum(np.diff(pixels), np.finfo(np.float32).eps)
    weights: NDArray[np.float32] = (light / np.diff(edges)[:, None]).astype(np.float32)
    return weights


def _inside(planes: Pixels, bars_px: Sequence[float]) -> Pixels:
    """Return the planes (N, h, w) without bars of `bars_px` at the top, bottom, left and right."""
    if not any(bars_px):
        return planes
    top, bottom, left, right = bars_px
    height, width = planes.shape[1:]
    cut = _lines_inside(height, top, bottom) @ planes @ _lines_inside(width, left, right).T
    return np.minimum(np.rint(cut), 255).astype(np.uint8)


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
        self._letterbox = Letterbox()
        self._whole: tuple[int, ...] = (1, 1)

    def see(self, look: FrameView) -> None:
        self._letterbox.see(look)
        self._whole = self._whole if look.luma is None else look.luma.shape
        if self._seen % self._stride == 0:
            if len(self._kept) == _MOST_KEPT:
                self._kept, self._seconds = self._kept[::2], self._seconds[::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                self._kept.append(replace(look, luma=None))
                self._seconds.append(look.seconds)
        self._seen += 1

    def _bars(self, end_seconds: float) -> list[float]:
        """Return the px of the small frame's bars at the top, bottom, left and right.

        They are measured at full size. Noise may hide them there: then they are whole px of the small frames.
        """
        some = self._kept[:: max(1, len(self._kept) // _FRAMES_FOR_BARS)]
        shares = [bright_shares(look.grey) for look in some]
        rows, columns = (np.maximum.reduce([share[side] for share in shares]) for side in (0, 1))
        full = self._letterbox.finish(end_seconds).values()
        scales = np.divide((len(rows), len(columns)), self._whole).repeat(2).tolist()
        coarse = bars((rows, columns))
        return [(px or 0) * scale or whole for px, scale, whole in zip(full, scales, coarse, strict=True)]

    def finish(self, end_seconds: float) -> Columns:
        times = [share * end_seconds + SLACK_SECONDS for share in POSITIONS]
        shown = np.maximum(np.searchsorted(self._seconds, times, side="right") - 1, 0)
        looks = [self._kept[number] for number in shown]
        found = self._bars(end_seconds)
        middle = _inside(looks[POSITIONS.index(0.5)].bgr.transpose(2, 0, 1), found)
        picture = np.ascontiguousarray(middle.transpose(1, 2, 0))
        thumbnail = cv2.resize(picture, (_CELLS, _CELLS), interpolation=cv2.INTER_AREA)
        return {
            "perceptual_hashes": hash_pictures(list(_inside(np.stack([look.grey for look in looks]), found))),
            "perceptual_thumbnail": thumbnail[:, :, ::-1].reshape(-1).tolist(),
        }
