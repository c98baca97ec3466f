"""Stage `split-scenes`: find scenes of long videos and write them as a table.

Input: videos, or a run whose rows are long. The table has one row per clip, with the columns that `ingest`
reads. `source_id` is the source video, so that its clips stay in one fold.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.own_columns import own_columns
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import require_libraries
from vidcurate.curation.ingest.files import VIDEO_SUFFIXES
from vidcurate.curation.scenes.detect import clip_id, plan_scenes
from vidcurate.curation.scenes.spec import SceneSpec
from vidcurate.errors import InputError
from vidcurate.executor import map_clips
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import remove_parts
from vidcurate.executor.worker_processes import HOW, Loss
from vidcurate.storage import atomic_file
from vidcurate.storage.checksum import file_state

_TABLES = (".parquet", ".csv", ".jsonl")
# Columns of a scene; all but the first come from the run's row or, for a video, from its name and header.
_OWN = ("clip_id", "source_dataset", "source_id", "video_path", "caption", "start_seconds", "end_seconds")
_FACTS = ("width", "height", "fps", "num_frames", "duration_seconds")
_DETECTION = ("cut_threshold", "cut_window_frames", "min_scene_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitScenesSummary:
    """Counts of found scenes. `problems`: videos that could not be decoded; `problems_file` lists them."""

    table: str
    videos: int
    videos_decoded: int
    scenes: int
    scenes_too_short: int
    clips: int
    clip_hours: float
    problems: dict[str, int]
    problems_file: str | None


def _found_videos(inputs: Sequence[Path]) -> tuple[Path, list[str]]:
    """Return (root, paths relative to it) of the videos given as files and folders."""
    roots = {path if path.is_dir() else path.parent for path in inputs}
    if len(roots) > 1:
        raise InputError(
            f"{', '.join(map(str, sorted(roots)))}: the videos are in several folders. Give one folder, or "
            "files of one folder: the table's paths are relative to it."
        )
    root = next(iter(roots))
    paths: list[str] = []
    for path in inputs:
        if not path.exists():
            raise InputError(f"{path}: no such video or folder.")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        paths += [
            one.relative_to(root).as_posix()
            for one in inside
            if one.is_file() and (not path.is_dir() or one.name.lower().endswith(VIDEO_SUFFIXES))
        ]
    if not paths:
        raise InputError(f"{root}: contains no videos ({', '.join(VIDEO_SUFFIXES)}).")
    return root, sorted(set(paths))


def _rows_of_videos(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per file; its id is the path without the suffix, or with it if two files share it."""
    stems = [path.rpartition(".")[0] or path for path in paths]
    names = [
        (stem if stems.count(stem) == 1 else path).replace("/", "_")
        for stem, path in zip(stems, paths, strict=True)
    ]
    return [
        {"clip_id": name, "source_id": name, "video_path": path}
        for name, path in zip(names, paths, strict=True)
    ]


def _rows_of_run(run: Path) -> tuple[list[dict[str, Any]], dict[str, pl.DataType]]:
    """Return the rows of a run that have a file and are not rejected, with known cuts; their own columns."""
    clips = table.scan(run, table.newest_stage(run)).collect()
    keep = pl.col("video_path").is_not_null()
    keep &= pl.col("ingest_problem").fill_null("empty_caption") == "empty_caption"
    for column, value in {"probe_status": "ok", "is_kept": True}.items():
        if column in clips.columns:
            keep &= pl.col(column) == value
    own = {name: column.dtype for name, column in own_columns(run).items()}
    own |= {name: clips.schema[name] for name in ("captions", "caption_name") if name in clips.columns}
    if "captions" in own and not clips["captions"].is_not_null().any():
        del own["captions"], own["caption_name"]
    names = [name for name in (*_OWN, *_FACTS, "frames_status", "cut_seconds") if name in clips.columns]
    return clips.filter(keep).select(*names, *own).to_dicts(), own


def _has_the_cuts(run: Path, spec: SceneSpec) -> bool:
    """Return whether score-frames has detected cuts in the run's clips with the same settings."""
    path = table.stage_path(run, "frames")
    if not path.is_file():
        return False
    used, default = table.provenance(path).settings, FramesSpec()
    return all(used.get(name, getattr(default, name)) == getattr(spec, name) for name in _DETECTION)


def _known(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the cuts that score-frames found in the row's clip, as `detect` does; None without."""
    if row.get("frames_status") != "ok" or row.get("duration_seconds") is None:
        return None
    start = row.get("start_seconds") or 0.0
    return {
        "problem": None,
        "cuts": [round(start + cut, 6) for cut in row["cut_seconds"]],
        "end_seconds": round(start + row["duration_seconds"], 6),
        **{name: row.get(name) for name in ("width", "height", "fps")},
    }


def _scene_row(
    row: dict[str, Any], own: Iterable[str], found: dict[str, Any], start: float, end: float
) -> dict[str, Any]:
    fps = found["fps"]
    return {
        **{name: row.get(name) for name in (*_OWN, *own)},
        "clip_id": clip_id(row["clip_id"], start, end),
        "start_seconds": start,
        "end_seconds": end,
        "width": found["width"],
        "height": found["height"],
        "fps": fps,
        "num_frames": round((end - start) * fps) if fps else None,
        "duration_seconds": round(end - start, 6),
    }


def run_split_scenes(
    inputs: Sequence[Path],
    spec: SceneSpec,
    *,
    out: Path,
    videos: Path | None = None,
    num_workers: int = 1,
    progress: Progress = no_progress,
) -> SplitScenesSummary:
    """Write the scenes of a run, or of videos (files of one folder, or the folder), as a table to `out`.

    `videos` is the video folder of a run; rows with cuts from score-frames are not decoded again. A stopped
    run resumes; the output is the same for any number of workers. Raises InputError, StageError,
    StorageError.
    """
    require_libraries()
    from vidcurate.curation.scenes.detect import detect  # needs OpenCV

    if out.suffix not in _TABLES:
        raise InputError(f"{out}: unknown suffix {out.suffix!r}. Use {', '.join(_TABLES)}.")
    if len(inputs) == 1 and (inputs[0] / "ingest.parquet").is_file():
        if videos is None or not videos.is_dir():
            raise InputError(f"{videos}: no such video folder. Set it with --videos FOLDER.")
        root, (rows, own) = videos, _rows_of_run(inputs[0])
        is_known = _has_the_cuts(inputs[0], spec)
    else:
        root, paths = _found_videos(inputs)
        rows, own, is_known = _rows_of_videos(paths), {}, False
    known = [_known(row) if is_known else None for row in rows]
    todo = [row for row, found in zip(rows, known, strict=True) if found is None]
    items = [
        {
            "path": str(root / row["video_path"]),
            "start_seconds": row.get("start_seconds"),
            "end_seconds": row.get("end_seconds"),
        }
        for row in todo
    ]
    parts = out.with_name(f".{out.name}-{_digest(items, spec)}")
    decoded = iter(
        map_clips.map_clips(
            partial(detect, spec=spec),
            items,
            on_lost=_lost,
            time_limit_seconds=spec.time_limit_seconds,
            num_workers=num_workers,
            chunk_size=1,  # a raw video may be hours long
            parts=parts,
            progress=progress,
            unit="videos",
        )
    )
    every = [next(decoded) if found is None else found for found in known]
    summary = _write(rows, own, every, spec, out, num_decoded=len(todo))
    remove_parts(parts)
    return summary


def _lost(item: dict[str, Any], loss: Loss) -> dict[str, Any]:
    return {"problem": loss, "message": f"{Path(item['path']).name}: decoding {HOW[loss]}."}


def _digest(items: list[dict[str, Any]], spec: SceneSpec) -> str:
    """Return a digest of everything that the detection of these files depends on, as hex."""
    detection = spec.model_dump_json(include=set(_DETECTION))
    whole = hashlib.sha256(detection.encode())
    for item in items:
        seen = file_state(Path(item["path"])) or (-1, -1)
        whole.update(json.dumps([item, seen]).encode())
    return whole.hexdigest()[:16]


def _write(
    rows: list[dict[str, Any]],
    own: dict[str, pl.DataType],
    every: list[dict[str, Any]],
    spec: SceneSpec,
    out: Path,
    *,
    num_decoded: int,
) -> SplitScenesSummary:
    clips: list[dict[str, Any]] = []
    problems: list[dict[str, str]] = []
    num_scenes = num_too_short = 0
    for row, found in zip(rows, every, strict=True):
        if found["problem"] is not None:
            problems.append(
                {"video_path": row["video_path"], "problem": found["problem"], "message": found["message"]}
            )
            continue
        scenes = plan_scenes(row.get("start_seconds") or 0.0, found["end_seconds"], found["cuts"], spec)
        num_scenes += scenes.num_scenes
        num_too_short += scenes.num_too_short
        clips += [_scene_row(row, own, found, start, end) for start, end in scenes.clips]
    dtypes = {**{name: COLUMNS[name].dtype for name in (*_OWN, *_FACTS)}, **own}
    frame = pl.DataFrame(
        {name: pl.Series(name, [clip[name] for clip in clips], dtype=dtype) for name, dtype in dtypes.items()}
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    problems_file = out.with_suffix(".problems.json")
    if problems:
        atomic_file.write_json(problems_file, problems)
    else:
        problems_file.unlink(missing_ok=True)
    table.export(frame.lazy(), out)
    kinds = [problem["problem"] for problem in problems]
    return SplitScenesSummary(
        table=str(out),
        videos=len(rows),
        videos_decoded=num_decoded,
        scenes=num_scenes,
        scenes_too_short=num_too_short,
        clips=len(clips),
        clip_hours=round(sum(clip["duration_seconds"] for clip in clips) / 3600, 4),
        problems={kind: kinds.count(kind) for kind in sorted(set(kinds))},
        problems_file=str(problems_file) if problems else None,
    )
