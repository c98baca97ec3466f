"""Motion score: mean optical flow in px per frame.

Dense inverse search (Kroeger et al. 2016, arXiv 1603.03590; OpenCV's) on the small grey frame, for pairs of
neighbouring frames at a steady rate. Flow lengths are scaled to a shorter side of 144 px. Flow below half a
pixel is overestimated by a tenth: there the scorer uses a fourth of the flow over four frames. Codec motion
vectors are nearly free, but reflect coding cost, and not every codec has them. Pairs without motion (a cut, a
flash) are left out: compensating the flow removes less than a third of their large difference.
"""

from collections import deque

import cv2
import numpy as np

from vidcurate.curation.frame_scores.scorer import SLACK_SECONDS, Columns, FrameView, Pixels, aggregates

REPORTED_SHORT_SIDE_PX = 144
_SMALLEST_PX = 16  # smaller frames have no coarse level for the flow
_SLOW_PX = 0.5
_SLOW_FRAMES = 5
_LARGE_DIFFERENCE = 12.0
_LEAST_EXPLAINED = 1 / 3


def _is_explained(before: Pixels, behind: Pixels, flow: np.ndarray) -> bool:
    difference = cv2.mean(cv2.absdiff(before, behind))[0]
    if difference < _LARGE_DIFFERENCE:
        return True
    rows, columns = np.indices(before.shape, dtype=np.float32)
    followed = cv2.remap(
        behind, columns + flow[..., 0], rows + flow[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
    )
    return bool(cv2.mean(cv2.absdiff(before, followed))[0] <= (1 - _LEAST_EXPLAINED) * difference)


def mean_length(flow: np.ndarray) -> float:
    """Return the mean length of the vectors of `flow` [H, W, 2], independent of its memory alignment.

    The last bits of cv2.magnitude depend on alignment: it uses other instructions before the first aligned
    address. numpy rounds each product, sum and root separately.
    """
    x, y = flow[..., 0], flow[..., 1]
    return float(np.sqrt(x * x + y * y).mean(dtype=np.float64))


class Motion:
    """Motion scorer; `pairs_per_second` limits the measured pairs, from the clip's fifth frame on."""

    def __init__(self, pairs_per_second: float) -> None:
        self._step_seconds = 1 / pairs_per_second
        self._next_seconds = 0.0
        self._before: deque[Pixels] = deque(maxlen=_SLOW_FRAMES)
        self._lengths: list[float] = []
        # Finer and fewer pyramid steps than the preset: keeps small objects.
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._flow.setFinestScale(1)
        self._flow.setPatchStride(5)
        self._flow.setGradientDescentIterations(8)

    def _length(self, frames_back: int) -> float | None:
        """Return the mean flow to the last frame over that many frames; None if no motion explains it."""
        before, behind = self._before[-1 - frames_back], self._before[-1]
        flow = self._flow.calc(before, behind, None)
        if not _is_explained(before, behind, flow):
            return None
        return mean_length(flow)

    def _measure(self) -> None:
        length = self._length(1)
        if length is not None and length < _SLOW_PX and len(self._before) == _SLOW_FRAMES:
            longer = self._length(_SLOW_FRAMES - 1)
            length = length if longer is None else longer / (_SLOW_FRAMES - 1)
        if length is not None:
            self._lengths.append(length * REPORTED_SHORT_SIDE_PX / min(self._before[-1].shape))

    def see(self, look: FrameView) -> None:
        if min(look.grey.shape) < _SMALLEST_PX:
            return
        self._before.append(look.grey)
        if len(self._before) == _SLOW_FRAMES and look.seconds + SLACK_SECONDS >= self._next_seconds:
            self._next_seconds = max(self._next_seconds + self._step_seconds, look.seconds)
            self._measure()

    def finish(self, end_seconds: float) -> Columns:
        if 1 < len(self._before) < _SLOW_FRAMES:
            self._measure()
        return aggregates("motion_px_per_frame", self._lengths)
