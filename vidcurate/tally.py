"""Clips and hours by source, level and bucket: the counts that a what-if and a data card show."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vidcurate import buckets, table
from vidcurate.buckets import BucketSpec
from vidcurate.difficulty import LEVELS
from vidcurate.recipe import parse

# The columns that a tally reads, where the table has them.
COLUMNS = ("source_dataset", "duration_seconds", "num_frames", "height", "width")
_RESOLUTIONS = ("144p", "240p", "360p", "480p", "720p", "1080p", "2k", "4k")
Table = dict[str, dict[str, tuple[buckets.Chance, int | None]]]
_LENGTHS = ("1", "51", "102", "204", "408")


def bucket_table(run: Path) -> tuple[BucketSpec, bool]:
    """Return the bucket table to count by, and whether it is the split's own.

    Without one: the published sizes from 144p to 4k and lengths from 51 to 408 frames, every clip at the
    largest size that it fills and the longest length that it has.
    """
    path = table.stage_path(run, "split")
    told = table.provenance(path).settings.get("buckets") if path.exists() else None
    if told is not None:
        return parse(json.dumps(told), BucketSpec, where=str(path)), True
    every: Table = {size: {length: (1.0, 1) for length in _LENGTHS} for size in _RESOLUTIONS}
    return BucketSpec(table=every), False


def bucket_names(clips: pl.DataFrame, spec: BucketSpec) -> pl.Series:
    """Return the resolution and length of each clip's bucket, such as 720p-102f, or why it is in none.

    A draw of the table is left out of account: each clip is where it would be if it won.
    """
    sure = {
        size: {length: (1.0, clips_ or 1) for length, (_, clips_) in lengths.items()}
        for size, lengths in spec.table.items()
    }
    certain = spec.model_copy(update={"table": sure, "published": False})
    frames, height, width = (
        clips[name].cast(pl.Int64).fill_null(0).to_numpy()
        if name in clips.columns
        else np.zeros(len(clips), dtype=np.int64)
        for name in ("num_frames", "height", "width")
    )
    found = buckets.assign(certain, np.zeros(len(clips), dtype=np.uint64), frames, height, width, 0)
    names = [f"{one.resolution}-{one.num_frames}f" for one in found.buckets]
    reasons = [f"no bucket: {word}" if word else "" for word in buckets.REASONS]
    reasons[buckets.REASONS.index("too_small")] = "no bucket: too_small"
    place = np.where(found.bucket >= 0, found.bucket, len(names) + found.reason.astype(np.int64))
    unknown = (frames <= 0) | (height <= 0) | (width <= 0)
    place = np.where(unknown, len(names) + len(reasons), place)
    return pl.Series([*names, *reasons, "no bucket: size unknown"]).gather(place).alias("bucket")


def level_cuts(run: Path) -> tuple[str, list[float]] | None:
    """Return the difficulty column and the upper end of each level, None when no split has been run."""
    if not table.stage_path(run, "split").exists() or not (run / LEVELS).exists():
        return None
    told = json.loads((run / LEVELS).read_text(encoding="utf-8"))
    return told["column"], [level["max"] for level in told["levels"]]


def level_names(values: pl.Series, ends: list[float]) -> pl.Series:
    """Return the level that each value lies in by the levels' upper ends; the last is open above."""
    known = values.cast(pl.Float64).fill_nan(None)
    place = np.minimum(np.searchsorted(ends, known.fill_null(0.0).to_numpy(), side="left"), len(ends) - 1)
    return (
        pl.DataFrame({"value": known, "level": place + 1})
        .select(
            pl.when(pl.col("value").is_null())
            .then(pl.lit("unknown"))
            .otherwise(pl.col("level").cast(pl.String))
            .alias("level")
        )
        .to_series()
    )


def by(
    names: pl.Series, seconds: pl.Series | None, kept: pl.Series | None = None
) -> dict[str, dict[str, Any]]:
    """Return name → {clips, hours} of the kept rows, the names sorted; hours are null without durations."""
    frame = pl.DataFrame({"name": names.cast(pl.String).fill_null("unknown")})
    frame = frame.with_columns(
        (seconds if seconds is not None else pl.lit(None, pl.Float64)).alias("seconds")
    )
    if kept is not None:
        frame = frame.filter(kept)
    found = (
        frame.group_by("name")
        .agg(pl.len().alias("clips"), pl.col("seconds").sort().sum().alias("seconds"))
        .sort("name")
    )
    return {
        name: {"clips": clips, "hours": None if seconds is None else round(total / 3600, 6)}
        for name, clips, total in found.iter_rows()
    }
