"""MiraData adapter (v0 and v1): long clips with six captions, one is chosen.

v0 names a clip `<download>_<video id>-<scene>` and gives its place in the source by frames; the clips lie in
numbered folders of the download tool, so a bare name is looked for below the root. v1 names a clip
`<download>.<scene>`: 12.10 is the eleventh scene, not 12.1, and stays text. Its `timestamp` is a Python list
of two clock times in the source; it is matched by a pattern, nothing in it is ever run.
"""

from pathlib import Path

import polars as pl

from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.own_cells import rows_of
from vidcurate.curation.ingest.rows import BETWEEN_BAD, Rows, bad_cell, clock_pair, seconds
from vidcurate.curation.ingest.source import Source, pick, text
from vidcurate.curation.ingest.spec import IngestSpec

DEFAULT_CAPTION = "dense_caption"

V0: dict[str, tuple[str, ...]] = {
    "clip_id": ("index",),
    "source_id": ("video_id",),
    "fps": ("fps",),
    "start_frame": ("start_frame",),
    "end_frame": ("end_frame",),
    "start_clock": ("start_timestep",),
    "end_clock": ("end_timestep",),
}
V1: dict[str, tuple[str, ...]] = {
    "clip_id": ("clip_id",),
    "source_id": ("video_id",),
    "video_path": ("file_path",),
    "width": ("width",),
    "height": ("height",),
    "fps": ("fps",),
    "num_frames": ("frame_number",),
    "duration_seconds": ("seconds",),
    "timestamp": ("timestamp",),
}


def read_v0(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return the rows of a v0 table. Raises ColumnError."""
    found = pick(source, V0, required=("clip_id", "start_frame", "end_frame", "fps"))
    found |= captions.columns(source, spec, DEFAULT_CAPTION)
    frame = text(source, found)
    fps = pl.col("fps").cast(pl.Float64, strict=False)
    first, last = (pl.col(name).cast(pl.Float64, strict=False) for name in ("start_frame", "end_frame"))
    start: pl.Expr
    end: pl.Expr
    start, end = (pl.when(fps > 0).then(edge / fps) for edge in (first, last))
    if "start_clock" in found and "end_clock" in found:
        start = pl.coalesce(start, seconds(pl.col("start_clock")))
        end = pl.coalesce(end, seconds(pl.col("end_clock")))
    bad = [
        bad_cell(pl.col(name).is_not_null() & number.is_null(), name, pl.col(name))
        for name, number in (("start_frame", first), ("end_frame", last))
    ]
    bad.append(bad_cell(last <= first, "end_frame", pl.col("end_frame")))
    cells = [
        pl.concat_str(bad, separator=BETWEEN_BAD, ignore_nulls=True).alias("bad"),
        pl.when(last > first).then(last - first).alias("num_frames"),
        pl.when(end > start).then(end - start).alias("duration_seconds"),
    ]
    if spec.files == "sources":
        cells += [
            start.alias("start_seconds"),
            end.alias("end_seconds"),
            (pl.col("clip_id").str.extract(r"^(.+)-\d+$", 1) + spec.extension).alias("video_path"),
        ]
    frame = frame.with_columns(cells).drop(
        "start_frame", "end_frame", "start_clock", "end_clock", strict=False
    )
    return rows_of(source, frame, found)


def read_v1(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return the rows of a v1 table. Raises ColumnError."""
    found = pick(source, V1, required=("clip_id",))
    found |= captions.columns(source, spec, DEFAULT_CAPTION)
    frame = text(source, found)
    download = pl.col("clip_id").str.extract(r"^(\d+)\.", 1)
    known = [pl.col("source_id"), download] if "source_id" in found else [download]
    cells = [pl.coalesce(known).alias("source_id")]
    if "timestamp" in found:
        start, end = clock_pair(pl.col("timestamp"))
        is_bad = pl.col("timestamp").is_not_null() & (start.is_null() | end.is_null())
        cells.append(bad_cell(is_bad, found["timestamp"], pl.col("timestamp")).alias("bad"))
        if spec.files == "sources":
            cells += [start.alias("start_seconds"), end.alias("end_seconds")]
        if "duration_seconds" not in found:
            cells.append((end - start).alias("duration_seconds"))
    if spec.files == "sources":
        cells.append((download.str.zfill(12) + spec.extension).alias("video_path"))
    frame = frame.with_columns(cells).drop("timestamp", strict=False)
    return rows_of(source, frame, found)
