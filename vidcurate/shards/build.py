"""Build shards: WebDataset tars, then `index.parquet`, then `manifest.json`.

No unfinished file has a name that a reader accepts. All work in progress lies in `OUT/.build`: the plan
(`plan.json`), the partial shards, and a record of each finished shard (`NAME.json`, flushed before the rename
of the tar). A killed run leaves that folder; the next run keeps every shard whose record matches the plan and
writes the others. A finished folder has no `.build`; before `build-shards` changes a finished folder, it
removes the manifest and the index.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from blake3 import blake3

from vidcurate import __version__
from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.rejection_ledger import record_unwritten, unwritten
from vidcurate.errors import InputError, ShardError, StorageError, counted
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.map_shards import in_processes, in_threads
from vidcurate.media import transcode
from vidcurate.shards import index, index_file
from vidcurate.shards.folder import finished_by, open_set
from vidcurate.shards.kept_clips import integrity_levels, is_as_probed
from vidcurate.shards.layout import ENCODED, LAYOUT, WHOLE, PlannedShard, ShardPlan, ShardSpec, make_plan
from vidcurate.shards.manifest import MANIFEST_NAME, only_writer
from vidcurate.shards.write_shard import BUILD, PLACES, Record, ShardTask, unpacked, write_json, write_shard

_LARGE_CLIP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSummary:
    """Summary of a run: rows_in = rows_rejected + rows_kept, rows_kept = rows_written + rows_failed.

    `extensions` counts the clips by the extension of their video; `failed` lists each failed clip with the
    reason. The manifest has the details.
    """

    rows_in: int
    rows_rejected: int
    rows_kept: int
    rows_written: int
    rows_failed: int
    num_shards: int
    num_shards_written: int
    size_bytes: int
    extensions: dict[str, int]
    failed: tuple[str, ...]
    up_to_date: bool


def check_written(summary: ShardSummary, out: Path) -> None:
    """Raise ShardError when every clip failed, as without a codec."""
    if summary.rows_failed and not summary.rows_written:
        clips, first = counted(summary.rows_failed, "clip"), summary.failed[0].rstrip(".")
        raise ShardError(
            f"{out}: {clips} failed and none was written. The first: {first}. `vidcurate version` prints the "
            "codecs and libraries of this installation. Mend the cause, then run the same command again."
        )


def _summary(manifest: Mapping[str, Any], *, num_shards_written: int, up_to_date: bool) -> ShardSummary:
    totals = manifest["totals"]
    return ShardSummary(
        **{name: totals[name] for name in totals if name.startswith("rows_")},
        num_shards=totals["shards"],
        num_shards_written=num_shards_written,
        size_bytes=totals["bytes"],
        extensions=manifest.get("extensions", {}),
        failed=tuple(f"{clip['clip_id']}: {clip['reason']}" for clip in manifest["failed"]),
        up_to_date=up_to_date,
    )


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────────


def _tasks(
    plan: ShardPlan,
    todo: list[PlannedShard],
    *,
    out: Path,
    videos: Path,
    spec: ShardSpec,
    checks_content: bool,
) -> Iterator[ShardTask]:
    """Yield the tasks one by one, as their rows take memory."""
    for shard in todo:
        rows = tuple(plan.clips[shard.rows].iter_rows(named=True))
        yield ShardTask(
            out=out,
            videos=videos,
            shard=shard,
            rows=rows,
            columns=plan.columns,
            spec=spec,
            parent=os.getpid(),
            checks_content=checks_content,
        )


def _named(task: ShardTask) -> tuple[str, Record]:
    return task.shard.name, write_shard(task)


def _write_shards(
    tasks: Iterator[ShardTask], todo: list[PlannedShard], *, out: Path, spec: ShardSpec, num_workers: int
) -> Iterator[tuple[str, Record]]:
    """Write the shards, one task each; yield (name, record) as they finish.

    Copying large clips is reading, hashing and writing without the GIL: threads do that without the second
    that processes take to start. Small clips and cuts need processes.
    """
    num_clips = sum(len(shard.rows) for shard in todo)
    is_large = sum(shard.num_bytes for shard in todo) >= num_clips * _LARGE_CLIP_BYTES
    num_workers = min(num_workers, len(todo))
    try:
        if num_workers <= 1:
            yield from (_named(task) for task in tasks)
        elif spec.mode in WHOLE and is_large:
            yield from in_threads(_named, tasks, num_workers)
        else:
            yield from in_processes(_named, tasks, num_workers, doing="wrote shards")
    finally:
        for path in (out / BUILD).glob("*.partial"):  # of workers that were stopped
            path.unlink(missing_ok=True)


def _index_rows(plan: ShardPlan, records: Mapping[str, Record], own: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of the index, shard by shard; own columns as arrow arrays."""
    several = "captions" in plan.clips.columns and plan.clips["captions"].is_not_null().any()
    names = [name for name in index_file.COLUMNS if not name.endswith("_hash")]
    rows: dict[str, list[Any]] = {
        name: [] for name in (*names, *(index_file.OF_CAPTIONS if several else ()), *own)
    }
    known = [name for name in rows if name in plan.clips.columns]
    for shard in plan.shards:
        record = records[shard.name]
        clips = plan.clips[shard.rows[record["positions"]]] if record["positions"] else plan.clips.clear()
        for name in rows:
            if name == "shard":
                rows[name] += [shard.name] * clips.height
            elif name == "frame_map":
                rows[name] += map(unpacked, record[name])
            elif name in PLACES:
                rows[name] += record[name]
            elif name in known:
                rows[name] += clips[name].to_list()
            else:
                rows[name] += [None] * clips.height
        start = len(rows["shard"]) - clips.height
        for row, position in enumerate(record["positions"], start=start):
            for name, value in record["changed"].get(str(position), {}).items():
                rows[name][row] = value
    typed = {name: pa.array(rows[name], type=_arrow_type(plan.clips.schema[name])) for name in own}
    return {**rows, **typed}


def _arrow_type(dtype: pl.DataType) -> Any:
    """Return the Arrow type of an own column (`clip_table.own_columns`)."""
    if isinstance(dtype, pl.List):
        return pa.list_(_arrow_type(dtype.inner))  # type: ignore[arg-type]
    return {pl.Int64(): pa.int64(), pl.Float64(): pa.float64(), pl.Boolean(): pa.bool_()}.get(
        dtype, pa.string()
    )


def _integrity_levels(
    plan: ShardPlan, records: Mapping[str, Record], *, is_as_probed: bool
) -> dict[str, int]:
    """Return how many written clips have which level of integrity.

    A clip that was encoded anew is another file than the one that probe decoded: its level is index, as the
    writer has read all its packets and decoded none. So is a file that is not the one probed and of which
    probe took no SHA-256: its level is header, none where its packets cannot be read. Copied packets keep the
    level of their source.
    """
    rows: list[int] = []
    levels: list[str | None] = []
    digests = plan.clips["file_sha256"] if "file_sha256" in plan.clips.columns else None
    for shard in plan.shards:
        record = records[shard.name]
        for at, how, frame_map in zip(
            record["positions"], record["rendition"], record["frame_map"], strict=True
        ):
            rows.append(int(shard.rows[at]))
            is_checked = is_as_probed or (digests is not None and digests[rows[-1]] is not None)
            level = None if is_checked else "none" if frame_map is None else "header"
            levels.append("index" if how in ENCODED else level)
    return integrity_levels(plan.clips[rows], levels)


def _failed(plan: ShardPlan, records: Mapping[str, Record]) -> list[dict[str, Any]]:
    return [
        {
            "clip_id": plan.clips["clip_id"][int(shard.rows[failure["position"]])],
            "shard": shard.name,
            "video_path": plan.clips["video_path"][int(shard.rows[failure["position"]])],
            "file_size_bytes": plan.clips["_size"][int(shard.rows[failure["position"]])],
            "kind": failure["kind"],
            "reason": failure["reason"],
        }
        for shard in plan.shards
        for failure in records[shard.name]["failed"]
    ]


def _finish(
    out: Path,
    plan: ShardPlan,
    spec: ShardSpec,
    inputs: Mapping[str, str],
    records: Mapping[str, Record],
    levels: Mapping[str, int],
) -> dict[str, Any]:
    """Write index and manifest, remove the work folder, return the manifest."""
    own = {name: column.source for name, column in plan.own.items()}
    index_file.write_index(out, _index_rows(plan, records, own), own)
    opened = index.read_index(out)
    prints = index.shard_fingerprints(opened)
    failed = _failed(plan, records)
    shards = [
        {
            "name": shard.name,
            "fold": shard.fold,
            "level": shard.level,
            "clips": len(records[shard.name]["positions"]),
            "bytes": records[shard.name]["bytes"],
            "blake3": records[shard.name]["blake3"],
            "plan_sha256": shard.digest,
            "structure_fingerprint": prints[shard.name][0],
            "content_fingerprint": prints[shard.name][1],
        }
        for shard in plan.shards
        if records[shard.name]["positions"]
    ]
    manifest = {
        "format": LAYOUT,
        "version": __version__,
        "ffmpeg": None if spec.mode == "copy" else transcode.ffmpeg_version(),
        "stage": plan.stage,
        "inputs": dict(inputs),
        "spec": spec.lasting(),
        "plan_sha256": plan.digest,
        "structure_fingerprint": opened.structure_fingerprint,
        "content_fingerprint": opened.content_fingerprint,
        "integrity_levels": dict(levels),
        "totals": {
            "rows_in": plan.rows_in,
            "rows_rejected": plan.rows_in - plan.clips.height,
            "rows_kept": plan.clips.height,
            "rows_written": len(opened),
            "rows_failed": len(failed),
            "shards": len(shards),
            "bytes": sum(shard["bytes"] for shard in shards),
        },
        "extensions": dict(sorted(Counter(opened.words("video_extension").to_pylist()).items())),
        "index": {
            "name": index_file.INDEX_NAME,
            "bytes": (out / index_file.INDEX_NAME).stat().st_size,
            "blake3": blake3((out / index_file.INDEX_NAME).read_bytes()).hexdigest(),
        },
        "shards": shards,
        "failed": failed,
    }
    try:
        write_json(out / MANIFEST_NAME, manifest, indent=1)
    except OSError as error:
        raise StorageError(f"{out / MANIFEST_NAME}: cannot be written ({error.strerror}).") from error
    shutil.rmtree(out / BUILD, ignore_errors=True)
    return manifest


@run_lock.holding_run
def run_build_shards(
    run: Path,
    spec: ShardSpec,
    *,
    videos: Path,
    out: Path,
    overwrite: bool = False,
    is_unprobed_allowed: bool = False,
    num_workers: int = 1,
    progress: Progress = no_progress,
) -> ShardSummary:
    """Write the kept clips of the newest table in `run` as shards into `out`; `videos` has their files.

    Samples are `key.json`, `key.<extension>` and `key.txt`, grouped by fold and level. The bytes depend
    neither on `num_workers` nor on how often the run was killed and resumed. The run's ledger names the clips
    that could not be written. `overwrite`: replace another set in `out`; without it the set is refused.
    `is_unprobed_allowed`: also write clips that probe never looked at. Raises StageError (no table, no kept
    clip, `out` holds another set), InputError (a wrong folder, id or interval), StorageError (the disk),
    ShardError (a damaged set, or a worker that died).
    """
    stage = table.newest_stage(run)
    inputs = {stage: table.digest(table.stage_path(run, stage))}
    finished = finished_by(out, spec, inputs, videos)
    if finished is not None:
        record_unwritten(run, finished["failed"], spec.model_dump_json())
        summary = _summary(finished, num_shards_written=0, up_to_date=True)
        progress(summary.rows_kept, summary.rows_kept, "clips")
        return summary
    if not videos.is_dir():
        raise InputError(f"{videos}: no such folder of videos. Give the folder with --videos.")
    unwritten(run)  # refuses a ledger of another command before anything is written
    plan = make_plan(run, stage, spec, videos=videos, is_unprobed_allowed=is_unprobed_allowed)
    as_probed = is_as_probed(run, videos)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{out}: cannot make this folder ({error.strerror}).") from error
    with only_writer(out):
        records = open_set(out, plan, spec, inputs, overwrite=overwrite)
        todo = [shard for shard in plan.shards if shard.name not in records]
        total = plan.clips.height
        done = total - sum(len(shard.rows) for shard in todo)
        progress(done, total, "clips")
        sizes = {shard.name: len(shard.rows) for shard in todo}
        tasks = _tasks(plan, todo, out=out, videos=videos, spec=spec, checks_content=not as_probed)
        for name, record in _write_shards(tasks, todo, out=out, spec=spec, num_workers=num_workers):
            records[name] = record
            done += sizes[name]
            progress(done, total, "clips")
        levels = _integrity_levels(plan, records, is_as_probed=as_probed)
        manifest = _finish(out, plan, spec, inputs, records, levels)
    record_unwritten(run, manifest["failed"], spec.model_dump_json())
    return _summary(manifest, num_shards_written=len(todo), up_to_date=False)
