"""Metadata tables of the published data sets, and an ingest of one."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import IngestSummary, run_ingest

OPENVID = (
    "video,caption,aesthetic score,motion score,temporal consistency score,camera motion,frame,fps,seconds"
)
MIRADATA_V0 = (
    "index,video_id,start_frame,end_frame,main_object_caption,background_caption,style_caption,camera_caption,"
    "short_caption,dense_caption,fps,start_timestep,end_timestep,,"
)
MIRADATA_V1 = (
    "clip_id,source,video_url,video_id,width,height,fps,seconds,timestamp,frame_number,framestamp,file_path,"
    "short_caption,dense_caption,background_caption,main_object_caption,style_caption,camera_caption"
)
PANDA = "videoID,url,timestamp,caption,matching_score,desirable_filtering,shot_boundary_detection"
KOALA = (
    "videoID,url,timestamp,caption,clarity_score,aesthetic_score,motion_score,"
    "video_training_suitability_score"
)
KOALA_DERIVED = (
    "vid,width,height,duration,fps,youtube_url,timestamp,video_caption,aesthetic_score,clarity_score,"
    "motion_score,suitability_score"
)
OPENSORA = "path,text,num_frames,height,width,aspect_ratio,fps,resolution,file_size"


def write_csv(path: Path, header: str, rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(rows)
    return path


def ingest(run: Path, metadata: Path, **settings: Any) -> tuple[IngestSummary, pl.DataFrame, dict[str, Any]]:
    summary = run_ingest(run, IngestSpec(metadata=metadata, **settings))
    report = json.loads((run / "reconcile.json").read_text())
    frame = pl.read_parquet(run / "ingest.parquet")
    assert summary.rows_in == frame.height == summary.rows_kept + sum(summary.problems.values())
    return summary, frame, report


def row_of(frame: pl.DataFrame, clip_id: str) -> dict[str, Any]:
    return frame.row(by_predicate=pl.col("clip_id") == clip_id, named=True)


PANDA_ROWS: list[tuple[object, ...]] = [
    (
        "--xyz",
        "u",
        str([["0:00:01.000", "0:00:03.500"], ["0:00:04.000", "0:01:00.000"]]),
        str(['It\'s a "cat"', "a dog, running"]),
        str([0.5, 0.25]),
        str(["desirable", "2_tiny_camera_movement"]),
        str([[], []]),
    ),
    ("uneven", "u", str([["0:00:01", "0:00:03"]]), str(["one", "two"]), "[0.1]", "['desirable']", "[[]]"),
    ("notalist", "u", "os.getcwd()", "['one']", "[0.1]", "['desirable']", "[[]]"),
    ("badspan", "u", "[['0:00:01']]", "['one']", "[0.1]", "['desirable']", "[[]]"),
]


def openvid_row(name: str, caption: str = "A ball", **cells: object) -> tuple[object, ...]:
    values = {
        "aes": 5,
        "motion": 1,
        "consistency": 0.9,
        "camera": "static",
        "frame": 24,
        "fps": 24,
        "seconds": 1,
    }
    return (name, caption, *{**values, **cells}.values())
