"""Buckets: which clips are trained at which resolution, length and aspect ratio.

A bucket is one shape (frames, height, width), so a micro-batch of one bucket is one tensor. A clip goes to
the largest resolution that the clip fills and whose random draw it wins, there to the longest length that it
has, there to the nearest aspect ratio. The size tables and this search are those of Open-Sora v1.2. There the
draws depend on the row number in a CSV, so one new row moves all others; here the draws depend on the clip
id. `published: true` selects the published draws (`buckets_opensora`).

A light module: it runs on GPU machines before anything heavy is loaded.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from vidcurate import rng
from vidcurate.errors import InputError
from vidcurate.recipe.recipe import Recipe
from vidcurate.sampler import cost_table
from vidcurate.sampler.bucket_shapes import (
    MIN_AREA_SHARE,
    REASONS,
    Assignment,
    Bucket,
    Integers,
    Length,
    Resolution,
    fits_length,
    nearest_aspect,
)
from vidcurate.sampler.buckets_opensora import assign_opensora
from vidcurate.sampler.resolutions import AREAS, Sizes, published_sizes

# An own size may differ so much from the ratio that names it; the published ones do by up to 3 %.
MOST_KEY_ERROR = 0.15
MOST_SIDE_PX = 1 << 16  # the longest side that AV1 has room for
Chance = float | tuple[float, float]
Table = dict[str, dict[str, tuple[Chance, int | Literal["auto"] | None]]]


class BucketSpec(Recipe):
    """Bucket table of a recipe.

    `table`: resolution → frames → [chance, clips of a micro-batch]. The chance is that of keeping a clip at
    this resolution, or [chance of the resolution, chance of the length]: a clip that loses the second tries
    the next shorter length. [0.0, null] sends all clips of this length to a smaller resolution. A length of 1
    takes images only.
    [1.0, auto] takes as many clips as `micro_batch_seconds` suffice for by the measured `cost_table`.
    `sizes`: tables of your own, name → aspect ratio (height / width) → [height, width] in pixels.
    `frame_stride`: take every n-th frame of a clip. `published`: Open-Sora's draws, by row number, and its
    rule that a clip needs more frames than the bucket has.
    """

    table: Table
    """resolution → number of frames → (share of the fitting clips that is kept there, clips of a
    micro-batch); a pair of shares is one for the resolution and one for the length"""
    cost_table: Path | None = None
    """file with measured seconds (measured_on, seconds_per_micro_batch, seconds_per_clip), for auto"""
    micro_batch_seconds: float | None = Field(default=None, gt=0)
    """s that a micro-batch should take, for auto"""
    sizes: dict[str, dict[str, tuple[int, int]]] = Field(default={})
    """resolutions of your own: name → aspect key (height / width) → height and width in px"""
    frame_stride: int = Field(default=1, ge=1)
    """read every n-th frame"""
    fps: float | None = Field(default=None, gt=0)
    """frame rate at which all clips are read, the nearest frame for each time; null: each at its own"""
    published: bool = False
    """assign as the published code did, by row number and with a strict length test"""

    @field_validator("sizes")
    @classmethod
    def _sizes_are_sizes(cls, sizes: dict[str, Sizes]) -> dict[str, Sizes]:
        for name, table in sizes.items():
            if name in AREAS:
                raise ValueError(f"{name} is a published resolution; give your table another name")
            if not table:
                raise ValueError(f"{name} has no sizes; add one such as '1.00': [32, 32]")
            ratios = [_number(key, f"{name}.{key}") for key in table]
            if len(set(ratios)) < len(ratios):
                raise ValueError(f"{name} gives one aspect ratio twice")
            for key, (height, width) in table.items():
                if height < 1 or width < 1 or _number(key, key) <= 0:
                    raise ValueError(f"{name}.{key} needs a ratio, a height and a width above 0")
                if max(height, width) > MOST_SIDE_PX:
                    raise ValueError(f"{name}.{key} needs sides of at most {MOST_SIDE_PX:,} px")
                if abs(height / width / _number(key, key) - 1) > MOST_KEY_ERROR:
                    raise ValueError(
                        f"{name}.{key} is the ratio of [{height}, {width}], which is {height / width:.2f} "
                        "(height / width); clips would go to the wrong shape"
                    )
        return sizes

    @model_validator(mode="after")
    def _table_fits(self) -> "BucketSpec":
        if not any(self.table.values()):
            raise ValueError("table is empty; add a bucket such as 144p: {51: [1.0, 8]}")
        if self.published and self.fps is not None:
            raise ValueError("published knows no frame rate of its own; leave out fps beside it")
        for resolution, lengths in self.table.items():
            if resolution not in AREAS and resolution not in self.sizes:
                known = ", ".join([*AREAS, *self.sizes])
                raise ValueError(
                    f"table.{resolution} is no resolution; known are {known}, or add it to sizes"
                )
            for frames, (chance, clips) in lengths.items():
                where = f"table.{resolution}.{frames}"
                if not frames.isascii() or not frames.isdecimal() or int(frames) < 1:
                    raise ValueError(f"{where} is no number of frames")
                chances = chance if isinstance(chance, tuple) else (chance,)
                if not all(0 <= value <= 1 for value in chances):
                    raise ValueError(f"{where} has the chance {chance}; it must lie in 0 to 1")
                if int(frames) == 1 and len(chances) == 2:
                    raise ValueError(f"{where} is for images; give one chance, there is no shorter length")
                if clips is None and chances != (0.0,):
                    raise ValueError(f"{where} has no micro-batch size; only the chance 0.0 may go without")
                if clips == "auto":
                    if self.cost_table is None or self.micro_batch_seconds is None:
                        raise ValueError(f"{where} is auto; that needs cost_table and micro_batch_seconds")
                elif clips is not None and clips < 1:
                    raise ValueError(f"{where} has the micro-batch size {clips}; it must be 1 or more")
        return self


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"sizes.{where} is no aspect ratio (height / width), such as 0.56")
    return number


def _resolutions_and_buckets(spec: BucketSpec) -> tuple[tuple[Resolution, ...], tuple[Bucket, ...]]:
    """Return the resolutions, largest first, with their lengths, longest first; and all buckets."""
    sizes = {name: spec.sizes.get(name) or published_sizes(name) for name in spec.table}
    area = {name: AREAS.get(name) or max(h * w for h, w in sizes[name].values()) for name in spec.table}
    costs = cost_table.read_cost_table(spec.cost_table) if spec.cost_table else None
    buckets: list[Bucket] = []
    resolutions: list[Resolution] = []
    number = 0
    for name in sorted(spec.table, key=lambda name: -area[name]):
        lengths: list[Length] = []
        for frames in sorted(map(int, spec.table[name]), reverse=True):
            chance, clips = spec.table[name][str(frames)]
            if clips == "auto":
                if costs is None or spec.micro_batch_seconds is None:
                    raise AssertionError("a spec with auto has both")
                where = str(spec.cost_table)
                clips = cost_table.clips(costs, name, frames, spec.micro_batch_seconds, where)
            both = chance if isinstance(chance, tuple) else (chance, None)
            # The published test is strict, and counts the stride behind the last frame too.
            needed = (
                frames * spec.frame_stride + 1 if spec.published else (frames - 1) * spec.frame_stride + 1
            )
            lengths.append(
                Length(frames, needed, both[0], both[1], number, -1 if clips is None else len(buckets))
            )
            number += 1
            if clips is not None:
                buckets.extend(
                    Bucket(
                        resolution=name,
                        num_frames=frames,
                        aspect=aspect,
                        height=height,
                        width=width,
                        micro_batch_size=clips,
                        frame_stride=spec.frame_stride,
                        fps=spec.fps,
                    )
                    for aspect, (height, width) in sizes[name].items()
                )
        resolutions.append(Resolution(name, area[name], sizes[name], tuple(lengths)))
    return tuple(resolutions), tuple(buckets)


def all_buckets(spec: BucketSpec) -> tuple[Bucket, ...]:
    """Return every bucket of the table: largest resolution first, longest length first.

    Raises RecipeError when the cost table cannot be read or lacks a bucket.
    """
    return _resolutions_and_buckets(spec)[1]


def assign(
    spec: BucketSpec,
    clip_ids: Any,
    num_frames: Integers,
    heights: Integers,
    widths: Integers,
    seed: int,
) -> Assignment:
    """Assign each clip to its bucket.

    `clip_ids` are strings (a sequence or a pyarrow array) or, as uint64 (n,), their `rng.id_hashes`;
    `num_frames`, `heights`, `widths` are whole numbers (n,), the sizes in pixels as displayed; 0 means
    unknown and fits no bucket. The result for a clip depends on its own row only, with `spec.published` also
    on its row number. Raises InputError when the lengths differ, RecipeError as `all_buckets` does.
    """
    is_hashed = isinstance(clip_ids, np.ndarray) and clip_ids.dtype == np.uint64
    lengths = {len(clip_ids), len(num_frames), len(heights), len(widths)}
    if len(lengths) > 1:
        raise InputError(
            f"clip_ids, num_frames, heights and widths have {sorted(lengths)} rows; give equal numbers."
        )
    resolutions, buckets = _resolutions_and_buckets(spec)
    count = len(clip_ids)
    bucket = np.full(count, -1, dtype=np.int32)
    reason = np.zeros(count, dtype=np.int8)
    if spec.published:
        return assign_opensora(resolutions, buckets, num_frames, heights, widths, seed)

    def assign_chunk(rows: slice) -> None:
        hashes = clip_ids[rows] if is_hashed else rng.id_hashes(clip_ids[rows])
        bucket[rows], reason[rows] = _assign_chunk(
            resolutions, hashes, num_frames[rows], heights[rows], widths[rows], seed
        )

    rng.by_chunks(count, assign_chunk)
    return Assignment(bucket=bucket, buckets=buckets, reason=reason)


def _assign_chunk(
    resolutions: Sequence[Resolution],
    hashes: rng.Words,
    num_frames: Integers,
    heights: Integers,
    widths: Integers,
    seed: int,
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    height, width = heights.astype(np.float64), widths.astype(np.float64)
    area = height * width
    bucket = np.full(len(hashes), -1, dtype=np.int32)
    left = np.flatnonzero(area > 0)
    for resolution in resolutions:
        trying = left[np.flatnonzero(area[left] >= MIN_AREA_SHARE * resolution.area)]
        frames = num_frames[trying]
        for length in resolution.lengths:
            fits = fits_length(length, frames)
            if length.length_chance is not None and length.length_chance < 1:
                draw = rng.key("length", seed, resolution.name, length.num_frames)
                fits &= rng.uniform(hashes[trying], draw) < length.length_chance
            # Indexing by row numbers is several times as fast as by a random mask.
            here, rest = trying[np.flatnonzero(fits)], np.flatnonzero(~fits)
            trying, frames = trying[rest], frames[rest]
            if length.resolution_chance < 1:
                draw = rng.key("resolution", seed, resolution.name, length.num_frames)
                here = here[np.flatnonzero(rng.uniform(hashes[here], draw) < length.resolution_chance)]
            if length.first_bucket >= 0:
                bucket[here] = length.first_bucket + nearest_aspect(
                    resolution.sizes, height[here] / width[here]
                )
        left = left[np.flatnonzero(bucket[left] < 0)]
    return bucket, _reasons(resolutions, bucket, num_frames, area)


def _reasons(
    resolutions: Sequence[Resolution],
    bucket: NDArray[np.int32],
    num_frames: Integers,
    area: NDArray[np.float64],
) -> NDArray[np.int8]:
    reason = np.zeros(len(bucket), dtype=np.int8)
    left = np.flatnonzero(bucket < 0)
    reason[left] = REASONS.index("too_small")
    for resolution in resolutions:
        trying = left[(area[left] >= MIN_AREA_SHARE * resolution.area) & (area[left] > 0)]
        reason[trying] = np.maximum(reason[trying], REASONS.index("too_short"))
        for length in resolution.lengths:
            reason[trying[fits_length(length, num_frames[trying])]] = REASONS.index("not_drawn")
    return reason
