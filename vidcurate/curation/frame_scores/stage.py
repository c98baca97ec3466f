"""Stage `score-frames`: frame scores from one decode of each clip.

`scorers.SCORES` lists the scorers, one file each. A worker process decodes a clip once, in one thread; an
undecodable clip, or one that exceeds the time limit, becomes a row with a status.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import COLUMNS, require
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.errors import InputError
from vidcurate.executor import map_clips
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import DEFAULT_EXECUTOR, ExecutorSpec, PartSummary, remove_parts
from vidcurate.executor.worker_processes import HOW, Loss
from vidcurate.storage import download

_NEEDED = ("cv2",)
_CLIPS_AT_ONCE = 8  # clips lost by a kill; a chunk of long clips takes minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class FramesSummary:
    """Counts of a scored table: rows, decoded clips, their length, and rows by status."""

    rows_in: int
    rows_ok: int
    clips_decoded: int
    video_hours: float
    by_status: dict[str, int]
    clips_with_cuts: int
    clips_with_bars: int
    up_to_date: bool


def require_libraries() -> None:
    """Raise InputError unless OpenCV is installed (the extra `score`)."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} not installed: frames cannot be scored. "
            "Run `pip install 'vidcurate[score]'`."
        )


def _lost(item: dict[str, Any], loss: Loss) -> dict[str, Any]:
    problem = f"{Path(item['path']).name}: decoding {HOW[loss]}."
    return {"frames_status": loss, "frames_problem": problem}


def _reason(row: dict[str, Any]) -> str | None:
    if row["frames_status"] == "ok":
        return None
    return "" if row["frames_status"] == "empty" else row["frames_problem"]


def _to_score(clips: pl.DataFrame) -> pl.Series:
    """Return which rows have a file that no earlier stage found broken; a caption is optional."""
    is_there = pl.col("video_path").is_not_null() & ~pl.col("video_path").str.starts_with("/")
    if "probe_status" in clips.columns:
        is_there &= pl.col("probe_status") == "ok"
    is_sound = pl.col("ingest_problem").fill_null("empty_caption") == "empty_caption"
    return clips.select((is_there & is_sound).alias("is_there"))["is_there"]


def _with_scores(clips: pl.DataFrame, is_scored: pl.Series, rows: Iterator[dict[str, Any]]) -> pl.DataFrame:
    names = [name for name, column in COLUMNS.items() if column.stage == "frames"]
    whole = (next(rows) if scored else {"frames_status": "not_scored"} for scored in is_scored)
    return pl.concat([clips, table.from_rows(whole, names)], how="horizontal")


@run_lock.holding_run
def run_frames(
    run: Path,
    spec: FramesSpec,
    *,
    videos: Path | str,
    executor: ExecutorSpec = DEFAULT_EXECUTOR,
    progress: Progress = no_progress,
) -> FramesSummary | PartSummary:
    """Decode every clip of the run's table that is not known to be broken and write RUN/frames.parquet.

    A stopped stage resumes: finished chunks are kept until the table is written. With `executor.part` no
    table is written. The executor does not change the output. Raises InputError for a missing folder or
    library, StageError for missing parts, StorageError.
    """
    require_libraries()
    from vidcurate.curation.frame_scores.scorers import score_clip  # needs OpenCV

    download.require(videos)
    previous = table.previous_stage(run, "frames")
    source = table.stage_path(run, previous)
    clips = table.scan(run, previous).drop("caption", strict=False).collect()
    require(
        clips.columns,
        ("clip_id", "video_path", "ingest_problem", "start_seconds", "end_seconds"),
        str(source),
    )
    is_scored = _to_score(clips)
    scored = clips.filter(is_scored)
    paths: list[str] = scored["video_path"].unique(maintain_order=True).to_list()
    origin = table.Provenance(
        stage="frames",
        settings=json.loads(spec.model_dump_json(exclude={"time_limit_seconds"})),
        inputs={previous: table.digest(source), "videos": download.digest(videos, paths)},
    )
    target = table.stage_path(run, "frames")
    up_to_date = table.is_up_to_date(target, origin)
    parts = run / f".frames-{hashlib.sha256(origin.to_json().encode()).hexdigest()[:16]}"
    if not up_to_date:
        items = [
            {"path": download.join(videos, path), "start_seconds": start, "end_seconds": end}
            for path, start, end in scored.select("video_path", "start_seconds", "end_seconds").iter_rows()
        ]
        rows = map_clips.map_clips_in_parts(
            partial(score_clip, spec=spec),
            items,
            on_lost=_lost,
            time_limit_seconds=spec.time_limit_seconds,
            executor=executor,
            chunk_size=_CLIPS_AT_ONCE,
            parts=parts,
            progress=progress,
            reason_of=_reason,
            video_seconds=scored["duration_seconds"].fill_null(0.0).to_list(),
        )
        if isinstance(rows, PartSummary):
            return rows
        table.write(_with_scores(clips.select("clip_id"), is_scored, rows), target, origin)
    remove_parts(parts)
    return _summary(target, scored, up_to_date)


def _summary(target: Path, scored: pl.DataFrame, up_to_date: bool) -> FramesSummary:
    bars = [f"letterbox_{side}_px" for side in ("top", "bottom", "left", "right")]
    done = pl.read_parquet(target, columns=["frames_status", "num_cuts", *bars])
    by_status = dict(sorted(done["frames_status"].value_counts().iter_rows()))
    return FramesSummary(
        rows_in=len(done),
        rows_ok=by_status.get("ok", 0),
        clips_decoded=len(scored),
        video_hours=round(float(scored["duration_seconds"].fill_null(0.0).sum()) / 3600, 4),
        by_status=by_status,
        clips_with_cuts=done.filter(pl.col("num_cuts") > 0).height,
        clips_with_bars=done.filter(pl.sum_horizontal(bars) > 0).height,
        up_to_date=up_to_date,
    )
