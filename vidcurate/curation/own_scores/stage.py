"""Stage `score-own`: run own scores over clips, write RUN/own_scores.parquet.

A column is a float64 with the function's unit; its words in the table name the function and the digest of its
file. The table is scored again when a file, a clip's row or the videos have changed.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.own_columns import RESERVED
from vidcurate.curation.clip_table.schema import require
from vidcurate.curation.own_scores.load import OwnScore
from vidcurate.curation.own_scores.score_clip import STATUS, score_clip
from vidcurate.errors import InputError
from vidcurate.executor import map_clips
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import DEFAULT_EXECUTOR, ExecutorSpec, PartSummary, remove_parts
from vidcurate.executor.worker_processes import HOW
from vidcurate.storage import download

STAGE = "own_scores"
_CLIPS_AT_ONCE = 8
_MOST_COLUMNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScoresSummary:
    """Counts of a table of own scores: rows, rows by status, and values by column."""

    rows_in: int
    rows_ok: int
    by_status: dict[str, int]
    values: dict[str, int]
    up_to_date: bool


@run_lock.holding_run
def run_own_scores(
    run: Path,
    scores: tuple[OwnScore, ...],
    *,
    videos: Path | str | None,
    time_limit_seconds: float | None = 60.0,
    executor: ExecutorSpec = DEFAULT_EXECUTOR,
    progress: Progress = no_progress,
) -> OwnScoresSummary | PartSummary:
    """Run `scores` over every clip that no earlier stage found broken; frames are read from `videos`.

    A stopped stage resumes. A clip whose function raises has a problem and null; the stage stops where every
    clip has the same problem. Raises InputError (no score, a column that is there already, no videos),
    StageError, StorageError, VidcurateError.
    """
    if not scores:
        raise InputError("no score: write --score FILE.py:FUNCTION.")
    needs_frames = any(score.takes == "frames" for score in scores)
    if needs_frames:
        if videos is None:
            raise InputError("a score takes frames: write --videos FOLDER.")
        download.require(videos)
    previous = table.previous_stage(run, STAGE)
    source = table.stage_path(run, previous)
    clips = table.scan(run, previous).collect()
    require(clips.columns, ("clip_id", "video_path", "ingest_problem"), str(source))
    for score in scores:
        if score.name in RESERVED or score.name in clips.columns:
            raise InputError(
                f"--score {score.source}: the table has a column {score.name}; rename the function."
            )
    is_scored = _is_sound(clips)
    scored = clips.filter(is_scored)
    paths = scored["video_path"].drop_nulls().unique(maintain_order=True).to_list() if needs_frames else []
    origin = table.Provenance(
        stage=STAGE,
        # Where a score's file lies does not decide its values.
        settings={"scores": [asdict(score) | {"source": Path(score.source).name} for score in scores]},
        inputs={
            previous: table.digest(source),
            **({"videos": download.digest(videos, paths)} if needs_frames and videos is not None else {}),
        },
    )
    target = table.stage_path(run, STAGE)
    up_to_date = table.is_up_to_date(target, origin)
    parts = run / f".own_scores-{hashlib.sha256(origin.to_json().encode()).hexdigest()[:16]}"
    if not up_to_date:
        items = [
            {"row": row, "path": download.join(videos, row["video_path"]) if needs_frames and videos else ""}
            for row in scored.iter_rows(named=True)
        ]
        rows = map_clips.map_clips_in_parts(
            partial(score_clip, scores=scores),
            items,
            on_lost=lambda item, loss: _failed(item, loss, f"a score {HOW[loss]}"),
            time_limit_seconds=time_limit_seconds,
            executor=executor,
            chunk_size=_CLIPS_AT_ONCE,
            parts=parts,
            progress=progress,
            reason_of=lambda row: row["own_scores_problem"],
        )
        if isinstance(rows, PartSummary):
            return rows
        columns = _columns(is_scored, rows, scores)
        words = {name: _words(name, scores) for name in columns.columns if not name.startswith("own_scores_")}
        table.write(clips.select("clip_id").hstack(columns), target, origin, words=words)
    remove_parts(parts)
    return _summary(target, up_to_date)


def _is_sound(clips: pl.DataFrame) -> pl.Series:
    """Return which rows have a file that no earlier stage found broken."""
    is_there = pl.col("video_path").is_not_null() & pl.col("ingest_problem").is_null()
    if "probe_status" in clips.columns:
        is_there &= pl.col("probe_status") == "ok"
    return clips.select(is_there.alias("is_there"))["is_there"]


def _failed(item: dict[str, Any], status: str, problem: str) -> dict[str, Any]:
    return {"own_scores_status": status, "own_scores_problem": problem, "scores": {}}


def _columns(
    is_scored: pl.Series, rows: Iterator[dict[str, Any]], scores: tuple[OwnScore, ...]
) -> pl.DataFrame:
    """Return the columns of the table: status, problem, then each score's, by name."""
    none: dict[str, Any] = {"own_scores_status": "not_scored", "own_scores_problem": None, "scores": {}}
    whole = [next(rows) if scored else none for scored in is_scored]
    # A function that failed for every clip still has its column.
    names = {name for row in whole for name in row["scores"]}
    if len(names) > _MOST_COLUMNS:
        raise InputError(
            f"the scores made {len(names):,} columns, such as {min(names)}; at most {_MOST_COLUMNS:,}. "
            "Return the same keys for every clip."
        )
    names |= {score.name for score in scores if not any(_is_of(name, score) for name in names)}
    return pl.DataFrame(
        [
            *(pl.Series(name, [row[name] for row in whole], dtype=pl.String) for name in STATUS),
            *(
                pl.Series(name, [row["scores"].get(name) for row in whole], dtype=pl.Float64)
                for name in sorted(names)
            ),
        ]
    )


def _is_of(name: str, score: OwnScore) -> bool:
    return name == score.name or name.startswith(f"{score.name}_")


def _words(name: str, scores: tuple[OwnScore, ...]) -> dict[str, str]:
    score = max((one for one in scores if _is_of(name, one)), key=lambda one: len(one.name))
    source = Path(score.source).name
    meaning = f"own score {source} (SHA-256 {score.digest[:12]})"
    return {"unit": score.unit, "meaning": meaning, "source": source}


def _summary(target: Path, up_to_date: bool) -> OwnScoresSummary:
    done = pl.read_parquet(target)
    by_status = dict(sorted(done["own_scores_status"].value_counts().iter_rows()))
    without = ("clip_id", "own_scores_status", "own_scores_problem")
    return OwnScoresSummary(
        rows_in=len(done),
        rows_ok=by_status.get("ok", 0),
        by_status=by_status,
        values={name: len(done) - done[name].null_count() for name in done.columns if name not in without},
        up_to_date=up_to_date,
    )
