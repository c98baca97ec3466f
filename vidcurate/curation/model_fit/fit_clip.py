"""Fit of a clip to a model: size, crop, frames and rate, or the reason against."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from vidcurate.curation.model_fit.models import Model, SizeClass

# Share of a frame's time that a clip must cover for the frame to be promised. `media.transcode` writes a
# frame when the clip covers half of it; the rest is for time stamps that containers round (Matroska: 1 ms).
_COVERED = 0.55
_MOST_DENOMINATOR = 1001  # 30000/1001 and its like; `media.transcode` rounds the same way


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Clip as a model takes it. Without a `reason` the clip is taken.

    `reason`: unknown (the table lacks a size, rate or length), still_image (one frame), too_short, too_small,
    or None. `width` and
    `height` (px), `num_frames`, `fps` (frames/s) and `duration_seconds` are those of the written clip, 0 when
    the clip is not taken. `size` is the size class, None for a clip below the smallest one, which keeps its
    size. `crop_share`: pixels of the frame that are cut away, 0 to 1. `scale`: written px per px, at most 1.
    `rate_factor`: written over own frame rate; `has_repeats`: the model's rate is higher, so frames repeat.
    `used_share`: written over own duration. `tokens`: length of the model's sequence.
    """

    reason: str | None
    width: int = 0
    height: int = 0
    num_frames: int = 0
    fps: float = 0.0
    duration_seconds: float = 0.0
    size: str | None = None
    crop_share: float = 0.0
    scale: float = 1.0
    rate_factor: float = 1.0
    used_share: float = 0.0
    tokens: int = 0

    @property
    def is_retimed(self) -> bool:
        return abs(self.rate_factor - 1) > 1e-6

    @property
    def has_repeats(self) -> bool:
        return self.rate_factor > 1 + 1e-6

    @property
    def is_cropped(self) -> bool:
        return self.crop_share > 0


@lru_cache(maxsize=4096)
def exact_rate(fps: float) -> Fraction:
    """Return a frame rate as the fraction that it stands for: 29.97003 is 30000/1001. Cached."""
    return Fraction(fps).limit_denominator(_MOST_DENOMINATOR)


def frames_at(rate: Fraction, *, fps: Fraction, num_frames: int, duration_seconds: float) -> int:
    """Return how many frames at `rate` (frames/s) a clip gives; each is the frame shown in its middle.

    A clip whose duration is shorter than its frames at `fps` counts with its duration.
    """
    if rate == fps:
        return num_frames
    seconds = num_frames / float(fps)
    if duration_seconds < seconds - 0.5 / float(fps):
        seconds = duration_seconds
    return max(0, math.ceil(seconds * float(rate) - _COVERED))


def _class_of(model: Model, width: int, height: int, wanted: str | None) -> SizeClass | None:
    """Return the largest size class that the clip fills; None below the smallest (or below `wanted`)."""
    for one in reversed(model.sizes):
        if wanted not in (None, one.name):
            continue
        if model.is_fixed_size:
            fills = width >= one.width and height >= one.height
        else:
            fills = width * height >= one.width * one.height
        if fills:
            return one
    return None


def _size_of(model: Model, size: SizeClass | None, width: int, height: int) -> tuple[int, int]:
    """Return (width, height) to write, both at most the clip's; 0 where no valid size is small enough."""
    if size is not None and model.is_fixed_size:
        return size.width, size.height
    multiple = model.size_multiple_px
    scale = math.sqrt(size.width * size.height / (width * height)) if size is not None else 1.0
    return tuple(  # type: ignore[return-value]
        min(max(1, round(side * min(1.0, scale) / multiple)), side // multiple) * multiple
        for side in (width, height)
    )


def fit_clip(
    model: Model,
    *,
    width: int | None,
    height: int | None,
    fps: float | None,
    num_frames: int | None,
    duration_seconds: float | None,
    size: str | None = None,
    frames: int | None = None,
) -> Fit:
    """Return what `model` takes of a clip; the clip's values are those of its table row.

    `width` and `height` are as displayed (px), `fps` in frames/s. Without `size` the clip gets the largest
    size class that it fills; no clip is scaled up. Without `frames` the clip keeps as many as are valid; with
    `frames` exactly so many, from the clip's start. `check_choice` has refused values that no clip can have.
    """
    if not width or not height or not fps or not num_frames or not math.isfinite(fps):
        return Fit(reason="unknown")
    if num_frames == 1:
        return Fit(reason="still_image")
    own = exact_rate(fps)
    if own <= 0:
        return Fit(reason="unknown")
    seconds = num_frames / float(own) if duration_seconds is None else duration_seconds
    rate = own if model.fps is None else exact_rate(model.fps)
    at_rate = frames_at(rate, fps=own, num_frames=num_frames, duration_seconds=seconds)
    count = model.most_valid(at_rate) if frames is None else frames if at_rate >= frames else 0
    if not count:
        return Fit(reason="too_short")
    found = _class_of(model, width, height, size)
    if found is None and model.is_fixed_size:
        return Fit(reason="too_small")
    new_width, new_height = _size_of(model, found, width, height)
    if not new_width or not new_height:
        return Fit(reason="too_small")
    shape = (new_width * height) / (new_height * width)
    duration = count / float(rate)
    return Fit(
        reason=None,
        width=new_width,
        height=new_height,
        num_frames=count,
        fps=float(rate),
        duration_seconds=round(duration, 6),
        size=found.name if found else None,
        crop_share=1 - min(shape, 1 / shape),
        scale=max(new_width / width, new_height / height),
        rate_factor=float(rate / own),
        used_share=min(1.0, duration * float(own) / num_frames),
        tokens=model.num_tokens(new_width, new_height, count),
    )
