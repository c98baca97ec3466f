"""In which frames does nothing happen? The share of frames that repeat the one before, and the longest run.

A frame repeats the one before when no part of the picture changes by more than coding noise: neither the
whole by a thousandth of white on average (the -60 dB of FFmpeg's freezedetect) nor any of its blocks by more
than two levels, so that a face that only blinks is not frozen. Film shown at video rate repeats every fourth
or fifth frame: its share is a fifth and its longest run one frame.
"""

import cv2
import numpy as np

from vidcurate.frames.look import Columns, Look, Pixels, rounded

_LARGEST_MEAN = 0.255
_LARGEST_BLOCK_MEAN = 2.0
_BLOCK_PX = 6


class Frozen:
    def __init__(self) -> None:
        self._last: Pixels | None = None
        self._repeats: list[bool] = []
        self._seconds: list[float] = []

    def see(self, look: Look) -> None:
        self._seconds.append(look.seconds)
        if self._last is not None:
            change = cv2.absdiff(look.grey, self._last)
            is_still = cv2.mean(change)[0] <= _LARGEST_MEAN
            if is_still:
                height, width = (max(1, size // _BLOCK_PX) for size in change.shape)
                blocks = cv2.resize(change.astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
                is_still = float(blocks.max()) <= _LARGEST_BLOCK_MEAN
            self._repeats.append(is_still)
        self._last = look.grey

    def finish(self, end_seconds: float) -> Columns:
        if not self._repeats:
            return {"frozen_share": None, "frozen_longest_seconds": None}
        ends = [*self._seconds[1:], end_seconds]
        longest = since = 0.0
        for number, repeats in enumerate(self._repeats, start=1):
            if repeats:
                longest = max(longest, ends[number] - since)
            else:
                since = self._seconds[number]
        return {
            "frozen_share": rounded(float(np.mean(self._repeats))),
            "frozen_longest_seconds": rounded(longest),
        }
