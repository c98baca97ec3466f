"""What a file says of itself, without decoding: header and index side by side, and what they disagree on.

A video is probed once however many clips were cut from it. The columns of best knowledge (`width`, `fps`,
`num_frames`, ...) take the index before the header before the metadata.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate import engine, table, video
from vidcurate.engine import Progress, no_progress
from vidcurate.errors import InputError, MediaError
from vidcurate.recipe import Recipe
from vidcurate.schema import COLUMNS, require

# Packets that span less than this share of the promised duration mean that the rest is not there. Audio may
# outlast the picture, and Matroska and FLV promise a duration for both.
_SHORTEST_SHARE = 0.8
# AVI counts dropped frames in its header; a difference up to this share is usual there.
_LARGEST_COUNT_DIFFERENCE = 0.05
_BEST_KNOWN = ("width", "height", "fps", "num_frames", "duration_seconds", "file_size_bytes")


class ProbeSpec(Recipe):
    """How to probe. `videos` is the folder that `video_path` is relative to."""

    videos: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSummary:
    """What a probe found: rows of the table and files by status."""

    rows_in: int
    rows_ok: int
    files_probed: int
    by_status: dict[str, int]
    up_to_date: bool


def _judge(header: video.Header, index: video.PacketIndex, size_bytes: int) -> tuple[str, str | None]:
    """Return (status, problem) from what header and index promise."""
    if index.end_offset_bytes is not None and index.end_offset_bytes > size_bytes:
        return (
            "truncated",
            f"the index ends at byte {index.end_offset_bytes}, the file at byte {size_bytes}",
        )
    if index.num_frames == 0:
        return "no_frames", "the video stream holds no packet"
    if header.num_frames is not None:
        counted = index.num_frames + index.num_hidden
        if abs(header.num_frames - counted) > max(2, _LARGEST_COUNT_DIFFERENCE * header.num_frames):
            return (
                "frame_count_mismatch",
                f"the header counts {header.num_frames} frames, the index {counted}",
            )
    promised = header.duration_seconds
    spanned = index.duration_seconds or 0.0
    if promised and promised > 1 and spanned < _SHORTEST_SHARE * promised:
        return (
            "duration_mismatch",
            f"the header promises {promised:.2f} s, the packets span {spanned:.2f} s",
        )
    return "ok", None


def probe_file(path: str) -> dict[str, Any]:
    """Return the probe columns of the file at `path`; a file that cannot be read gets a status, not an error.

    Frame rate: the header's, unless the packets say otherwise by more than a tenth (FLV says 1000).
    """
    file = Path(path)
    try:
        header, index = video.read_header_and_index(file)
        size_bytes = file.stat().st_size
    except MediaError as error:
        return {"probe_status": error.kind, "probe_problem": str(error)}
    except OSError as error:
        return {"probe_status": "unreadable", "probe_problem": f"{file.name}: {error.strerror}"}
    status, problem = _judge(header, index, size_bytes)
    fps = header.fps
    if index.duration_seconds and index.num_frames > 1:
        from_index = index.num_frames / index.duration_seconds
        if fps is None or abs(fps - from_index) > 0.1 * from_index:
            fps = from_index
    end = index.end_offset_bytes
    return {
        "probe_status": status,
        "probe_problem": problem and f"{file.name}: {problem}.",
        "container": header.container,
        "codec": header.codec,
        "pixel_format": header.pixel_format,
        "coded_width": header.coded_width,
        "coded_height": header.coded_height,
        "rotation_degrees": header.rotation_degrees,
        "sample_aspect_ratio": header.sample_aspect_ratio,
        "fps_from_header": header.fps,
        "num_frames_from_header": header.num_frames,
        "num_frames_from_index": index.num_frames,
        "num_keyframes_from_index": index.num_keyframes,
        "duration_seconds_from_header": header.duration_seconds,
        "duration_seconds_from_index": index.duration_seconds,
        "is_variable_fps": index.is_variable_fps,
        "bit_rate": header.bit_rate,
        "has_audio": header.has_audio,
        "audio_codec": header.audio_codec,
        "missing_bytes": max(0, end - size_bytes) if end is not None else None,
        "width": header.width,
        "height": header.height,
        "fps": fps,
        "num_frames": index.num_frames,
        "duration_seconds": index.duration_seconds or header.duration_seconds,
        "file_size_bytes": size_bytes,
    }


def _crashed(path: str) -> dict[str, Any]:
    return {
        "probe_status": "unreadable",
        "probe_problem": f"{Path(path).name}: reading the header ended the process.",
    }


def _listing(paths: list[str], folder: Path) -> str:
    """Return a digest of the files' names, sizes and times: what decides whether a probe is out of date."""
    whole = hashlib.sha256()
    for path in paths:
        try:
            facts = (folder / path).stat()
            line = f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n"
        except OSError:
            line = f"{path}\0missing\n"
        whole.update(line.encode())
    return whole.hexdigest()


def _with_probe(clips: pl.DataFrame, paths: list[str], rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Join the files' rows to the clips and settle the columns of best knowledge."""
    names = [name for name, column in COLUMNS.items() if column.stage == "probe"]
    schema = {name: COLUMNS[name].dtype for name in (*names, *_BEST_KNOWN)}
    probed = pl.DataFrame(
        {name: pl.Series(name, [row.get(name) for row in rows], dtype=schema[name]) for name in schema}
    ).rename({name: f"probed_{name}" for name in _BEST_KNOWN})
    probed = probed.with_columns(pl.Series("video_path", paths, dtype=pl.String))
    joined = clips.join(probed, on="video_path", how="left", maintain_order="left").with_columns(
        pl.col("probe_status").fill_null("not_probed"),
        *(
            pl.coalesce(f"probed_{name}", name).cast(COLUMNS[name].dtype).alias(name)
            for name in ("width", "height", "fps", "file_size_bytes")
        ),
    )
    # A clip inside a longer file has its interval's length, cut at the file's end.
    start = pl.col("start_seconds").fill_null(0.0)
    end = pl.min_horizontal("end_seconds", "probed_duration_seconds")
    is_part = pl.col("start_seconds").is_not_null() | pl.col("end_seconds").is_not_null()
    joined = joined.with_columns(
        pl.when(is_part)
        .then((end - start).clip(0.0))
        .otherwise(pl.coalesce("probed_duration_seconds", "duration_seconds"))
        .alias("duration_seconds")
    )
    return joined.with_columns(
        pl.when(is_part)
        .then((pl.col("duration_seconds") * pl.col("fps")).round().cast(pl.Int64))
        .otherwise(pl.coalesce("probed_num_frames", "num_frames"))
        .alias("num_frames")
    ).drop(f"probed_{name}" for name in _BEST_KNOWN)


def run_probe(
    run: Path, spec: ProbeSpec, *, num_workers: int = 1, progress: Progress = no_progress
) -> ProbeSummary:
    """Probe every file of the run's table and write RUN/probe.parquet.

    Resumes inside: chunks that are done are kept until the table is written. Raises InputError when the
    folder is not there, StageError, StorageError.
    """
    if not spec.videos.is_dir():
        raise InputError(f"{spec.videos}: no such folder of videos. Give the folder with --videos.")
    previous = table.previous_stage(run, "probe")
    clips = table.scan(run, previous).collect()
    require(clips.columns, ("clip_id", "video_path", "ingest_problem"), str(table.stage_path(run, previous)))
    there = clips.filter(
        pl.col("video_path").is_not_null()
        & ~pl.col("video_path").str.starts_with("/")  # ingested without a folder: judged by none
        & ~pl.col("ingest_problem").fill_null("").is_in(["missing_file", "path_outside_root"])
    )
    paths: list[str] = there["video_path"].unique(maintain_order=True).to_list()
    origin = table.Provenance(
        stage="probe",
        settings=json.loads(spec.model_dump_json(exclude={"videos"})),
        inputs={
            previous: table.digest(table.stage_path(run, previous)),
            "videos": _listing(paths, spec.videos),
        },
    )
    target = table.stage_path(run, "probe")
    up_to_date = table.is_up_to_date(target, origin)
    if not up_to_date:
        parts = run / f".probe-{hashlib.sha256(origin.as_json().encode()).hexdigest()[:16]}"
        rows = engine.map_clips(
            probe_file,
            [str(spec.videos / path) for path in paths],
            on_crash=_crashed,
            num_workers=num_workers,
            parts=parts,
            progress=progress,
            unit="files",
        )
        table.write(_with_probe(clips, paths, rows), target, origin)
        engine.forget_parts(parts)
    return _summary(target, len(paths), up_to_date)


def _summary(target: Path, files_probed: int, up_to_date: bool) -> ProbeSummary:
    statuses = pl.read_parquet(target, columns=["probe_status"])["probe_status"].value_counts(sort=True)
    by_status = dict(sorted(statuses.iter_rows()))
    return ProbeSummary(
        rows_in=sum(by_status.values()),
        rows_ok=by_status.get("ok", 0),
        files_probed=files_probed,
        by_status=by_status,
        up_to_date=up_to_date,
    )
