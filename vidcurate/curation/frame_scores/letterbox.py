"""Letterbox: black bars of a clip in px, as displayed.

A bar is black in every sampled frame and ends at a straight edge: in at least one frame, most of the row
right after the bar is not black. A dark scene has dark borders without such an edge, so they are not bars; a
fully black clip has none either.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.frame_scores.scorer import Columns, FrameView, Pixels

_BAR_LEVEL = 12  # of 255: black with the noise that coding adds
_BAR_SHARE = 0.01  # of a row's pixels may be brighter in a bar
_EDGE_SHARE = 0.5  # of a row's pixels are brighter behind it
_EDGE_PX = 4  # rows over which coding smears the edge
_LARGEST_SHARE = 0.45  # of the side; larger dark borders are a dark scene, not bars
_SIDES = ("top", "bottom", "left", "right")
Shares = tuple[NDArray[np.float64], NDArray[np.float64]]


def bright_shares(luma: Pixels) -> Shares:
    """Return the share of pixels that are not black of each row, and of each column, of luma (H, W)."""
    bright = cv2.threshold(luma, _BAR_LEVEL, 1, cv2.THRESH_BINARY)[1]
    height, width = bright.shape
    rows = cv2.reduce(bright, 1, cv2.REDUCE_SUM, dtype=cv2.CV_32S)[:, 0] / width
    return rows, cv2.reduce(bright, 0, cv2.REDUCE_SUM, dtype=cv2.CV_32S)[0] / height


def _bar(bright: NDArray[np.float64]) -> int:
    lines = np.flatnonzero(bright > _BAR_SHARE)
    if not len(lines) or lines[0] == 0 or lines[0] > _LARGEST_SHARE * len(bright):
        return 0
    edge = bright[lines[0] : lines[0] + _EDGE_PX]
    return int(lines[0]) if edge.max() >= _EDGE_SHARE else 0


def bars(shares: Shares) -> tuple[int, int, int, int]:
    """Return how many px at the top, bottom, left and right are bars."""
    rows, columns = shares
    return _bar(rows), _bar(rows[::-1]), _bar(columns), _bar(columns[::-1])


class Letterbox:
    def __init__(self) -> None:
        self._shares: Shares | None = None

    def see(self, look: FrameView) -> None:
        if look.luma is None:
            return
        rows, columns = bright_shares(look.luma)
        if self._shares is None or self._shares[0].shape != rows.shape:
            self._shares = rows, columns
        else:
            self._shares = np.maximum(self._shares[0], rows), np.maximum(self._shares[1], columns)

    def finish(self, end_seconds: float) -> Columns:
        found = bars(self._shares) if self._shares is not None else (None,) * 4
        return {f"letterbox_{side}_px": bar for side, bar in zip(_SIDES, found, strict=True)}
