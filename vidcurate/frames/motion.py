"""How far does the picture move? Pixels from one frame to the next, averaged over the picture.

Dense inverse search (Kroeger et al. 2016, arXiv 1603.03590; OpenCV's) on the small grey picture, for pairs of
neighbouring frames at a steady rate. The length of the flow is given for a shorter side of 144 px, whatever
was measured on. Codec vectors are nearly free but say what was cheap to code, and not every codec has them.
Pairs that no motion explains (a cut, a flash) are left out: where following the flow removes less than a
third of a large difference, it is no motion.
"""

import cv2
import numpy as np

from vidcurate.frames.look import Columns, Look, Pixels, aggregates

REPORTED_SHORT_SIDE_PX = 144
_SMALLEST_PX = 16  # below it the flow has no coarse level to start from
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


class Motion:
    """`pairs_per_second` bounds how many pairs are measured; the first is always one of them."""

    def __init__(self, pairs_per_second: float) -> None:
        self._step_seconds = 1 / pairs_per_second
        self._next_seconds = 0.0
        self._last: Pixels | None = None
        self._lengths: list[float] = []
        # Finer steps than the preset, fewer of them: 9 % off at half a pixel, 3 % from two pixels on.
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._flow.setFinestScale(1)
        self._flow.setPatchStride(5)
        self._flow.setGradientDescentIterations(8)

    def see(self, look: Look) -> None:
        before, self._last = self._last, look.grey
        if before is None or min(before.shape) < _SMALLEST_PX or look.seconds < self._next_seconds:
            return
        self._next_seconds = max(self._next_seconds + self._step_seconds, look.seconds)
        flow = self._flow.calc(before, look.grey, None)
        if _is_explained(before, look.grey, flow):
            scale = REPORTED_SHORT_SIDE_PX / min(before.shape)
            self._lengths.append(cv2.mean(cv2.magnitude(flow[..., 0], flow[..., 1]))[0] * scale)

    def finish(self, end_seconds: float) -> Columns:
        return aggregates("motion_px_per_frame", self._lengths)
