"""Stage `probe`: check every video file up to a level of integrity, with a cache.

A video is probed once, even with many clips. `examine` finds facts; `columns` turns them into a status by
the recipe's policy. Facts of a million files are gigabytes of Python objects: they stay on disk, in the
chunks and in the cache, and pass through here one at a time.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field, field_validator

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import require
from vidcurate.curation.probe import cache, examine, findings
from vidcurate.curation.probe.columns import NEEDED, FileColumns, columns_of
from vidcurate.curation.probe.examine import Task
from vidcurate.curation.probe.files import list_files
from vidcurate.curation.probe.findings import FINDINGS, REJECTING, Facts
from vidcurate.executor import map_clips
from vidcurate.executor.lazy_items import LazyItems
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.parts_folder import DEFAULT_EXECUTOR, ExecutorSpec, PartSummary, remove_parts
from vidcurate.executor.worker_processes import Loss
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import download

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


def probe_file(path: str, level: str = "index") -> dict[str, Any]:
    """Return the probe columns of the file at `path`; a file that cannot be read gets a status, not an error.

    It runs in this process, without a time limit.
    """
    return columns_of(examine.examine(Task(path=path, level=level)))


def _lost(task: Task, loss: Loss, *, time_limit_seconds: float) -> Facts:
    how = "ended the process twice" if loss == "crashed" else f"took longer than {time_limit_seconds:g} s"
    facts = {"failure": loss, "problem": f"{Path(task.path).name}: reading it {how}.", "findings": {}}
    return facts if loss == "crashed" else facts | {"time_limit_seconds": time_limit_seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Known files: `rows` of each file's entry in the cache (-1: none), and whether that entry suffices.

    `is_one_good`: an entry is of a good file.
    """

    rows: NDArray[np.int64]
    is_done: NDArray[np.bool_]
    is_one_good: bool


def _known_files(
    files: pl.DataFrame, memory: cache.ProbeCache, spec: ProbeSpec, columns: FileColumns
) -> _Known:
    """Look the files up in the cache; add the columns of those that need not be read again."""
    rows = memory.rows_of(files)
    places = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]
    is_done, is_one_good = np.zeros(len(rows), dtype=bool), False
    for place, (_, facts) in zip(places, memory.facts(rows[places]), strict=True):
        is_one_good = is_one_good or findings.verdict(facts, spec.reject)[0] == "ok"
        if facts and _is_done(facts, spec):
            is_done[place] = True
            columns.add(int(place), facts)
    return _Known(rows=rows, is_done=is_done, is_one_good=is_one_good)


def _is_done(facts: Facts, spec: ProbeSpec) -> bool:
    return findings.is_done(facts, spec.level, spec.reject, spec.time_limit_seconds)


def _tasks(
    files: pl.DataFrame, todo: NDArray[np.int64], spec: ProbeSpec, memory: cache.ProbeCache
) -> LazyItems[Task]:
    """Return the tasks of the files at the places `todo`."""
    digests: dict[int, list[str]] = {}
    packed: dict[str, bytes] = {}
    # A digest reads the whole file: worthwhile only before decoding.
    if spec.level in ("keyframes", "full"):
        twins = memory.keys.filter(
            pl.col("sha256").is_not_null() & pl.col("size_bytes").is_in(files["size_bytes"][todo].implode())
        ).sort("row")
        known = memory.facts(twins["row"].to_numpy())
        for (size, sha256), (_, facts) in zip(
            twins.select("size_bytes", "sha256").iter_rows(), known, strict=True
        ):
            if _is_done(facts, spec):
                if sha256 not in packed:
                    digests.setdefault(size, []).append(sha256)
                packed[sha256] = zlib.compress(json.dumps(facts).encode(), 1)

    def task(place: int) -> Task:
        path, size = files["path"][place], files["size_bytes"][place]
        twins = {one: json.loads(zlib.decompress(packed[one])) for one in digests.get(size, ())}
        return Task(
            path=download.join(spec.videos, path),
            level=spec.level,
            rejecting=spec.reject,
            known_by_digest=twins,
        )

    return LazyItems(task, todo)


def _look(
    tasks: LazyItems[Task],
    spec: ProbeSpec,
    *,
    parts: Path,
    executor: ExecutorSpec,
    progress: Progress,
    is_one_good: bool,
) -> Iterator[Facts] | PartSummary:
    """Examine the files of the tasks in processes that may be killed.

    `is_one_good`: this probe knows a good file already, so the remaining ones may all be broken.
    """

    def reason_of(found: Facts) -> str | None:
        reason = findings.reason(found, spec.reject)
        return "" if reason and is_one_good else reason

    return map_clips.map_clips_in_parts(
        examine.examine,
        tasks,
        on_lost=partial(_lost, time_limit_seconds=spec.time_limit_seconds),
        time_limit_seconds=spec.time_limit_seconds,
        executor=executor,
        chunk_size=_CHUNK_SIZES[spec.level],
        parts=parts,
        progress=progress,
        unit="files",
        reason_of=reason_of,
    )


def _take(
    found: Iterable[tuple[int, Facts]],
    files: pl.DataFrame,
    known: _Known,
    memory: cache.ProbeCache,
    memory_file: Path,
    columns: FileColumns,
) -> None:
    """Add the found facts, by place, to cache and columns; a failed file keeps its cached facts."""
    with cache.added_to(memory_file) as add:

        def take(place: int, facts: Facts) -> None:
            columns.add(place, facts)
            path, size, mtime_ns = (files[name][place] for name in cache.KEY)
            if path is not None and facts.get("failure") not in _PASSING:
                add((path, size, mtime_ns), facts)

        failed: dict[int, Facts] = {}
        for place, facts in found:
            if facts.get("failure") and known.rows[place] >= 0:
                failed[place] = facts
            else:
                take(place, facts)
        places = sorted(failed, key=lambda place: known.rows[place])
        older = memory.facts(np.array([known.rows[place] for place in places], dtype=np.int64))
        for place, (_, facts) in zip(places, older, strict=True):
            take(place, {**facts, **failed[place]})


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
    scanned = table.scan(run, previous)
    names = scanned.collect_schema().names()
    require(names, ("clip_id", "video_path", "ingest_problem"), str(table.stage_path(run, previous)))
    own = (*NEEDED, "video_path", "ingest_problem")
    clips = scanned.select(name for name in names if name in own).collect()
    files = list_files(clips, spec.videos)
    origin = table.Provenance(
        stage="probe",
        settings=json.loads(spec.model_dump_json(exclude={"videos"})),
        inputs={
            previous: table.digest(table.stage_path(run, previous)),
            "videos": download.digest(spec.videos, files["path"]),
        },
    )
    target = table.stage_path(run, "probe")
    work = f".probe-{hashlib.sha256(origin.to_json().encode()).hexdigest()[:16]}"
    if table.is_up_to_date(target, origin) and not _needs_another_try(target):
        _forget(run, work)
        return _summary(target, files.height, files_read=0, up_to_date=True)
    places = files.select(video_path="path").with_row_index("place")
    clips = clips.drop("ingest_problem").join(places, on="video_path", how="left", maintain_order="left")
    found = _probed(
        files, spec, run / work, known_files or run / cache.FILE, executor=executor, progress=progress
    )
    if isinstance(found, PartSummary):
        return found
    columns, files_read = found
    num_files = files.height
    del files, places  # gone before the table is written
    table.write(columns.of_clips(clips.drop("video_path")), target, origin)
    _forget(run, work)
    return _summary(target, num_files, files_read=files_read, up_to_date=False)


def _probed(
    files: pl.DataFrame,
    spec: ProbeSpec,
    work: Path,
    memory_file: Path,
    *,
    executor: ExecutorSpec,
    progress: Progress,
) -> tuple[FileColumns, int] | PartSummary:
    """Return the columns of all files, by place, and how many files were read; update the cache."""
    with cache.opened(memory_file) as memory:
        columns = FileColumns(spec.reject)
        known = _known_files(files, memory, spec, columns)
        todo = np.flatnonzero(~known.is_done)
        # The parts belong to these files at this level: the cache decides which they are.
        chosen = hashlib.sha256()
        for place in todo:
            chosen.update(f"{place}\n".encode())
        found = _look(
            _tasks(files, todo, spec, memory),
            spec,
            parts=work.with_name(f"{work.name}-{chosen.hexdigest()[:16]}"),
            executor=executor,
            progress=progress,
            is_one_good=known.is_one_good,
        )
        if isinstance(found, PartSummary):
            return found
        # The cache first: after a kill the next run finds the facts there.
        _take(zip(map(int, todo), found, strict=True), files, known, memory, memory_file, columns)
    return columns, len(todo)


def _forget(run: Path, work: str) -> None:
    for parts in run.glob(f"{work}-*"):
        remove_parts(parts)


def _counted(values: pl.Series) -> dict[str, int]:
    return dict(sorted(values.drop_nulls().value_counts().iter_rows()))


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
        by_finding=_counted(rows["probe_findings"].drop_nulls().str.split(", ").explode()),
        up_to_date=up_to_date,
    )
