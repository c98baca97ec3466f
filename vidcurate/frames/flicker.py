"""Does the brightness jump to and fro? The mean of how far a frame stands out from both its neighbours.

A frame counts when it is brighter than the frames before and behind it, or darker than both, and counts by
the smaller of the two differences. So a cut and a fade, which go one way, are no flicker; light that
alternates between two levels has their difference as its flicker, whatever the frame rate.
"""

import numpy as np

from vidcurate.frames.look import Columns, Look, rounded


class Flicker:
    def __init__(self) -> None:
        self._means: list[float] = []

    def see(self, look: Look) -> None:
        self._means.append(look.brightness)

    def finish(self, end_seconds: float) -> Columns:
        steps = np.diff(self._means)
        if len(steps) < 2:
            return {"flicker": None}
        before, behind = steps[:-1], steps[1:]
        heights = np.where(before * behind < 0, np.minimum(np.abs(before), np.abs(behind)), 0.0)
        return {"flicker": rounded(heights.mean())}
