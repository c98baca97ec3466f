"""OpenVid-1M adapter: one row per clip, no width and height, spaces in names.

The file name tells the source: `<video>_<scene>_<from>to<to>.mp4`, or `celebv_<11 letters>_<n>.mp4` for the
faces, whose 11 letters are the same kind of YouTube id. Any other name is a source of its own, so that a
split errs on the side of parting too little. Which zip part held a clip is not recorded (OpenVid-1M issues
19 and 21): a bare name is looked for in the folders below the root too.
"""

from pathlib import Path

import polars as pl

from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.own_cells import rows_of
from vidcurate.curation.ingest.rows import Rows
from vidcurate.curation.ingest.source import Source, pick, text
from vidcurate.curation.ingest.spec import IngestSpec

COLUMNS: dict[str, tuple[str, ...]] = {
    "video_path": ("video",),
    "caption": ("caption",),
    "aesthetic_score": ("aesthetic score",),
    "motion_score": ("motion score",),
    "temporal_consistency_score": ("temporal consistency score",),
    "camera_motion": ("camera motion",),
    "num_frames": ("frame",),
    "fps": ("fps",),
    "duration_seconds": ("seconds",),
}
_EXTENSION = r"\.[A-Za-z0-9]{1,5}$"
_FACE = r"^celebv_([A-Za-z0-9_-]{11})_\d+(?:_\d+to\d+)?$"
_SCENE = r"_\d+_\d+to\d+$"


def read_rows(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return the rows of an OpenVid table. Raises ColumnError when a column is not there."""
    found = pick(source, COLUMNS, required=("video_path", "caption"))
    found |= captions.columns(source, spec, "caption")
    name = pl.col("video_path").str.replace_all("\\", "/", literal=True).str.split("/").list.last()
    stem = name.str.replace(_EXTENSION, "")
    # Cutting a suffix off is five times as fast as a group that takes what is before it.
    video = stem.str.replace(_SCENE, "")
    is_cut = (video != stem) & (video != "") & ~video.str.contains("\n", literal=True)
    source_id = pl.coalesce(stem.str.extract(_FACE, 1), pl.when(is_cut).then(video))
    frame = text(source, found).with_columns(source_id=source_id)
    return rows_of(source, frame, found)
