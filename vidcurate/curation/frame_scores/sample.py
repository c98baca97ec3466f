"""Sampled frames of a clip, at the positions of its hashes and at any size."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vidcurate.curation.frame_scores.hashes import POSITIONS
from vidcurate.errors import MediaError
from vidcurate.media import decode
from vidcurate.media.container import opened, packets_of
from vidcurate.media.transcode import frame_rate, origin_seconds


def frame_numbers(
    path: Path, start_seconds: float | None, end_seconds: float | None, positions: Sequence[float]
) -> list[int]:
    """Return the display-order frame numbers in the file at these shares of the clip, without decoding.

    A short clip gives the same number several times. Raises MediaError, kind no_frames.
    """
    start, end = start_seconds or 0.0, float("inf") if end_seconds is None else end_seconds
    with opened(path) as (container, stream):
        half, origin = 0.5 / float(frame_rate(container, stream)), origin_seconds(stream)
        times = [
            float(packet.pts * stream.time_base) - origin if packet.pts is not None else None
            for packet in packets_of(container, stream)
            if packet.size and not packet.is_discard
        ]
    known = [time for time in times if time is not None]
    # A stream without time stamps has its frames at the rate of its header.
    stamps = np.sort(known) if len(known) == len(times) else np.arange(len(times)) * 2 * half
    inside = np.flatnonzero((stamps + half >= start) & (stamps + half < end))
    if not len(inside):
        raise MediaError(f"{path.name}: the clip contains no frame.", kind="no_frames")
    places = np.minimum((np.asarray(positions) * len(inside)).astype(int), len(inside) - 1)
    return [int(number) for number in inside[places]]


def read_sample(
    path: Path,
    start_seconds: float | None,
    end_seconds: float | None,
    *,
    height: int,
    width: int,
    positions: Sequence[float] = POSITIONS,
) -> NDArray[np.uint8]:
    """Return uint8 RGB (len(positions), height, width, 3): the frames at these shares of the clip, in order.

    `positions` rise from 0 to 1. Frames are upright, scaled to cover the size and centre-cropped; frames with
    concealed damage are included. Raises MediaError as `read_frames` does, and kind no_frames.
    """
    numbers = frame_numbers(path, start_seconds, end_seconds, positions)
    wanted = sorted(set(numbers))
    frames = decode.read_frames(path, wanted, height=height, width=width, accept_corrupt=True)
    return frames[[wanted.index(number) for number in numbers]]
