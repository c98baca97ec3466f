"""Stage `ingest`: read metadata lazily, reconcile it with files, write the table.

One pass over the metadata where no files are listed (`one_pass`), two passes otherwise (`two_passes`). A
thread digests the metadata during the first pass.
"""

import hashlib
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.own_columns import MAIN, caption_names, own_columns, words_of
from vidcurate.curation.clip_table.reconciliation import RECONCILE
from vidcurate.curation.ingest import one_pass, two_passes
from vidcurate.curation.ingest.adapters import folder, webdataset
from vidcurate.curation.ingest.detect import TABLES
from vidcurate.curation.ingest.files import Listing, list_folder
from vidcurate.curation.ingest.plan import IngestPlan, files_of, plan_of
from vidcurate.curation.ingest.reconcile import (
    KEYS,
    PROBLEMS,
    Ledger,
    lists,
    read_report,
    reconcile,
    write_report,
)
from vidcurate.curation.ingest.rows import Rows
from vidcurate.curation.ingest.source import PARQUET, no_rows, unreadable
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.errors import StorageError
from vidcurate.executor.map_clips import Progress, no_progress

UNPACKED = "videos"  # below the run folder: what came out of shards
_SCRATCH = ".ingest"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSummary:
    """What an ingest found: `rows_in` = `rows_kept` + the rows of `problems` = metadata rows + extra files.

    `videos` is the folder that `video_path` is relative to (None: only metadata was read). `findings` counts
    each list of reconcile.json; a row with two problems is in two lists and once in `problems`. `own_columns`
    are the columns kept beside the known ones, `captions` the names of several captions a clip.
    """

    rows_in: int
    rows_kept: int
    metadata_rows: int
    schema: str
    reason: str
    problems: dict[str, int]
    findings: dict[str, int]
    own_columns: tuple[str, ...]
    captions: tuple[str, ...]
    videos: str | None
    up_to_date: bool


def run_ingest(run: Path, spec: IngestSpec, *, progress: Progress = no_progress) -> IngestSummary:
    """Write RUN/ingest.parquet (all rows of the metadata and one per extra file) and RUN/reconcile.json.

    Does nothing when both are there for the same settings, metadata and listing of the video folder. Raises
    InputError and ColumnError for what cannot be read, ShardError for a damaged tar, StorageError.
    """
    scratch = run / _SCRATCH
    with run_lock.alone(run):
        try:
            scratch.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"{run}: the run folder cannot be written ({error.strerror}).") from error
        try:
            return _ingest(run, spec, scratch, progress)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _ingest(run: Path, spec: IngestSpec, scratch: Path, progress: Progress) -> IngestSummary:
    plan = plan_of(spec, scratch)
    spec = spec.model_copy(update={"files": spec.files or files_of(plan.schema)})
    videos = run / UNPACKED if plan.shards else plan.listing.root if plan.listing else None
    target = table.stage_path(run, "ingest")
    with ThreadPoolExecutor(max_workers=1) as beside:
        is_digested = "metadata" in plan.inputs or plan.source is None
        digest = None if is_digested else beside.submit(table.digest, spec.metadata)
        report = read_report(run / RECONCILE)
        if report is not None and "videos" in report:
            origin, made_from = _origin(plan, spec, digest)
            if (
                report.get("made_from") == made_from
                and table.is_up_to_date(target, origin)
                and _still_there(plan, report, videos)
            ):
                if report["videos"] != _place(videos):  # the same files under another name
                    report["videos"] = _place(videos)
                    write_report(run / RECONCILE, report)
                return _summary(report, videos, up_to_date=True)
        return _write(run, plan, spec, scratch, videos, digest, progress)


def _origin(plan: IngestPlan, spec: IngestSpec, digest: Future[str] | None) -> tuple[table.Provenance, str]:
    """Return the table's provenance and its digest; waits for the digest of the metadata."""
    settings = spec.model_dump(mode="json", by_alias=True, exclude={"metadata", "videos"})
    origin = table.Provenance(
        stage="ingest",
        settings={**settings, "schema": plan.schema},
        inputs={**plan.inputs, **({"metadata": digest.result()} if digest is not None else {})},
    )
    return origin, hashlib.sha256(origin.to_json().encode()).hexdigest()


def _write(
    run: Path,
    plan: IngestPlan,
    spec: IngestSpec,
    scratch: Path,
    videos: Path | None,
    digest: Future[str] | None,
    progress: Progress,
) -> IngestSummary:
    target = table.stage_path(run, "ingest")

    def origin() -> table.Provenance:
        return _origin(plan, spec, digest)[0]

    try:
        rows, listing, more = _rows(plan, spec, scratch, videos, progress)
        ledger = (
            one_pass.write_table(rows, plan.schema, spec, target, scratch, origin)
            if listing is None
            else None
        )
        if ledger is not None:
            num_rows = ledger.num_rows
            found = _findings(plan, ledger)
            named: list[str] = []
        else:
            cells = two_passes.first_pass(rows)
            if cells.is_empty():
                raise no_rows(spec.metadata)
            num_rows = cells.height
            progress(0, num_rows, "rows")
            ledger = reconcile(
                cells.select(KEYS),
                listing,
                spec.extension,
                with_extra_files=not plan.shards,
                finds_by_name=plan.schema in TABLES and TABLES[plan.schema].has_bare_names,
            )
            found = _findings(plan, ledger)
            whole = two_passes.second_pass(rows, cells, ledger, plan.schema, spec)
            del (
                cells,
                ledger,
            )  # what only the report needs goes before the second pass, which needs the memory
            words = {cell.name: words_of(cell.source) for cell in rows.own}
            table.write(whole, target, origin(), words=words)
            named = [name for name in caption_names(run) if name != MAIN]
        report = {"made_from": _origin(plan, spec, digest)[1], **_report(found, named, run, more, videos)}
        write_report(run / RECONCILE, report)
    except pl.exceptions.PolarsError as error:
        raise unreadable(spec.metadata, error, spec.encoding) from error
    except pl.exceptions.PanicException as error:
        if spec.metadata.suffix.lower() not in PARQUET:
            raise
        raise unreadable(spec.metadata, error, spec.encoding) from error
    progress(num_rows, num_rows, "rows")
    return _summary(report, videos, up_to_date=False)


def _place(videos: Path | None) -> str | None:
    return None if videos is None else str(videos.resolve())


def _still_there(plan: IngestPlan, report: dict[str, Any], videos: Path | None) -> bool:
    """Say whether what the table says of paths holds: unpacked shards, and the root of absolute paths."""
    if report["root_of_absolute_paths"] not in (None, _place(videos)):
        return False
    return videos is None or all(
        (videos / webdataset.folder_name(shard, digest)).is_dir() for shard, digest in plan.shards.items()
    )


def _rows(
    plan: IngestPlan, spec: IngestSpec, scratch: Path, videos: Path | None, progress: Progress
) -> tuple[Rows, Listing | None, dict[str, Any]]:
    """Return the adapter's rows, the files to match, and other findings."""
    if plan.shards and videos is not None:
        rows, found = webdataset.read_rows(plan.shards, spec, scratch, videos, progress)
        files = pl.DataFrame(found.files, schema={"path": pl.String, "size_bytes": pl.Int64}, orient="row")
        files = files.with_columns(leaves=pl.lit(False), is_video=pl.lit(True))
        listing = Listing(root=videos, files=files, links=(), digest="")
        return rows, listing, {"other_files": found.num_other_members}
    more = {"other_files": plan.listing.files.filter(~pl.col("is_video")).height if plan.listing else 0}
    if plan.source is not None:
        return TABLES[plan.schema].read(plan.source, spec, scratch), plan.listing, more
    videos_beside = plan.listing or list_folder(spec.metadata)
    return folder.read_rows(videos_beside, spec, scratch), videos_beside, more


def _findings(plan: IngestPlan, ledger: Ledger) -> dict[str, Any]:
    """Return what the reconciliation found, as plain JSON values."""
    counted = dict(ledger.frame["ingest_problem"].drop_nulls().value_counts().iter_rows())
    problems = {word: counted[word] for word in PROBLEMS if word in counted}
    return {
        "schema": plan.schema,
        "reason": plan.reason,
        "metadata_rows": ledger.num_rows,
        "rows_in": ledger.frame.height,
        "rows_kept": ledger.frame.height - sum(problems.values()),
        "problems": problems,
        "has_absolute_paths": ledger.num_absolute_paths > 0,
        "lists": {
            **lists(ledger),
            "captions_without_a_video": {"count": len(plan.alone), "listed": plan.alone},
        },
    }


def _report(
    found: dict[str, Any], captions: list[str], run: Path, more: dict[str, Any], videos: Path | None
) -> dict[str, Any]:
    """Return the values of reconcile.json, in their order; `captions` are the names of several a clip."""
    found = dict(found)
    findings, has_absolute_paths = found.pop("lists"), found.pop("has_absolute_paths")
    return {
        **found,
        "own_columns": [
            {"column": name, "source": own.source, "type": str(own.dtype)}
            for name, own in own_columns(run).items()
        ],
        "captions": captions,
        "videos": _place(videos),
        "root_of_absolute_paths": _place(videos) if has_absolute_paths else None,
        **findings,
        **more,
    }


def _summary(report: dict[str, Any], videos: Path | None, *, up_to_date: bool) -> IngestSummary:
    findings = {
        name: value["count"] for name, value in report.items() if isinstance(value, dict) and "count" in value
    }
    return IngestSummary(
        rows_in=report["rows_in"],
        rows_kept=report["rows_kept"],
        metadata_rows=report["metadata_rows"],
        schema=report["schema"],
        reason=report["reason"],
        problems=report["problems"],
        findings=findings,
        own_columns=tuple(own["column"] for own in report["own_columns"]),
        captions=tuple(report["captions"]),
        videos=str(videos) if videos is not None else None,
        up_to_date=up_to_date,
    )
