"""Bucket shapes: frames, height and width of a bucket, and which clips fit.

A light module, below `buckets`, which reads the table, and `buckets_opensora`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.media import resample
from vidcurate.sampler.resolutions import Sizes

MIN_AREA_SHARE = 0.8  # of a resolution's area; clips with less would be upscaled too far
REASONS = ("", "too_small", "too_short", "not_drawn")  # why a clip is in no bucket, by number


Integers = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Bucket: one shape of micro-batches, `micro_batch_size` clips of (num_frames, height, width)."""

    resolution: str
    num_frames: int
    aspect: str
    height: int
    width: int
    micro_batch_size: int
    frame_stride: int = 1
    fps: float | None = field(default=None, repr=False)  # in `name`; not in repr, which fingerprints hash

    @property
    def name(self) -> str:
        rate = f"-{self.fps:g}fps" if self.fps is not None and self.num_frames > 1 else ""
        return f"{self.resolution}-{self.num_frames}f-{self.aspect}{rate}"

    @property
    def num_source_frames(self) -> int:
        """Number of frames that one sample spans, at the frame rate of reading."""
        return (self.num_frames - 1) * self.frame_stride + 1

    def num_clip_frames(self, clip_fps: float) -> int:
        """Return how many frames of a clip with this frame rate one sample spans."""
        if self.fps is None or self.num_frames == 1:
            return self.num_source_frames
        return resample.num_source_frames(self.num_frames, self.frame_stride, clip_fps, self.fps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Buckets of n clips: `bucket` int32 (n,), index or −1; `reason` int8 (n,), index into REASONS."""

    bucket: NDArray[np.int32]
    buckets: tuple[Bucket, ...]
    reason: NDArray[np.int8]

    def counts(self) -> dict[str, int]:
        """Return the number of clips without a bucket, by reason."""
        return {name: int(np.sum(self.reason == number)) for number, name in enumerate(REASONS) if number}


@dataclass(frozen=True, slots=True)
class Length:
    num_frames: int
    num_needed: int  # least number of frames of a clip
    resolution_chance: float
    length_chance: float | None
    number: int  # running number over all lengths of all resolutions: seed of the published draws
    first_bucket: int  # number of the first aspect ratio's bucket; −1: clips go to a smaller resolution


@dataclass(frozen=True, slots=True)
class Resolution:
    name: str
    area: int
    sizes: Sizes
    lengths: tuple[Length, ...]


def nearest_aspect(sizes: Sizes, ratios: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for each height / width, the index in `sizes` of the nearest ratio (of two, the earlier)."""
    keys = np.array([float(key) for key in sizes])
    order = np.argsort(keys, kind="stable")
    above = np.searchsorted(keys[order], ratios).clip(0, len(keys) - 1)
    first, second = order[np.maximum(above - 1, 0)], order[above]
    far_first, far_second = np.abs(keys[first] - ratios), np.abs(keys[second] - ratios)
    take_first = (far_first < far_second) | ((far_first == far_second) & (first < second))
    nearest: NDArray[np.int64] = np.where(take_first, first, second)
    return nearest


def fits_length(length: Length, frames: Integers) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = frames == 1 if length.num_frames == 1 else frames >= length.num_needed
    return fits
