"""Luma scores: black frames, brightness and flicker.

Black frames: their share, and the length of black at the start and the end of the clip. A frame is black when
98 % of its pixels are no brighter than a tenth of white: the definition, and the
defaults, of FFmpeg's blackdetect.
"""

import cv2
import numpy as np

from vidcurate.curation.frame_scores.scorer import Columns, FrameView, aggregates, rounded

_BLACK_LEVEL = 25  # 0.10 of 255
_BLACK_PIXELS = 0.98


class Black:
    def __init__(self) -> None:
        self._is_black: list[bool] = []
        self._seconds: list[float] = []

    def see(self, look: FrameView) -> None:
        bright = cv2.countNonZero(cv2.threshold(look.grey, _BLACK_LEVEL, 255, cv2.THRESH_BINARY)[1])
        self._is_black.append(bright <= (1 - _BLACK_PIXELS) * look.grey.size)
        self._seconds.append(look.seconds)

    def finish(self, end_seconds: float) -> Columns:
        is_black = np.asarray(self._is_black)
        shown = np.flatnonzero(~is_black)
        if len(shown):
            ends = [*self._seconds[1:], end_seconds]
            head, tail = self._seconds[shown[0]], end_seconds - ends[shown[-1]]
        else:
            head = tail = end_seconds
        return {
            "black_share": rounded(is_black.mean()),
            "black_head_seconds": rounded(head),
            "black_tail_seconds": rounded(tail),
        }


class _MeanLuma:
    def __init__(self) -> None:
        self._means: list[float] = []

    def see(self, look: FrameView) -> None:
        self._means.append(look.brightness)


class Flicker(_MeanLuma):
    def finish(self, end_seconds: float) -> Columns:
        steps = np.diff(self._means)
        if len(steps) < 2:
            return {"flicker": None}
        before, behind = steps[:-1], steps[1:]
        heights = np.where(before * behind < 0, np.minimum(np.abs(before), np.abs(behind)), 0.0)
        return {"flicker": rounded(heights.mean())}


class Brightness(_MeanLuma):
    def finish(self, end_seconds: float) -> Columns:
        return aggregates("brightness", self._means)
