"""Frozen frames: share of repeated frames, and the longest frozen run.

A frame repeats when it differs by at most the coding noise from the previous frame, and by at most twice that
from the last frame that did not repeat (the changes of a slow zoom are small but add up). Noise is half a
level on average over the frame (FFmpeg's freezedetect allows a quarter; encoders that keep refining a still
image need more) and two levels in any block, so that a blinking face is not frozen. Film at video rate
repeats every fourth or fifth frame: its longest run is two frames.
"""

import cv2
import numpy as np

from vidcurate.curation.frame_scores.scorer import Columns, FrameView, Pixels, rounded

_NOISE = 0.5
_BLOCK_NOISE = 2.0
_BLOCK_PX = 6


def _repeats(picture: Pixels, other: Pixels, noises: int) -> bool:
    """Return whether two frames differ by at most `noises` times the noise."""
    change = cv2.absdiff(picture, other)
    if cv2.mean(change)[0] > noises * _NOISE:
        return False
    height, width = (max(1, size // _BLOCK_PX) for size in change.shape)
    blocks = cv2.resize(change.astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
    return float(blocks.max()) <= noises * _BLOCK_NOISE


class Frozen:
    def __init__(self) -> None:
        self._last: Pixels | None = None
        self._shown: Pixels | None = None
        self._found: list[bool] = []
        self._seconds: list[float] = []

    def see(self, look: FrameView) -> None:
        repeats = False
        if self._last is not None and self._shown is not None:
            repeats = _repeats(look.grey, self._last, 1) and _repeats(look.grey, self._shown, 2)
        if not repeats:
            self._shown = look.grey
        self._last = look.grey
        self._found.append(repeats)
        self._seconds.append(look.seconds)

    def finish(self, end_seconds: float) -> Columns:
        if len(self._found) < 2:
            return {"frozen_share": None, "frozen_longest_seconds": None}
        ends = [*self._seconds[1:], end_seconds]
        longest = since = 0.0
        for number, repeats in enumerate(self._found):
            if repeats:
                longest = max(longest, ends[number] - since)
            else:
                since = self._seconds[number]
        return {
            "frozen_share": rounded(float(np.mean(self._found[1:]))),
            "frozen_longest_seconds": rounded(longest),
        }
