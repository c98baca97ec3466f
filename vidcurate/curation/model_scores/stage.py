"""Stage `score-models`: scores by neural networks on a few frames of each clip.

The other files of this folder load torch and are imported only when the stage runs. Worker processes decode
frames while the models score those of earlier clips. The stage writes each finished chunk of clips to a parts
folder, whole or not at all, so that a killed stage resumes. The table fixes which clips share a batch: the
same table on the same device gives the same bytes.
"""

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import AGGREGATES, COLUMNS, require
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.errors import InputError
from vidcurate.executor.common_failure import CommonFailure
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import (
    DEFAULT_EXECUTOR,
    ExecutorSpec,
    PartSummary,
    check_parts,
    chunk_file,
    chunks_of_part,
    finish_part,
    make_parts,
    read_chunk,
    remove_chunks,
    remove_parts,
    write_part,
)
from vidcurate.executor.worker_processes import Row
from vidcurate.storage import atomic_file, download, regular_file

if TYPE_CHECKING:
    from vidcurate.curation.model_scores.scorers import Models

EMBEDDINGS = "embeddings.parquet"
_CLIPS_A_CHUNK = 32
_CLIP_SIDE = 224  # smallest decoded size: input of the usual CLIP
_NEEDED = ("clip_id", "video_path", "caption", "ingest_problem", "start_seconds", "end_seconds")
_STATUSES = ("probe_status", "frames_status")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsSummary:
    """Counts of a scored table: rows, scored clips, rows by status, the mean of each score's means."""

    rows_in: int
    rows_ok: int
    by_status: dict[str, int]
    means: dict[str, float | None]
    models_used: str
    device: str
    up_to_date: bool


def scores_of(spec: ModelsSpec) -> list[str]:
    """Return the prefixes of the score columns that `spec` enables. Raises InputError without any."""
    wanted = {
        "clip_aesthetic": spec.aesthetic_head is not None,
        "clip_match": spec.clip is not None,
        "watermark": spec.watermark is not None,
        "text_area": spec.text_detector is not None,
    }
    found = [name for name, is_wanted in wanted.items() if is_wanted]
    if not found and not spec.embeddings:
        raise InputError(
            "score-models: no model is set. Set one, for example --set clip=openai/clip-vit-large-patch14 "
            "or --set text_detector=det.onnx."
        )
    return found


def names_of(spec: ModelsSpec) -> str:
    """Return the models of `spec`, each with a digest of its files. Raises InputError, StorageError."""
    from vidcurate.curation.model_scores.weights import file_of, folder_of, is_there, name_of

    named = []
    for setting, source in (("clip", spec.clip), ("watermark", spec.watermark)):
        if source is not None:
            is_there("torch", setting)
            is_there("transformers", setting)
            named.append(f"{setting}={name_of(folder_of(source, setting))}")
    for setting, path in (("aesthetic_head", spec.aesthetic_head), ("text_detector", spec.text_detector)):
        if path is not None:
            is_there("torch" if setting == "aesthetic_head" else "cv2", setting)
            named.append(f"{setting}={name_of(file_of(path, setting))}")
    return " ".join(named)


def _is_scored(clips: pl.DataFrame) -> pl.Series:
    fit = pl.col("video_path").is_not_null() & ~pl.col("video_path").str.starts_with("/")
    for name in _STATUSES:
        if name in clips.columns:
            fit &= pl.col(name) == "ok"
    return clips.select((fit & pl.col("ingest_problem").is_null()).fill_null(value=False)).to_series()


def _embeddings_file(parts: Path, number: int) -> Path:
    return chunk_file(parts, number).with_suffix(".npy")


def _write_chunk(parts: Path, number: int, rows: list[dict[str, Any]], means: Any) -> None:
    """Write a chunk's embeddings, then its rows. Raises StorageError."""
    vectors = _embeddings_file(parts, number)
    with atomic_file.storage_errors(vectors):
        if means is not None:
            with atomic_file.atomic_writer(vectors, is_flushed=False) as file:
                np.save(file, means)
    write_part(chunk_file(parts, number), rows)


def _read_chunk(parts: Path, number: int, length: int, *, embeddings: bool) -> tuple[list[Row], Any] | None:
    """Return a chunk's rows and mean embeddings (float32 [length, D]), or None where one is damaged."""
    rows = read_chunk(chunk_file(parts, number), length)
    if rows is None or not embeddings:
        return None if rows is None else (rows, None)
    try:
        with regular_file.opened(_embeddings_file(parts, number)) as file:
            means = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return (rows, means) if means.shape[:1] == (length,) else None


def _score_chunks(
    items: list[dict[str, Any]], models: "Models", parts: Path, executor: ExecutorSpec, progress: Progress
) -> PartSummary | None:
    """Score the chunks of `items` (or of the executor's part of them) that are not in `parts` yet."""
    from vidcurate.curation.model_scores.frames import decoded
    from vidcurate.curation.model_scores.scorers import columns_of

    spec = models.spec
    side = max(
        _CLIP_SIDE, models.clip.side if models.clip else 0, models.watermark.side if models.watermark else 0
    )
    if models.text is not None:
        side = max(side, spec.text_short_side_px)
    chunks = [items[start : start + _CLIPS_A_CHUNK] for start in range(0, len(items), _CLIPS_A_CHUNK)]
    mine = chunks_of_part(len(chunks), executor.part)
    reasons = CommonFailure(lambda row: None if row["models_status"] == "ok" else row["models_problem"])
    todo = []
    for number in mine:
        chunk = _read_chunk(parts, number, len(chunks[number]), embeddings=spec.embeddings)
        if chunk is None:
            todo.append(number)
        else:
            reasons.add(chunk[0])
    total = sum(len(chunks[number]) for number in mine)
    done = done_before = total - sum(len(chunks[number]) for number in todo)
    progress(done, total, "clips")
    waiting = list(itertools.chain.from_iterable(chunks[number] for number in todo))
    looks = decoded(waiting, spec.positions, side, executor.num_workers)
    for number in todo:
        found = [next(looks) for _ in chunks[number]]
        rows = [{name: look[name] for name in ("models_status", "models_problem")} for look in found]
        there = [place for place, look in enumerate(found) if look["frames"] is not None]
        means = (
            np.zeros((len(found), models.clip.width), np.float32) if models.clip and spec.embeddings else None
        )
        if there:
            captions = [chunks[number][place]["caption"] for place in there]
            columns, embedded = columns_of(models, [found[place]["frames"] for place in there], captions)
            for place, scored in zip(there, columns, strict=True):
                rows[place] |= scored
            if means is not None and embedded is not None:
                means[there] = embedded
        _write_chunk(parts, number, rows, means)
        done += len(found)
        reasons.add(rows)
        progress(done, total, "clips")
        error = reasons.error(done, total, "clips")
        if error is not None:
            remove_chunks(parts, mine)  # a later run, with the cause mended, computes them again
            raise error
    return finish_part(parts, executor.part, total, done_before) if executor.part else None


def _read_chunks(parts: Path, count: int, *, embeddings: bool) -> tuple[list[Row], list[Any]]:
    """Return the rows of `count` clips and each chunk's embeddings. Raises StageError when any is missing."""
    rows: list[Row] = []
    means, missing = [], 0
    for number in range(-(-count // _CLIPS_A_CHUNK)):
        length = min(_CLIPS_A_CHUNK, count - number * _CLIPS_A_CHUNK)
        chunk = _read_chunk(parts, number, length, embeddings=embeddings)
        if chunk is None:
            missing += length
        else:
            rows += chunk[0]
            means.append(chunk[1])
    check_parts(parts, missing, count)
    return rows, means


@run_lock.holding_run
def run_models(
    run: Path,
    spec: ModelsSpec,
    *,
    videos: Path | str,
    executor: ExecutorSpec = DEFAULT_EXECUTOR,
    progress: Progress = no_progress,
) -> ModelsSummary | PartSummary:
    """Score every clip that no earlier stage found broken and write RUN/models.parquet.

    With `executor.part` no table is written; only the engine `local` runs models. Raises InputError for a
    missing folder, model or package, StageError, StorageError, and VidcurateError when every clip fails for
    one reason (no table is written then).
    """
    if executor.engine != "local":
        raise InputError(
            f"--engine {executor.engine}: models run only on this machine. Use --part i/n to spread them."
        )
    download.require(videos)
    scores, used = scores_of(spec), names_of(spec)
    previous = table.previous_stage(run, "models")
    source = table.stage_path(run, previous)
    lazy = table.scan(run, previous)
    schema = lazy.collect_schema().names()
    require(schema, _NEEDED, str(source))
    wanted = {*_NEEDED, *_STATUSES, "width", "height"}
    clips = lazy.select(name for name in schema if name in wanted).collect()
    is_scored = _is_scored(clips)
    scored = clips.filter(is_scored)
    origin = table.Provenance(
        stage="models",
        settings={
            **json.loads(
                spec.model_dump_json(exclude={"clip", "aesthetic_head", "watermark", "text_detector"})
            ),
            "models": used,
        },
        inputs={
            previous: table.digest(source),
            "videos": download.digest(videos, scored["video_path"].unique(maintain_order=True).to_list()),
        },
    )
    target, embedded = table.stage_path(run, "models"), run / EMBEDDINGS
    up_to_date = table.is_up_to_date(target, origin) and (
        not spec.embeddings or table.is_up_to_date(embedded, origin)
    )
    parts = run / f".models-{hashlib.sha256(origin.to_json().encode()).hexdigest()[:16]}"
    if not up_to_date:
        from vidcurate.curation.model_scores.scorers import load

        items = [
            {"width": None, "height": None} | row | {"path": download.join(videos, row["video_path"])}
            for row in scored.drop([name for name in _STATUSES if name in scored.columns]).iter_rows(
                named=True
            )
        ]
        if not executor.merge:
            make_parts(parts)
            part = _score_chunks(items, load(spec), parts, executor, progress)
            if part is not None:
                return part
        rows, means = _read_chunks(parts, len(items), embeddings=spec.embeddings)
        if spec.embeddings:
            table.write(_embeddings(scored, rows, means), embedded, origin)
        table.write(_columns(clips, is_scored, rows, scores, used), target, origin)
    remove_parts(parts)
    return _summary(target, scores, used, up_to_date)


def _embeddings(scored: pl.DataFrame, rows: list[dict[str, Any]], means: list[Any]) -> pl.DataFrame:
    vectors = np.concatenate(means) if means else np.zeros((0, 1), np.float32)
    seen = pl.Series([row["models_status"] == "ok" for row in rows], dtype=pl.Boolean)
    held = pl.Series("embedding", vectors).cast(pl.List(pl.Float32))
    return scored.select("clip_id").with_columns(held).filter(seen)


def _columns(
    clips: pl.DataFrame, is_scored: pl.Series, rows: list[dict[str, Any]], scores: list[str], used: str
) -> pl.DataFrame:
    left = iter(rows)
    whole = [next(left) if scored else {"models_status": "not_scored"} for scored in is_scored]
    names = ["models_status", "models_problem"]
    names += [f"{score}_{aggregate}" for score in scores for aggregate in AGGREGATES]
    return clips.select("clip_id").with_columns(
        *(pl.Series(name, [row.get(name) for row in whole], dtype=COLUMNS[name].dtype) for name in names),
        pl.lit(used).alias("models_used"),
    )


def _summary(target: Path, scores: list[str], used: str, up_to_date: bool) -> ModelsSummary:
    from vidcurate.curation.model_scores.scorers import device_of

    done = pl.read_parquet(target)
    by_status = dict(sorted(done["models_status"].value_counts().iter_rows()))
    means: dict[str, float | None] = {}
    for score in scores:
        mean = done[f"{score}_mean"].mean()
        means[score] = round(mean, 4) if isinstance(mean, float) else None
    return ModelsSummary(
        rows_in=len(done),
        rows_ok=by_status.get("ok", 0),
        by_status=by_status,
        means=means,
        models_used=used,
        device=str(device_of()),
        up_to_date=up_to_date,
    )
