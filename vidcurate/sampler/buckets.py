"""Buckets: which clips are trained at which resolution, length and aspect ratio.

A bucket is one shape (frames, height, width), so a micro-batch of it is one tensor. A clip goes to the
largest resolution that it fills and whose draw it wins, there to the longest length that it has, there to the
nearest aspect ratio. The tables of sizes and the walk are those of Open-Sora v1.2. Its draws hang on the
place of the row in a CSV, so that one new row moves all others: here they hang on the clip id, and
`published: true` brings the old ones back.

A light module: it runs on GPU machines before anything heavy is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from vidcurate import rng
from vidcurate.errors import InputError
from vidcurate.media import resample
from vidcurate.recipe.recipe import Recipe
from vidcurate.sampler import cost_table
from vidcurate.sampler.resolutions import AREAS, Sizes, published_sizes

MIN_AREA_SHARE = 0.8  # of a resolution's area: a clip with less would be blown up too far
REASONS = ("", "too_small", "too_short", "not_drawn")  # why a clip is in no bucket, by number


Chance = float | tuple[float, float]
Table = dict[str, dict[str, tuple[Chance, int | Literal["auto"] | None]]]
Integers = NDArray[Any]


class BucketSpec(Recipe):
    """The bucket table of a recipe.

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
        return float(text)
    except ValueError as error:
        raise ValueError(f"sizes.{where} is no aspect ratio (height / width), such as 0.56") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One shape of micro-batches: `micro_batch_size` clips of (num_frames, height, width)."""

    resolution: str
    num_frames: int
    aspect: str
    height: int
    width: int
    micro_batch_size: int
    frame_stride: int = 1
    fps: float | None = field(default=None, repr=False)  # the name says it; plans without it stay as they are

    @property
    def name(self) -> str:
        rate = f"-{self.fps:g}fps" if self.fps is not None and self.num_frames > 1 else ""
        return f"{self.resolution}-{self.num_frames}f-{self.aspect}{rate}"

    @property
    def num_source_frames(self) -> int:
        """Frames that one sample spans, at the rate that is read."""
        return (self.num_frames - 1) * self.frame_stride + 1

    def num_clip_frames(self, clip_fps: float) -> int:
        """Return how many of its own frames one sample spans in a clip of this rate."""
        if self.fps is None or self.num_frames == 1:
            return self.num_source_frames
        return resample.num_source_frames(self.num_frames, self.frame_stride, clip_fps, self.fps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """`bucket`: int32 (n,), the number in `buckets` or −1; `reason`: int8 (n,), the number in REASONS."""

    bucket: NDArray[np.int32]
    buckets: tuple[Bucket, ...]
    reason: NDArray[np.int8]

    def counts(self) -> dict[str, int]:
        """Return how many clips are in no bucket, by reason."""
        return {name: int(np.sum(self.reason == number)) for number, name in enumerate(REASONS) if number}


@dataclass(frozen=True, slots=True)
class _Length:
    num_frames: int
    num_needed: int  # frames that the source must have
    resolution_chance: float
    length_chance: float | None
    number: int  # running number over all lengths of all resolutions: it seeds the published draws
    first_bucket: int  # number of the first aspect ratio's bucket, −1 where clips are only turned away


@dataclass(frozen=True, slots=True)
class _Resolution:
    name: str
    area: int
    sizes: Sizes
    lengths: tuple[_Length, ...]


def _walk(spec: BucketSpec) -> tuple[tuple[_Resolution, ...], tuple[Bucket, ...]]:
    """Return the resolutions from the largest, their lengths from the longest; and all buckets so."""
    sizes = {name: spec.sizes.get(name) or published_sizes(name) for name in spec.table}
    area = {name: AREAS.get(name) or max(h * w for h, w in sizes[name].values()) for name in spec.table}
    costs = cost_table.read_cost_table(spec.cost_table) if spec.cost_table else None
    buckets: list[Bucket] = []
    resolutions: list[_Resolution] = []
    number = 0
    for name in sorted(spec.table, key=lambda name: -area[name]):
        lengths: list[_Length] = []
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
                _Length(frames, needed, both[0], both[1], number, -1 if clips is None else len(buckets))
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
        resolutions.append(_Resolution(name, area[name], sizes[name], tuple(lengths)))
    return tuple(resolutions), tuple(buckets)


def all_buckets(spec: BucketSpec) -> tuple[Bucket, ...]:
    """Return every bucket of the table: resolutions from the largest, lengths from the longest.

    Raises RecipeError for a cost table that cannot be read or lacks a bucket.
    """
    return _walk(spec)[1]


def _nearest(sizes: Sizes, ratios: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return, for each height / width, the place in `sizes` of the nearest ratio (of two, the earlier)."""
    keys = np.array([float(key) for key in sizes])
    order = np.argsort(keys, kind="stable")
    above = np.searchsorted(keys[order], ratios).clip(0, len(keys) - 1)
    first, second = order[np.maximum(above - 1, 0)], order[above]
    far_first, far_second = np.abs(keys[first] - ratios), np.abs(keys[second] - ratios)
    take_first = (far_first < far_second) | ((far_first == far_second) & (first < second))
    nearest: NDArray[np.int64] = np.where(take_first, first, second)
    return nearest


def assign(
    spec: BucketSpec,
    clip_ids: Any,
    num_frames: Integers,
    heights: Integers,
    widths: Integers,
    seed: int,
) -> Assignment:
    """Put each clip into its bucket.

    `clip_ids` are strings (a sequence or a pyarrow array) or, as uint64 (n,), their `draws.id_hashes`;
    `num_frames`, `heights`, `widths` are whole numbers (n,), the sizes in pixels as displayed; 0 is not
    known and fits nowhere. The result for a clip depends on its own row only, with `spec.published` also on
    its place. Raises InputError when the lengths differ, RecipeError as `all_buckets` does.
    """
    is_hashed = isinstance(clip_ids, np.ndarray) and clip_ids.dtype == np.uint64
    lengths = {len(clip_ids), len(num_frames), len(heights), len(widths)}
    if len(lengths) > 1:
        raise InputError(
            f"clip_ids, num_frames, heights and widths have {sorted(lengths)} rows; give as many of each."
        )
    resolutions, buckets = _walk(spec)
    count = len(clip_ids)
    bucket = np.full(count, -1, dtype=np.int32)
    reason = np.zeros(count, dtype=np.int8)
    if spec.published:
        return _assign_published(resolutions, buckets, num_frames, heights, widths, seed)

    def assign_chunk(rows: slice) -> None:
        hashes = clip_ids[rows] if is_hashed else rng.id_hashes(clip_ids[rows])
        bucket[rows], reason[rows] = _assign_chunk(
            resolutions, hashes, num_frames[rows], heights[rows], widths[rows], seed
        )

    rng.by_chunks(count, assign_chunk)
    return Assignment(bucket=bucket, buckets=buckets, reason=reason)


def _assign_chunk(
    resolutions: Sequence[_Resolution],
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
            fits = _fits(length, frames)
            if length.length_chance is not None and length.length_chance < 1:
                draw = rng.key("length", seed, resolution.name, length.num_frames)
                fits &= rng.uniform(hashes[trying], draw) < length.length_chance
            # Taking by number is several times as fast as by a random mask.
            here, rest = trying[np.flatnonzero(fits)], np.flatnonzero(~fits)
            trying, frames = trying[rest], frames[rest]
            if length.resolution_chance < 1:
                draw = rng.key("resolution", seed, resolution.name, length.num_frames)
                here = here[np.flatnonzero(rng.uniform(hashes[here], draw) < length.resolution_chance)]
            if length.first_bucket >= 0:
                bucket[here] = length.first_bucket + _nearest(resolution.sizes, height[here] / width[here])
        left = left[np.flatnonzero(bucket[left] < 0)]
    return bucket, _reasons(resolutions, bucket, num_frames, area)


def _fits(length: _Length, frames: Integers) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = frames == 1 if length.num_frames == 1 else frames >= length.num_needed
    return fits


def _reasons(
    resolutions: Sequence[_Resolution],
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
            reason[trying[_fits(length, num_frames[trying])]] = REASONS.index("not_drawn")
    return reason


def _assign_published(
    resolutions: Sequence[_Resolution],
    buckets: tuple[Bucket, ...],
    num_frames: Integers,
    heights: Integers,
    widths: Integers,
    seed: int,
) -> Assignment:
    # Every aspect ratio of every length counts, also of those without a micro-batch size.
    stride = sum(len(resolution.sizes) * len(resolution.lengths) for resolution in resolutions)
    found = [
        _published_row(resolutions, seed + row * stride, int(frames), int(height), int(width))
        for row, (frames, height, width) in enumerate(zip(num_frames, heights, widths, strict=True))
    ]
    return Assignment(
        bucket=np.array([number for number, _ in found], dtype=np.int32),
        buckets=buckets,
        reason=np.array([REASONS.index(reason) for _, reason in found], dtype=np.int8),
    )


def _published_row(
    resolutions: Sequence[_Resolution], seed: int, num_frames: int, height: int, width: int
) -> tuple[int, str]:
    """Return (bucket or −1, reason) of one row, drawing as Open-Sora v1.2 does: one generator per length."""
    reason = "too_small"
    for resolution in resolutions:
        if height * width < MIN_AREA_SHARE * resolution.area or height * width == 0:
            continue
        reason = max(reason, "too_short", key=REASONS.index)
        for length in resolution.lengths:
            if not _fits(length, np.asarray(num_frames)):
                continue
            reason = "not_drawn"
            generator = np.random.default_rng(seed + length.number)
            if length.length_chance is not None and generator.random() > length.length_chance:
                continue
            chance = length.resolution_chance
            if length.first_bucket >= 0 and (chance >= 1 or generator.random() < chance):
                nearest = _nearest(resolution.sizes, np.array([height / width]))
                return length.first_bucket + int(nearest[0]), ""
            break
    return -1, reason
