"""Frame scorer protocol: what a scorer receives per frame and returns per clip.

The walk decodes and scales each frame once and passes it to every scorer. A scorer keeps its own state
between frames and returns its columns at the end; it opens no file and does not depend on the decoder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Columns = dict[str, Any]
# Tolerance of frame times, s: containers round them.
SLACK_SECONDS = 1e-3
_DIGITS = 6  # further digits may differ between machines


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameView:
    """Decoded frame, upright, in square pixels and full range (0 is black, 255 is white).

    `seconds` counts from the clip's first frame. `bgr` (h, w, 3) and `grey` (h, w) are the small frame,
    `brightness` is the mean of `grey`; `luma` (H, W) is the full-size frame as displayed, on some frames
    only, else None. `is_out_of_turn`: not at a time of the sample, but brighter than all frames before.
    """

    seconds: float
    bgr: Pixels
    grey: Pixels
    brightness: float
    luma: Pixels | None
    is_out_of_turn: bool = False


class FrameScorer(Protocol):
    """Scorer of the frames of one clip; each clip gets a new instance."""

    def see(self, look: FrameView) -> None:
        """Receive the next frame in display order."""

    def finish(self, end_seconds: float) -> Columns:
        """Return the columns of the clip, which has at least one frame and ends at `end_seconds`."""


def aggregates(name: str, values: Sequence[float]) -> Columns:
    """Return `name`_min, _mean, _median, _max and _first of `values`; nulls when there are none."""
    numbers = np.asarray(values, dtype=np.float64)
    # Those of `schema.AGGREGATES`, which a worker does not import: polars is 50 MB in each.
    found: dict[str, Callable[[], float]] = {
        "min": numbers.min,
        "mean": numbers.mean,
        "median": lambda: np.median(numbers),
        "max": numbers.max,
        "first": lambda: numbers[0],
    }
    return {f"{name}_{each}": rounded(of()) if numbers.size else None for each, of in found.items()}


def rounded(value: float) -> float:
    return round(float(value), _DIGITS)
