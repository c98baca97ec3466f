"""Sharpness score: 1 / blur of the strongest edges, in px as displayed.

Blur is the sigma of a Gaussian. Blurring an edge again by a known sigma reduces its slope the more, the
sharper the edge was; the ratio of the two slopes gives its blur (Zhuo and Sim 2011, Defocus map estimation
from a single image). Unlike the variance of the Laplacian this does not depend on contrast or on the amount
of detail, and it detects upscaled video. Only the middle of the frame is measured.
"""

import cv2
import numpy as np

from vidcurate.curation.frame_scores.letterbox import bars, bright_shares
from vidcurate.curation.frame_scores.scorer import Columns, FrameView, Pixels, aggregates

_AGAIN_PX = 1.5  # the known sigma
_EDGE_SHARE = 0.01  # of the pixels, the strongest
_WEAKEST_EDGE = 5  # levels a px: below it is noise
_FEWEST_EDGES = 16
_LARGEST_PX = (432, 768)  # height and width of the middle that is measured
_MARGIN_PX = 8  # over which coding smears a bar's edge
# The central difference that measures the slope widens an edge too: variance 1/3.
_OWN_VARIANCE = 1 / 3
_LEAST_BLUR_PX = 0.5  # pixels cannot show a sharper edge
_WIDE_PX = 2.0
_LARGEST_SCALE = 8
_SMALLEST_PX = 16


def _picture(luma: Pixels) -> Pixels:
    """Return the middle of the frame without black bars: their edges are sharper than any content."""
    height, width = luma.shape
    top, left = max(0, height - _LARGEST_PX[0]) // 2, max(0, width - _LARGEST_PX[1]) // 2
    middle = luma[top : height - top, left : width - left]
    top, bottom, left, right = (bar + _MARGIN_PX if bar else 0 for bar in bars(bright_shares(middle)))
    height, width = middle.shape
    return np.ascontiguousarray(middle[top : height - bottom, left : width - right])


def _slopes(picture: Pixels) -> tuple[Pixels, Pixels]:
    """Return twice the absolute slope along x and along y, without the frame's border."""
    across = cv2.absdiff(picture[1:-1, 2:], picture[1:-1, :-2])
    return across, cv2.absdiff(picture[2:, 1:-1], picture[:-2, 1:-1])


def _blur_px(picture: Pixels) -> float | None:
    if min(picture.shape, default=0) < _SMALLEST_PX:
        return None
    slopes = _slopes(picture)
    steepness = cv2.addWeighted(slopes[0], 0.5, slopes[1], 0.5, 0.0)
    at_least = np.cumsum(cv2.calcHist([steepness], [0], None, [256], [0, 256]).ravel()[::-1])[::-1]
    level = int(np.flatnonzero(at_least >= max(_EDGE_SHARE * at_least[0], _FEWEST_EDGES))[-1])
    places = np.flatnonzero(steepness >= max(level, _WEAKEST_EDGE))
    if len(places) < _FEWEST_EDGES:
        return None
    softer = cv2.GaussianBlur(picture, (0, 0), _AGAIN_PX)
    before, behind = (
        np.hypot(*(slope.ravel()[places].astype(np.float32) for slope in pair))
        for pair in (slopes, _slopes(softer))
    )
    ratio = max(float(np.median(before / np.maximum(behind, 0.5))), 1.001)
    variance = _AGAIN_PX**2 / (ratio**2 - 1) - _OWN_VARIANCE
    return float(np.sqrt(max(variance, _LEAST_BLUR_PX**2)))


def blur_px(luma: Pixels) -> float | None:
    """Return the blur of the strongest edges of luma (H, W), as the sigma of a Gaussian in px.

    None without a clear edge. A second blur hardly changes an edge that is much wider, so a wide blur is
    measured again on the frame at half the size.
    """
    picture = _picture(luma)
    blur, scale = _blur_px(picture), 1
    while blur is not None and blur > _WIDE_PX and scale < _LARGEST_SCALE:
        picture = cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        smaller = _blur_px(picture)
        if smaller is None:
            break
        scale *= 2
        blur = smaller
    return None if blur is None else scale * blur


class Sharpness:
    def __init__(self) -> None:
        self._values: list[float] = []

    def see(self, look: FrameView) -> None:
        if look.luma is not None and not look.is_out_of_turn:
            blur = blur_px(look.luma)
            if blur is not None:
                self._values.append(1 / blur)

    def finish(self, end_seconds: float) -> Columns:
        return aggregates("sharpness", self._values)
