"""Stage `probe`: check every video file up to a level of integrity, with a cache.

A video is probed once, even with many clips. The best-known columns (`width`, `fps`, `num_frames`, ...)
prefer decoded values over the index, the index over the header, and the header over the metadata. `examine`
finds facts; this stage turns them into a status by the recipe's policy.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field, field_validator

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import COLUMNS, require
from vidcurate.curation.probe import cache, examine, findings
from vidcurate.curation.probe.examine import Task
from vidcurate.curation.probe.findings import FINDINGS, REJECTING, Facts
from vidcurate.errors import MediaError
from vidcurate.executor import map_clips
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import DEFAULT_EXECUTOR, ExecutorSpec, PartSummary, remove_parts
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import download

_BEST_KNOWN = ("width", "height", "fps", "num_frames", "duration_seconds", "file_size_bytes")
# Columns whose name among the facts is shorter.
_NAMES = {"file_sha256": "sha256", "integrity_level": "level"}
# Transient failures: the next try may succeed on the same file.
_PASSING = ("io_error", "crashed")
# Decoding takes seconds a file: a chunk that is lost with a kill is then short.
_CHUNK_SIZES = {"header": 32, "index": 32, "keyframes": 16, "full": 4}


class ProbeSettings(Recipe):
    """Probe settings: integrity level and rejecting findings."""

    level: Literal["header", "index", "keyframes", "full"] = "index"
    """how far to go: header, index (finds truncation, decodes nothing), keyframes, or full (decodes all)"""
    reject: tuple[str, ...] = REJECTING
    """findings that reject a clip and end its check; all others are only recorded"""
    time_limit_seconds: Annotated[float, Field(gt=0)] = 120.0
    """s per file; a longer check is killed and recorded as timeout"""

    @field_validator("reject")
    @classmethod
    def _findings_exist(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in FINDINGS:
                raise ValueError(f"{name!r}: unknown finding. Findings: {', '.join(FINDINGS)}")
        return value


class ProbeSpec(ProbeSettings):
    """Probe settings with `videos`: the folder or URL that `video_path` is relative to."""

    videos: Path | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSummary:
    """Counts of a probe: rows of the table by status, level and finding, and files.

    `files_remembered`: found in the cache and not read again.
    """

    rows_in: int
    rows_ok: int
    files_probed: int
    files_remembered: int
    by_status: dict[str, int]
    by_level: dict[str, int]
    by_finding: dict[str, int]
    up_to_date: bool


def columns_of(facts: Facts, rejecting: tuple[str, ...] = REJECTING) -> dict[str, Any]:
    """Return the probe columns of a file from its facts, with the status by the policy."""
    status, problem = findings.verdict(facts, rejecting)
    names = [name for name, column in COLUMNS.items() if column.stage == "probe"]
    row = {name: facts.get(_NAMES.get(name, name)) for name in (*names, *_BEST_KNOWN)}
    return {
        **row,
        "num_frames": row["num_frames_from_decode"] or row["num_frames"],
        "duration_seconds": row["duration_seconds_from_decode"] or row["duration_seconds"],
        "probe_status": status,
        "probe_problem": problem,
        "probe_findings": findings.disagreements(facts),
    }


def probe_file(path: str, level: str = "index") -> dict[str, Any]:
    """Return the probe columns of the file at `path`; a file that cannot be read gets a status, not an error.

    It runs in this process, without a time limit.
    """
    return columns_of(examine.examine(Task(path=path, level=level)))


def _examine(task: Task) -> Facts:
    try:
        with download.local(task.path) as path:
            return examine.examine(replace(task, path=str(path)))
    except MediaError as error:
        return {"failure": error.kind, "problem": str(error), "findings": {}}


def _crashed(task: Task) -> Facts:
    problem = f"{Path(task.path).name}: reading it ended the process twice."
    return {"failure": "crashed", "problem": problem, "findings": {}}


def _timed_out(time_limit_seconds: float, task: Task) -> Facts:
    problem = f"{Path(task.path).name}: reading it took longer than {time_limit_seconds:g} s."
    return {
        "failure": "timeout", "problem": problem, "findings": {}, "time_limit_seconds": time_limit_seconds
    }  # fmt: skip


def _keys(paths: list[str], folder: Path | str) -> list[cache.Key | None]:
    """Return absolute path, size and time of each file, None for an inaccessible one."""
    if isinstance(folder, str):
        return [None] * len(paths)
    place = folder.resolve()
    keys: list[cache.Key | None] = []
    for path in paths:
        try:
            facts = (folder / path).stat()
        except OSError:
            keys.append(None)
        else:
            keys.append((str(place / path), facts.st_size, facts.st_mtime_ns))
    return keys


def _with_probe(clips: pl.DataFrame, paths: list[str], rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Join the files' rows to the clips and compute the best-known columns."""
    names = [name for name, column in COLUMNS.items() if column.stage == "probe"]
    schema = {name: COLUMNS[name].dtype for name in (*names, *_BEST_KNOWN)}
    probed = pl.DataFrame(
        {name: pl.Series(name, [row[name] for row in rows], dtype=schema[name]) for name in schema}
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


def _tasks(
    paths: list[str],
    keys: list[cache.Key | None],
    facts: list[Facts],
    spec: ProbeSpec,
    memory: cache.ProbeCache,
) -> dict[int, Task]:
    """Return the remaining tasks, by the position of the file."""

    def is_done(found: Facts) -> bool:
        return findings.is_done(found, spec.level, spec.reject, spec.time_limit_seconds)

    tasks: dict[int, Task] = {}
    for place, (path, key) in enumerate(zip(paths, keys, strict=True)):
        if facts[place] and is_done(facts[place]):
            continue
        twins = memory.by_size.get(key[1], {}) if key is not None else {}
        tasks[place] = Task(
            path=download.join(spec.videos, path),
            level=spec.level,
            rejecting=spec.reject,
            # A digest reads the whole file: worthwhile only before decoding.
            known_by_digest={digest: found for digest, found in twins.items() if is_done(found)}
            if spec.level in ("keyframes", "full")
            else {},
        )
    return tasks


def _look(
    tasks: dict[int, Task],
    spec: ProbeSpec,
    *,
    parts: Path,
    executor: ExecutorSpec,
    progress: Progress,
    is_one_good: bool,
) -> dict[int, Facts] | PartSummary:
    """Examine the files of the tasks in processes that may be killed.

    `is_one_good`: this probe knows a good file already, so the remaining ones may all be broken.
    """

    def reason_of(found: Facts) -> str | None:
        reason = findings.reason(found, spec.reject)
        return "" if reason and is_one_good else reason

    found = map_clips.map_clips_in_parts(
        _examine,
        list(tasks.values()),
        on_crash=_crashed,
        on_timeout=partial(_timed_out, spec.time_limit_seconds),
        time_limit_seconds=spec.time_limit_seconds,
        executor=executor,
        chunk_size=_CHUNK_SIZES[spec.level],
        parts=parts,
        progress=progress,
        unit="files",
        reason_of=reason_of,
    )
    if isinstance(found, PartSummary):
        return found
    return dict(zip(tasks, found, strict=True))


def _needs_another_try(target: Path) -> bool:
    """Return whether the table has files with a transient failure."""
    return bool(pl.read_parquet(target, columns=["probe_status"])["probe_status"].is_in(_PASSING).any())


@run_lock.holding_run
def run_probe(
    run: Path,
    spec: ProbeSpec,
    *,
    known_files: Path | None = None,
    executor: ExecutorSpec = DEFAULT_EXECUTOR,
    progress: Progress = no_progress,
) -> ProbeSummary | PartSummary:
    """Probe every file of the run's table and write RUN/probe.parquet; with `executor.part` write no table.

    The cache `known_files` (default: RUN/known-files.parquet) keeps the facts, and several runs may share it:
    an unchanged file is read again only to reach a higher level. A stopped probe resumes: finished chunks are
    kept until the table is written. Raises InputError for a missing folder, StageError, StorageError.
    """
    download.require(spec.videos)
    previous = table.previous_stage(run, "probe")
    clips = table.scan(run, previous).drop("caption", strict=False).collect()
    require(clips.columns, ("clip_id", "video_path", "ingest_problem"), str(table.stage_path(run, previous)))
    there = clips.filter(
        pl.col("video_path").is_not_null()
        & ~pl.col("video_path").str.starts_with("/")  # ingested without a video folder
        & ~pl.col("ingest_problem").fill_null("").is_in(["missing_file", "path_outside_root"])
    )
    paths: list[str] = there["video_path"].unique(maintain_order=True).to_list()
    keys = _keys(paths, spec.videos)
    origin = table.Provenance(
        stage="probe",
        settings=json.loads(spec.model_dump_json(exclude={"videos"})),
        inputs={
            previous: table.digest(table.stage_path(run, previous)),
            "videos": download.digest(spec.videos, paths),
        },
    )
    target = table.stage_path(run, "probe")
    work = f".probe-{hashlib.sha256(origin.to_json().encode()).hexdigest()[:16]}"
    if table.is_up_to_date(target, origin) and not _needs_another_try(target):
        _forget(run, work)
        return _summary(target, len(paths), files_read=0, up_to_date=True)
    memory_file = known_files or run / cache.FILE
    memory = cache.read_cache(memory_file)
    facts: list[Facts] = [memory.by_key.get(key, {}) if key else {} for key in keys]
    tasks = _tasks(paths, keys, facts, spec, memory)
    # The parts belong to these files at this level: the cache decides which they are.
    todo = hashlib.sha256("".join(f"{place}\n" for place in tasks).encode()).hexdigest()[:16]
    parts = run / f"{work}-{todo}"
    is_one_good = any(one and findings.verdict(one, spec.reject)[0] == "ok" for one in facts)
    found = _look(tasks, spec, parts=parts, executor=executor, progress=progress, is_one_good=is_one_good)
    if isinstance(found, PartSummary):
        return found
    for place, new in found.items():
        # A file that failed now keeps its cached facts.
        facts[place] = {**facts[place], **new} if new.get("failure") else new
    cache.update_cache(
        memory_file,
        (
            (key, facts[place])
            for place in found
            if (key := keys[place]) is not None and facts[place].get("failure") not in _PASSING
        ),
    )
    # In this order: after a kill the next run finds the facts in the cache.
    rows = [columns_of(known_facts, spec.reject) for known_facts in facts]
    table.write(_with_probe(clips, paths, rows), target, origin)
    _forget(run, work)
    return _summary(target, len(paths), files_read=len(tasks), up_to_date=False)


def _forget(run: Path, work: str) -> None:
    for parts in run.glob(f"{work}-*"):
        remove_parts(parts)


def _counted(values: pl.Series) -> dict[str, int]:
    return dict(sorted(Counter(values.drop_nulls().to_list()).items()))


def _summary(target: Path, files_probed: int, *, files_read: int, up_to_date: bool) -> ProbeSummary:
    rows = pl.read_parquet(target, columns=["probe_status", "integrity_level", "probe_findings"])
    by_status = _counted(rows["probe_status"])
    return ProbeSummary(
        rows_in=len(rows),
        rows_ok=by_status.get("ok", 0),
        files_probed=files_probed,
        files_remembered=files_probed - files_read,
        by_status=by_status,
        by_level=_counted(rows["integrity_level"]),
        by_finding=_counted(rows["probe_findings"].str.split(", ").explode()),
        up_to_date=up_to_date,
    )
