"""Stage `extract-clips`: cut a file for each row of a table of scenes or a run.

`OUT/videos` has the clips under their sample keys, each whole or absent; `OUT/clips.parquet` describes them
and is a table that `ingest` reads. A row whose clip could not be cut stays in the table with the reason.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import COLUMNS, require, sample_keys
from vidcurate.curation.scenes.spec import ExtractSpec
from vidcurate.errors import ColumnError, InputError, MediaError
from vidcurate.executor import map_clips
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import remove_parts
from vidcurate.executor.worker_processes import HOW, Loss
from vidcurate.media import transcode
from vidcurate.media.decode import count_decodable_frames, read_frames
from vidcurate.media.transcode import Cut, first_frame
from vidcurate.storage import atomic_file
from vidcurate.storage.checksum import file_state

_CLIPS_AT_ONCE = 8
_NEEDED = ("clip_id", "video_path", "start_seconds", "end_seconds")
_KEPT = ("clip_id", "source_dataset", "source_id", "caption")
_MOST_SECONDS = 1e9  # 31 years
_MOST_LETTERS = 300  # of a reason
_READ: dict[str, Callable[[Path], pl.DataFrame]] = {
    ".parquet": pl.read_parquet,
    ".csv": partial(pl.read_csv, schema_overrides={name: COLUMNS[name].dtype for name in (*_NEEDED, *_KEPT)}),
    ".jsonl": pl.read_ndjson,
}
_WRITTEN: dict[str, pl.DataType] = {
    "extract_status": pl.String(),
    "extract_problem": pl.String(),
    "first_frame_difference": pl.Float64(),
    "source_start_seconds": pl.Float64(),
    "source_end_seconds": pl.Float64(),
    "width": pl.Int32(),
    "height": pl.Int32(),
    "fps": pl.Float64(),
    "num_frames": pl.Int64(),
    "duration_seconds": pl.Float64(),
    "file_size_bytes": pl.Int64(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractSummary:
    """Counts of cut clips. `clips_kept`: from an earlier run; `by_status` counts rows."""

    table: str
    rows_in: int
    clips_written: int
    clips_kept: int
    clip_hours: float
    size_bytes: int
    by_status: dict[str, int]


def _rows(source: Path) -> pl.DataFrame:
    """Return the rows to cut: all of a table, or those of a run that are not rejected."""
    if source.is_dir():
        clips = table.scan(source, table.newest_stage(source)).collect()
        keep = pl.col("video_path").is_not_null()
        keep &= pl.col("ingest_problem").fill_null("empty_caption") == "empty_caption"
        if "is_kept" in clips.columns:
            keep &= pl.col("is_kept")
        elif "probe_status" in clips.columns:
            keep &= pl.col("probe_status") == "ok"
        return clips.filter(keep)
    if source.suffix not in _READ:
        raise InputError(f"{source}: neither a run folder nor a table ({', '.join(_READ)}).")
    if not source.is_file():
        raise InputError(f"{source}: no such table. Run `vidcurate split-scenes` to write one.")
    try:
        return _READ[source.suffix](source)
    except table.UNREADABLE as error:
        raise InputError(f"{source}: cannot be read as a table ({str(error)[:_MOST_LETTERS]}).") from error


def _typed(clips: pl.DataFrame, source: Path) -> pl.DataFrame:
    """Return the rows with a video, in the table's types. Raises ColumnError, InputError."""
    require(clips.columns, _NEEDED, str(source))
    for name in dict.fromkeys((*_NEEDED, *_KEPT)):
        if name not in clips.columns:
            continue
        found, wanted = clips.schema[name], COLUMNS[name].dtype
        refusal = f"{source}: {name} is {found}, and {wanted} is needed"
        if found.is_nested():  # polars would cast the fields of a struct
            raise ColumnError(f"{refusal}.")
        try:
            clips = clips.with_columns(pl.col(name).cast(wanted))
        except pl.exceptions.PolarsError as error:
            raise ColumnError(f"{refusal} ({str(error)[:_MOST_LETTERS]}).") from error
    clips = clips.filter(pl.col("video_path").is_not_null())
    for name, is_wrong in (
        ("clip_id", clips["clip_id"].fill_null("") == ""),
        ("video_path", clips["video_path"].str.contains("\0", literal=True)),
    ):
        if is_wrong.any():
            row = clips.row(int(is_wrong.arg_true()[0]), named=True)
            raise InputError(
                f"{source}: {name} is {row[name]!r} where video_path is {row['video_path']!r}; "
                "every row needs an id and a file's name."
            )
    return clips


def _tasks(clips: pl.DataFrame, videos: Path, out: Path) -> list[dict[str, Any]]:
    keys = sample_keys(clips["clip_id"].to_list())
    return [
        {
            "path": str(videos / path),
            "start_seconds": start,
            "end_seconds": end,
            "folder": str(out / "videos"),
            "key": key,
        }
        for key, path, start, end in zip(
            keys,
            *(clips[name].to_list() for name in ("video_path", "start_seconds", "end_seconds")),
            strict=True,
        )
    ]


def _cut(task: dict[str, Any], spec: ExtractSpec) -> dict[str, Any]:
    """Cut one clip, check it and write it; return its facts, or why it is missing."""
    source = Path(task["path"])
    start, end = interval = task["start_seconds"], task["end_seconds"]
    try:
        if not 0 <= (start or 0.0) < (_MOST_SECONDS if end is None else end) <= _MOST_SECONDS:
            raise MediaError(f"{start} to {end} is no interval in seconds.", kind="cannot_cut")
        if spec.mode == "trim":
            cut = transcode.trim_video(source, *interval)
        else:
            cut = transcode.transcode_video(source, *interval, spec.transcode)
        left = cut.facts["duration_seconds"]
        if left < spec.min_seconds:
            raise MediaError(
                f"{source.name}: {left:.2f} s would be left, {spec.min_seconds:g} s are asked for "
                "(min_seconds).",
                kind="too_short",
            )
        difference = check(cut, source, max_difference=spec.max_first_frame_difference)
    except MediaError as error:
        name = f"{source.name}: "
        return {"extract_status": error.kind, "extract_problem": name + str(error).removeprefix(name)}
    name = f"{task['key']}.{cut.extension}"
    path = Path(task["folder"]) / name
    with atomic_file.storage_errors(path):
        atomic_file.put(path, cut.payload)
    facts = dict(cut.facts)
    return {
        "extract_status": "ok",
        "extract_problem": None,
        "video_path": name,
        "first_frame_difference": round(difference, 3),
        "source_start_seconds": facts.pop("start_seconds"),
        "source_end_seconds": facts.pop("end_seconds"),
        "file_size_bytes": len(cut.payload),
        **facts,
    }


def _lost(task: dict[str, Any], loss: Loss) -> dict[str, Any]:
    problem = f"{Path(task['path']).name}: cutting {HOW[loss]}."
    return {"extract_status": loss, "extract_problem": problem}


def _origin(clips: pl.DataFrame, tasks: list[dict[str, Any]], spec: ExtractSpec) -> table.Provenance:
    """Return the provenance of the clips: settings, FFmpeg version, and each source file and interval."""
    whole = hashlib.sha256()
    for clip_id, task in zip(clips["clip_id"], tasks, strict=True):
        whole.update(
            json.dumps(
                [clip_id, task["start_seconds"], task["end_seconds"], file_state(Path(task["path"]))]
            ).encode()
        )
    if own := _own(clips):
        whole.update(clips.select(own).write_json().encode())
    settings = json.loads(spec.model_dump_json(exclude={"time_limit_seconds"}))
    if spec.mode == "trim":
        del settings["transcode"]
    return table.Provenance(
        stage="extract-clips",
        settings=settings | {"ffmpeg": transcode.ffmpeg_version()},
        inputs={"clips": whole.hexdigest()},
    )


def _there(target: Path, origin: table.Provenance, out: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of an earlier run whose clips still exist, by their position in the table."""
    if not table.is_up_to_date(target, origin):
        return {}
    rows = pl.read_parquet(target).to_dicts()
    return {
        number: {name: row[name] for name in ("video_path", *_WRITTEN)}
        for number, row in enumerate(rows)
        if row["extract_status"] != "ok"
        or (file_state(out / "videos" / row["video_path"]) or (-1, 0))[0] == row["file_size_bytes"]
    }


def run_extract(
    source: Path,
    spec: ExtractSpec,
    *,
    videos: Path,
    out: Path,
    num_workers: int = 1,
    progress: Progress = no_progress,
) -> ExtractSummary:
    """Cut every row's interval out of its file into OUT/videos and write OUT/clips.parquet.

    `source` is a table (.parquet, .csv, .jsonl) or a run folder, `videos` the folder of the source files.
    A stopped run resumes; the same table, files, settings and FFmpeg give the same bytes for any number of
    workers.
    Raises InputError, ColumnError, StageError, StorageError.
    """
    if not videos.is_dir():
        raise InputError(f"{videos}: no such video folder. Set it with --videos FOLDER.")
    clips = _typed(_rows(source), source)
    tasks = _tasks(clips, videos, out)
    origin, target = _origin(clips, tasks, spec), out / "clips.parquet"
    with run_lock.alone(out):
        there = _there(target, origin, out)
        todo = [number for number in range(len(tasks)) if number not in there]
        if todo or not table.is_up_to_date(target, origin):
            (out / "videos").mkdir(parents=True, exist_ok=True)
            parts = out / f".extract-{hashlib.sha256(f'{origin.to_json()}{todo}'.encode()).hexdigest()[:16]}"
            made = map_clips.map_clips(
                partial(_cut, spec=spec),
                [tasks[number] for number in todo],
                on_lost=_lost,
                time_limit_seconds=spec.time_limit_seconds,
                num_workers=num_workers,
                chunk_size=_CLIPS_AT_ONCE,
                parts=parts,
                progress=progress,
            )
            every = there | dict(zip(todo, made, strict=True))
            rows = [{"video_path": f"{task['key']}.mp4", **every[n]} for n, task in enumerate(tasks)]
            table.write(_with_clips(clips, rows), target, origin)
            remove_parts(parts)
        return _summary(target, sum(row["extract_status"] == "ok" for row in there.values()))


def _own(clips: pl.DataFrame) -> list[str]:
    """Return the columns that the metadata brought: own columns, and several captions of a clip."""
    return [name for name in clips.columns if name not in COLUMNS and name not in _WRITTEN] + [
        name for name in ("captions", "caption_name") if name in clips.columns
    ]


def _with_clips(clips: pl.DataFrame, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return the table of clips: captions, source and own columns of the rows, and facts of the files."""
    kept = [*(name for name in _KEPT if name in clips.columns), *_own(clips)]
    return clips.select(kept).with_columns(
        pl.Series("video_path", [row["video_path"] for row in rows], dtype=pl.String),
        *(pl.Series(name, [row.get(name) for row in rows], dtype=dtype) for name, dtype in _WRITTEN.items()),
    )


def _summary(target: Path, num_there: int) -> ExtractSummary:
    clips = pl.read_parquet(target)
    ok = clips.filter(pl.col("extract_status") == "ok")
    return ExtractSummary(
        table=str(target),
        rows_in=len(clips),
        clips_written=len(ok) - num_there,
        clips_kept=num_there,
        clip_hours=round(float(ok["duration_seconds"].sum()) / 3600, 4),
        size_bytes=int(ok["file_size_bytes"].sum()),
        by_status=dict(sorted(clips["extract_status"].value_counts().iter_rows())),
    )


_SIDE_PX = 64


def check(cut: Cut, source: Path, *, max_difference: float) -> float:
    """Return the mean difference, in levels, of the clip's first frame from the source's at that time.

    Raises MediaError, kind wrong_extract, when the number of frames is wrong or the first frame differs by
    more than `max_difference`.
    """
    counted = count_decodable_frames(cut.payload)
    if counted != cut.facts["num_frames"]:
        raise MediaError(
            f"{source.name}: the clip should hold {cut.facts['num_frames']} frames, {counted} decode.",
            kind="wrong_extract",
        )
    start, end = cut.facts["start_seconds"], cut.facts["end_seconds"]
    here = read_frames(cut.payload, [0], height=_SIDE_PX, width=_SIDE_PX, accept_corrupt=True)[0]
    there = first_frame(source, start, end, height=_SIDE_PX, width=_SIDE_PX)
    difference = float(np.abs(here.astype(np.int16) - there).mean())
    if difference > max_difference:
        raise MediaError(
            f"{source.name}: the clip's first frame differs by {difference:.1f} levels from the source's at "
            f"{start:.3f} s; {max_difference:g} are allowed.",
            kind="wrong_extract",
        )
    return difference
