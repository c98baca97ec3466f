"""Open-Sora adapter: `path, text, num_frames, height, width, fps, resolution`, ….

The column `aspect_ratio` is height / width and `resolution` is height x width in pixels. The adapter uses
width and height; when the two derived columns disagree, the reconciliation reports it and the row stays
valid. Zeros mean a video that the tool could not open.
"""

from pathlib import Path

import polars as pl

from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.own_cells import rows_of
from vidcurate.curation.ingest.rows import BETWEEN_BAD, Rows
from vidcurate.curation.ingest.source import Source, pick, text
from vidcurate.curation.ingest.spec import IngestSpec

COLUMNS: dict[str, tuple[str, ...]] = {
    "video_path": ("path",),
    "num_frames": ("num_frames",),
    "height": ("height",),
    "width": ("width",),
    "aspect_ratio": ("aspect_ratio",),
    "fps": ("fps",),
    "resolution": ("resolution",),
    "aesthetic_score": ("aes",),
    "motion_score": ("flow",),
    "matching_score": ("match",),
    "camera_motion": ("cmotion",),
}
_TOLERANCE = 0.01  # the tables round to four digits or fewer


def _note(found: dict[str, str]) -> pl.Expr:
    """Return what the derived columns say against height and width; "" where they agree."""
    height, width = (pl.col(name).cast(pl.Float64, strict=False) for name in ("height", "width"))
    reported = (height > 0) & (width > 0)
    notes = []
    if "aspect_ratio" in found:
        ratio = pl.col("aspect_ratio").cast(pl.Float64, strict=False)
        off = reported & (ratio > 0) & ((ratio * width / height - 1).abs() > _TOLERANCE)
        turned = (ratio * height / width - 1).abs() <= _TOLERANCE
        words = (
            pl.when(turned)
            .then(pl.lit(" is width / height, not height / width"))
            .otherwise(pl.lit(" is not height / width"))
        )
        notes.append(pl.when(off).then(pl.concat_str(pl.lit("aspect_ratio "), pl.col("aspect_ratio"), words)))
    if "resolution" in found:
        pixels = pl.col("resolution").cast(pl.Float64, strict=False)
        off = reported & (pixels > 0) & ((pixels / (height * width) - 1).abs() > _TOLERANCE)
        notes.append(
            pl.when(off).then(
                pl.concat_str(pl.lit("resolution "), "resolution", pl.lit(" is not height x width"))
            )
        )
    return pl.concat_str(notes, separator=BETWEEN_BAD, ignore_nulls=True) if notes else pl.lit("")


def read_rows(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return the rows of an Open-Sora table. Raises ColumnError."""
    found = pick(source, COLUMNS, required=("video_path", "num_frames", "height", "width"))
    found |= captions.columns(source, spec, "text")
    frame = text(source, found).with_columns(note=_note(found))
    return rows_of(source, frame.drop("aspect_ratio", "resolution", strict=False), found)
