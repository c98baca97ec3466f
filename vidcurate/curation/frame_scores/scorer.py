"""What a score sees of a clip, and what a score is, so that every score is one file and one line in `frames`.

The walk decodes a frame once, scales it once and shows it to every score. A score keeps what it needs between
frames and says its columns at the end; it opens no file and knows no decoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.clip_table.schema import AGGREGATES

Pixels = NDArray[np.uint8]
Columns = dict[str, Any]
# Containers round times: a frame that is due within this time is due.
SLACK_SECONDS = 1e-3
_DIGITS = 6  # behind them the last bit of a sum may differ between machines


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameView:
    """One decoded frame, upright, in square pixels and full range (0 is black, 255 is white).

    `seconds` counts from the clip's first frame. `bgr` (h, w, 3) and `grey` (h, w) are the small picture,
    `brightness` is the mean of its grey; `luma` (H, W) is the whole one in the pixels of the display, on some
    frames only, else None.
    """

    seconds: float
    bgr: Pixels
    grey: Pixels
    brightness: float
    luma: Pixels | None


class FrameScorer(Protocol):
    """A score of the pictures of one clip. A new one is made for each clip."""

    def see(self, look: FrameView) -> None:
        """Take in the next frame, in the order of display."""

    def finish(self, end_seconds: float) -> Columns:
        """Return the columns of the clip, which has had at least one frame and ends at `end_seconds`."""


def aggregates(name: str, values: Sequence[float]) -> Columns:
    """Return `name`_min, _mean, _median, _max and _first of `values`; nulls when there are none."""
    if not len(values):
        return {f"{name}_{aggregate}": None for aggregate in AGGREGATES}
    numbers = np.asarray(values, dtype=np.float64)
    found = {
        "min": numbers.min(),
        "mean": numbers.mean(),
        "median": np.median(numbers),
        "max": numbers.max(),
        "first": numbers[0],
    }
    return {f"{name}_{aggregate}": rounded(found[aggregate]) for aggregate in AGGREGATES}


def rounded(value: float) -> float:
    return round(float(value), _DIGITS)
