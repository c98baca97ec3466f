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
_NAME, _CUT = "\0name", "\0cut"
_EXTENSION = r"(?:\.[A-Za-z0-9]{1,5})?$"
_FACE = rf"^celebv_([A-Za-z0-9_-]{{11}})_\d+(?:_\d+to\d+)?{_EXTENSION}"
_SCENE = rf"_\d+_\d+to\d+{_EXTENSION}"


def read_rows(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return the rows of an OpenVid table. Raises ColumnError when a column is not there."""
    found = pick(source, COLUMNS, required=("video_path", "caption"))
    found |= captions.columns(source, spec, "caption")
    # One step each: polars repeats an expression that is used twice. Cutting a suffix off is five times as
    # fast as a group that takes what is before it.
    path = pl.col("video_path")
    in_folder = pl.when(path.str.contains(r"[/\\]")).then(path)  # mostly null, which costs nothing
    frame = text(source, found).with_columns(
        pl.coalesce(in_folder.str.replace(r"(?s)^.*[/\\]", ""), path).alias(_NAME)
    )
    frame = frame.with_columns(pl.col(_NAME).str.replace(_SCENE, "").alias(_CUT))
    length = pl.col(_CUT).str.len_bytes()
    is_cut = (length < pl.col(_NAME).str.len_bytes()) & (length > 0)
    is_cut &= ~pl.col(_CUT).str.contains("\n", literal=True)
    is_face = pl.col(_NAME).str.starts_with("celebv_")
    face = pl.when(is_face).then(_NAME).str.extract(_FACE, 1)
    frame = frame.with_columns(source_id=pl.coalesce(face, pl.when(is_cut).then(_CUT))).drop(_NAME, _CUT)
    return rows_of(source, frame, found)
