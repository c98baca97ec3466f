"""How far does the picture move? Pixels from one frame to the next, averaged over the picture.

Dense inverse search (Kroeger et al. 2016, arXiv 1603.03590; OpenCV's) on the small grey picture, for pairs of
neighbouring frames at a steady rate. The length of the flow is given for a shorter side of 144 px, whatever
was measured on. Steps of less than half a pixel are read a tenth too long: there a fourth of what moves in
four frames is taken. Codec vectors are nearly free but say what was cheap to code, and not every codec has
them. Pairs that no motion explains (a cut, a flash) are left out: where following the flow removes less than
a third of a large difference, it is no motion.
"""

from collections import deque

import cv2
import numpy as np

from vidcurate.curation.frame_scores.scorer import SLACK_SECONDS, Columns, FrameView, Pixels, aggregates

REPORTED_SHORT_SIDE_PX = 144
_SMALLEST_PX = 16  # below it the flow has no coarse level to start from
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
    """Return the mean length of the vectors of `flow` [H, W, 2], the same wherever it lies in memory.

    cv2.magnitude's last bits depend on that: what stands before the first aligned address goes through other
    instructions. numpy rounds each product, sum and root by itself.
    """
    x, y = flow[..., 0], flow[..., 1]
    return float(np.sqrt(x * x + y * y).mean(dtype=np.float64))


class Motion:
    """`pairs_per_second` bounds how many pairs are measured, from the clip's fifth frame on."""

    def __init__(self, pairs_per_second: float) -> None:
        self._step_seconds = 1 / pairs_per_second
        self._next_seconds = 0.0
        self._before: deque[Pixels] = deque(maxlen=_SLOW_FRAMES)
        self._lengths: list[float] = []
        # Finer steps than the preset's and fewer of them: small things keep their place.
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._flow.setFinestScale(1)
        self._flow.setPatchStride(5)
        self._flow.setGradientDescentIterations(8)

    def _length(self, frames_back: int) -> float | None:
        """Return how far the last frame's picture has come in that many frames; None if no motion tells."""
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
