"""Scene cuts inside a clip, after PySceneDetect's AdaptiveDetector.

A frame differs from the one before it by the mean of their differences in hue, saturation and value. A cut is
a frame that differs by at least 15 levels, and by `threshold` times more than its neighbours on either side.
The settings are the best of PySceneDetect's published benchmark: threshold 3.5, window 3, at least 0.6 s
between cuts. Three things are done otherwise:

- A dark pixel has no hue and hardly a saturation: noise of one level turns them by half their range. So the
  hue counts by the weaker of the two pixels' chroma, and saturation by the larger of their values, fully from
  32 levels on. A fade from black is no cut then, and the noise of a dark scene hides none.
- A neighbour beyond an end of the clip is replaced by that on the other side of the frame, so that a stray
  frame at an end, left by a clip that was cut one frame late, is found (PySceneDetect 431). Repeating the
  first and last frames would halve the average there, and motion would become a cut.
- Of two cuts closer than 0.6 s the stronger counts, not the first.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.frame_scores.scorer import Columns, FrameView, Pixels, rounded

_LEAST_SCORE = 15.0
_COLOURED = 32.0  # levels of chroma and value from which hue and saturation are certain
_STILL = 1e-5
Planes = tuple[Pixels, Pixels, Pixels, Pixels, Pixels]


def _planes(bgr: Pixels) -> Planes:
    """Return hue, saturation, value, and the weights of the first two, 0 to 32; each (H, W)."""
    hue, saturation, value = cv2.split(cv2.cvtColor(bgr, cv2.COLOR_BGR2HSV))
    chroma = cv2.multiply(saturation, value, scale=1 / 255)
    return hue, saturation, value, cv2.min(chroma, _COLOURED), cv2.min(value, _COLOURED)


def _score(one: Planes, other: Planes) -> float:
    """Return the weighted mean difference of two frames, in levels. All sums are whole numbers."""
    hue, saturation, value = (cv2.absdiff(one[plane], other[plane]) for plane in range(3))
    turned = cv2.multiply(hue, cv2.min(one[3], other[3]), dtype=cv2.CV_16U)
    paled = cv2.multiply(saturation, cv2.max(one[4], other[4]), dtype=cv2.CV_16U)
    coloured = (cv2.sumElems(turned)[0] + cv2.sumElems(paled)[0]) / _COLOURED
    return float((coloured + cv2.sumElems(value)[0]) / (3 * value.size))


def _ratios(scores: NDArray[np.float64], window_frames: int) -> NDArray[np.float64]:
    """Return each frame's score over the mean of its neighbours', mirrored at the ends; both float64 (N,)."""
    offsets = np.array([step for step in range(-window_frames, window_frames + 1) if step])
    places = np.arange(len(scores))[:, None]
    beyond = (places + offsets < 0) | (places + offsets >= len(scores))
    neighbours = np.where(beyond, places - offsets, places + offsets)
    exist = (neighbours >= 0) & (neighbours < len(scores))
    sums = np.where(exist, scores[np.where(exist, neighbours, 0)], 0.0).sum(axis=1)
    ratios: NDArray[np.float64] = scores / np.maximum(sums / np.maximum(exist.sum(axis=1), 1), _STILL)
    return ratios


class Cuts:
    def __init__(self, threshold: float, window_frames: int, min_scene_seconds: float) -> None:
        self._threshold, self._window, self._apart = threshold, window_frames, min_scene_seconds
        self._last: Planes | None = None
        self._scores: list[float] = []  # of every frame but the first
        self._seconds: list[float] = []

    def see(self, look: FrameView) -> None:
        now = _planes(look.bgr)
        if self._last is not None:
            self._scores.append(_score(self._last, now))
            self._seconds.append(look.seconds)
        self._last = now

    def finish(self, end_seconds: float) -> Columns:
        scores = np.array(self._scores)
        ratios = _ratios(scores, self._window)
        found: list[float] = []
        likely = np.flatnonzero((scores >= _LEAST_SCORE) & (ratios >= self._threshold))
        for number in likely[np.argsort(-scores[likely], kind="stable")]:
            seconds = self._seconds[number]
            if all(abs(seconds - other) >= self._apart for other in found):
                found.append(seconds)
        return {"num_cuts": len(found), "cut_seconds": [rounded(seconds) for seconds in sorted(found)]}
