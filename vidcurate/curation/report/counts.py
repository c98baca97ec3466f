"""Clip counts and hours by source, level and bucket, for what-if and data card."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.clip_table import stage_json, table
from vidcurate.curation.difficulty.summary import LEVELS, LevelsFile
from vidcurate.recipe.recipe import parse
from vidcurate.sampler import buckets
from vidcurate.sampler.bucket_shapes import REASONS
from vidcurate.sampler.buckets import BucketSpec

# Columns that the counts need, if the table has them.
COLUMNS = ("source_dataset", "duration_seconds", "num_frames", "height", "width")
_RESOLUTIONS = ("144p", "240p", "360p", "480p", "720p", "1080p", "2k", "4k")
_LENGTHS = ("1", "51", "102", "204", "408")


def bucket_table(run: Path) -> tuple[BucketSpec, bool]:
    """Return the bucket table to count by, and whether the split has set it.

    Default: the published sizes from 144p to 4k and lengths from 51 to 408 frames; every clip is in the
    bucket of the largest size that it fills and the longest length that it has.
    """
    path = table.stage_path(run, "split")
    reported = table.provenance(path).settings.get("buckets") if path.exists() else None
    if reported is not None:
        return parse(json.dumps(reported), BucketSpec, where=str(path)), True
    every: buckets.Table = {size: {length: (1.0, 1) for length in _LENGTHS} for size in _RESOLUTIONS}
    return BucketSpec(table=every), False


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Group of each row, as an index into `names`."""

    names: tuple[str, ...]
    place: NDArray[np.int64]


def by_value(values: pl.Series) -> Groups:
    """Return rows grouped by the text of a column; null is `unknown`."""
    text = values.cast(pl.String).fill_null("unknown")
    names = text.unique().sort()
    codes = text.cast(pl.Enum(names)).to_physical().cast(pl.Int64).to_numpy()
    return Groups(names=tuple(names), place=codes)


def by_bucket(clips: pl.DataFrame, spec: BucketSpec) -> Groups:
    """Return rows grouped by resolution and length of their bucket, such as 720p-102f, or why they have none.

    Ignores the table's random draws: each clip is counted where it would be if the draw kept it.
    """
    sure = {
        size: {length: (1.0, clips_ or 1) for length, (_, clips_) in lengths.items()}
        for size, lengths in spec.table.items()
    }
    certain = spec.model_copy(update={"table": sure, "published": False})
    names = ("num_frames", "height", "width")
    sizes = clips.select(
        (pl.col(name) if name in clips.columns else pl.lit(0)).cast(pl.Int64).fill_null(0).alias(name)
        for name in names
    )
    if len(sizes) != len(clips):  # literals alone make one row
        sizes = pl.concat([sizes] * len(clips))
    # Clips are many, sizes are few.
    few = sizes.unique(maintain_order=True).with_row_index("size")
    of_clip = sizes.join(few, on=names, how="left", maintain_order="left")["size"].to_numpy()
    frames, height, width = (few[name].to_numpy() for name in names)
    found = buckets.assign(certain, np.zeros(len(few), dtype=np.uint64), frames, height, width, 0)
    of_bucket = [f"{one.resolution}-{one.num_frames}f" for one in found.buckets]
    every = [*of_bucket, *(f"no bucket: {word}" for word in REASONS), "no bucket: size unknown"]
    place = np.where(found.bucket >= 0, found.bucket, len(of_bucket) + found.reason.astype(np.int64))
    unknown = (frames <= 0) | (height <= 0) | (width <= 0)
    place[unknown] = len(every) - 1
    place = place[of_clip]
    used = np.flatnonzero(np.bincount(place, minlength=len(every)))
    labels = sorted({every[at] for at in used})
    of_place = np.zeros(len(every), dtype=np.int64)
    of_place[used] = [labels.index(every[at]) for at in used]
    return Groups(names=tuple(labels), place=of_place[place])


def level_cuts(run: Path) -> tuple[str, list[float]] | None:
    """Return the difficulty column and the upper end of each level, None when no split has been run."""
    if not table.stage_path(run, "split").exists() or not (run / LEVELS).exists():
        return None
    reported = stage_json.require(run / LEVELS, LevelsFile)
    return reported.column, [level.max for level in reported.levels]


def by_level(values: pl.Series, ends: list[float]) -> Groups:
    """Return rows grouped by level, given the upper ends of the levels; the last level is open."""
    known = values.cast(pl.Float64).fill_nan(None)
    place = np.minimum(np.searchsorted(ends, known.fill_null(0.0).to_numpy(), side="left"), len(ends) - 1)
    place[known.is_null().to_numpy()] = len(ends)
    names = [str(number) for number in range(1, len(ends) + 1)]
    return Groups(names=(*names, "unknown"), place=place.astype(np.int64))


class ClipCounts:
    """Counts of rows by several groupings at once; each row's combined cell is computed once."""

    def __init__(self, groups: Mapping[str, Groups], seconds: pl.Series | None) -> None:
        self._groups = dict(groups)
        self._shape = tuple(len(group.names) for group in groups.values())
        places = [group.place for group in groups.values()]
        self._cell = np.ravel_multi_index(places, self._shape).astype(np.int32)
        known = None if seconds is None else seconds.cast(pl.Float64).fill_nan(None).fill_null(0.0)
        self._seconds = None if known is None else known.to_numpy()

    def of(self, kept: pl.Series | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """Return grouping → name → {clips, hours} of the kept rows; names without rows are left out.

        Hours are null where durations are not known to the table.
        """
        inside = slice(None) if kept is None else np.flatnonzero(kept.to_numpy())
        cell, size = self._cell[inside], math.prod(self._shape)
        clips = np.bincount(cell, minlength=size).reshape(self._shape)
        hours = None
        if self._seconds is not None:
            hours = (
                np.bincount(cell, weights=self._seconds[inside], minlength=size).reshape(self._shape) / 3600
            )
        found = {}
        for axis, (name, group) in enumerate(self._groups.items()):
            others = tuple(number for number in range(len(self._shape)) if number != axis)
            counts, sums = clips.sum(axis=others), None if hours is None else hours.sum(axis=others)
            found[name] = {
                label: {
                    "clips": int(counts[at]),
                    "hours": None if sums is None else round(float(sums[at]), 6),
                }
                for at, label in enumerate(group.names)
                if counts[at]
            }
        return found


def count(groups: Groups, seconds: pl.Series | None) -> dict[str, dict[str, Any]]:
    """Return name → {clips, hours} of one grouping."""
    return ClipCounts({"all": groups}, seconds).of()["all"]
