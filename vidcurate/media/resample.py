"""Resample the frame rate: for each output time, the nearest frame of the clip.

Of two equally near frames, the later. (FFmpeg's `fps` filter takes the frame shown in the middle of the
output frame's interval.) Times count from the first frame of the sample. With a frame map, the clip's real
times decide, also at a variable rate; without one the frames count as evenly spaced. The arithmetic uses
integers or one product of two doubles, so every machine finds the same frames.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.media.frame_map import FrameMap


def source_frames(ticks: Any, ratio: Any) -> Any:
    """Return the evenly spaced frame nearest to each tick of another clock, `ratio` frames per tick."""
    return np.floor(ticks * ratio + 0.5)


def num_ticks(num_frames: NDArray[Any], clip_fps: NDArray[np.float64], fps: float) -> NDArray[np.int64]:
    """Return the number of frames at `fps` of the clips (n,); 1 for an image, 0 for less than two frames.

    A clip of unknown rate (NaN) keeps its own number.
    """
    known = np.where(np.isnan(clip_fps), fps, clip_fps) / fps
    ticks = np.ceil((num_frames - 0.5) / known)
    ticks -= source_frames(ticks - 1, known) > num_frames - 1
    return np.where(num_frames > 1, np.where(ticks > 1, ticks, 0), num_frames).astype(np.int64)


def num_source_frames(num_frames: int, frame_stride: int, clip_fps: float, fps: float) -> int:
    """Return the number of clip frames that a sample of `num_frames` frames at `fps` spans."""
    return int(source_frames((num_frames - 1) * frame_stride, clip_fps / fps)) + 1


def frame_numbers(
    first: int,
    num_frames: int,
    frame_stride: int,
    *,
    clip_fps: float | None = None,
    fps: float | None = None,
    frame_map: FrameMap | None = None,
) -> list[int]:
    """Return the frames of a sample: every `frame_stride`-th from `first` on, at the clip's rate or at `fps`.

    At a higher rate than the clip's, numbers repeat. Times beyond the last frame, which occur only at a
    variable rate, use the last frame.
    """
    ticks = np.arange(num_frames, dtype=np.int64) * frame_stride
    if fps is None:
        after = ticks
    elif frame_map is None or first >= len(frame_map):
        after = source_frames(ticks, (clip_fps or fps) / fps).astype(np.int64)
    else:
        rate = Fraction(fps).limit_denominator(1001)
        tick = 1 / (rate * frame_map.time_base)  # in the container's clock
        times = (frame_map.pts[first:] - frame_map.pts[first]) * tick.denominator
        middles = times[:-1] + times[1:]  # twice the time from which on the next frame is nearer
        after = np.searchsorted(middles, 2 * ticks * tick.numerator, side="right")
    numbers: list[int] = (first + after).tolist()
    return numbers
