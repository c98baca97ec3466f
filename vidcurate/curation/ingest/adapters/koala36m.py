"""Koala-36M adapter: one row per clip, `videoID` is `<YouTube id>_<scene>`.

The published tables use `videoID, url, timestamp, caption, clarity_score, aesthetic_score, motion_score,
video_training_suitability_score`; derived ones `vid`, `video_caption`, `suitability_score` and others, so
each column goes by a list of names.
"""

from pathlib import Path

import polars as pl

from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.own_cells import rows_of
from vidcurate.curation.ingest.rows import Rows, bad_cell, clock_pair
from vidcurate.curation.ingest.source import Source, pick, text
from vidcurate.curation.ingest.spec import IngestSpec

CAPTION = ("caption", "video_caption", "structured_caption")
COLUMNS: dict[str, tuple[str, ...]] = {
    "clip_id": ("videoID", "vid", "video_id", "clip_id"),
    "timestamp": ("timestamp", "timestamps"),
    "clarity_score": ("clarity_score", "clarity"),
    "aesthetic_score": ("aesthetic_score", "aesthetic", "aesthetics_score"),
    "motion_score": ("motion_score", "motion"),
    "suitability_score": (
        "video_training_suitability_score",
        "training_suitability_score",
        "suitability_score",
        "vtss",
    ),
    "width": ("width",),
    "height": ("height",),
    "fps": ("fps",),
    "duration_seconds": ("duration",),
}


def read_rows(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return the rows of a Koala table. Raises ColumnError when a column is under no known name."""
    found = pick(source, COLUMNS, required=("clip_id", "timestamp"))
    found |= captions.columns(source, spec, *CAPTION)
    start, end = clock_pair(pl.col("timestamp"))
    is_bad = pl.col("timestamp").is_not_null() & (start.is_null() | end.is_null())
    video = pl.coalesce(pl.col("clip_id").str.extract(r"^(.+)_\d+$", 1), "clip_id")
    cells = [
        video.alias("source_id"),
        bad_cell(is_bad, found["timestamp"], pl.col("timestamp")).alias("bad"),
    ]
    if "duration_seconds" not in found:
        cells.append((end - start).alias("duration_seconds"))
    if spec.files == "sources":
        cells += [
            start.alias("start_seconds"),
            end.alias("end_seconds"),
            (video + spec.extension).alias("video_path"),
        ]
    frame = text(source, found).with_columns(cells).drop("timestamp")
    return rows_of(source, frame, found)
