"""Has the picture black bars? The rows and columns that a crop would take off, as displayed.

A bar is black in every frame that is looked at, and ends at a straight edge: right behind it, in at least one
frame, most of the row is not black. A dark scene has dark borders without such an edge, so it keeps them;
so does a clip that is black throughout.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from vidcurate.frames.look import Columns, Look

_BAR_LEVEL = 12  # of 255: black with the noise that coding adds
_BAR_SHARE = 0.01  # of a row's pixels may be brighter in a bar
_EDGE_SHARE = 0.5  # of a row's pixels are brighter behind it
_EDGE_PX = 4  # rows over which coding smears the edge
_LARGEST_SHARE = 0.45  # of the side; what leaves less than a tenth is no bar but a picture in the dark


def _bar(bright: NDArray[np.float64]) -> int:
    """Return how many lines at the beginning are a bar, given each line's share of bright pixels."""
    lines = np.flatnonzero(bright > _BAR_SHARE)
    if not len(lines) or lines[0] == 0 or lines[0] > _LARGEST_SHARE * len(bright):
        return 0
    edge = bright[lines[0] : lines[0] + _EDGE_PX]
    return int(lines[0]) if edge.max() >= _EDGE_SHARE else 0


class Letterbox:
    def __init__(self) -> None:
        self._rows: NDArray[np.float64] | None = None
        self._columns: NDArray[np.float64] | None = None

    def see(self, look: Look) -> None:
        if look.luma is None:
            return
        bright = cv2.threshold(look.luma, _BAR_LEVEL, 1, cv2.THRESH_BINARY)[1]
        height, width = bright.shape
        rows = cv2.reduce(bright, 1, cv2.REDUCE_SUM, dtype=cv2.CV_32S)[:, 0] / width
        columns = cv2.reduce(bright, 0, cv2.REDUCE_SUM, dtype=cv2.CV_32S)[0] / height
        if self._rows is None or self._columns is None or len(self._rows) != height:
            self._rows, self._columns = rows, columns
        else:
            self._rows, self._columns = np.maximum(self._rows, rows), np.maximum(self._columns, columns)

    def finish(self, end_seconds: float) -> Columns:
        if self._rows is None or self._columns is None:
            return dict.fromkeys(f"letterbox_{side}_px" for side in ("top", "bottom", "left", "right"))
        return {
            "letterbox_top_px": _bar(self._rows),
            "letterbox_bottom_px": _bar(self._rows[::-1]),
            "letterbox_left_px": _bar(self._columns),
            "letterbox_right_px": _bar(self._columns[::-1]),
        }
