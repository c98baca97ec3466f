"""In which frames does nothing happen? The share of frames that repeat what was shown, and the longest run.

A frame repeats when it differs by no more than coding noise from the frame before it, and by no more than
twice that from the last frame that did not repeat: a slow zoom changes little from frame to frame, but it
adds up. Noise is half a level on average over the picture (FFmpeg's freezedetect allows a quarter; encoders
that go on refining a still picture need more) and two levels in any block, so that a face that only blinks
is not frozen. Film shown at video rate repeats every fourth or fifth frame: its longest run is two frames.
"""

import cv2
import numpy as np

from vidcurate.curation.frame_scores.scorer import Columns, FrameView, Pixels, rounded

_NOISE = 0.5
_BLOCK_NOISE = 2.0
_BLOCK_PX = 6


def _repeats(picture: Pixels, other: Pixels, noises: int) -> bool:
    """Say whether two pictures differ by no more than `noises` times the noise."""
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
