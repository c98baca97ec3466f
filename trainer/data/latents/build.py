"""Latent folder under construction: plan, finished shards, locks, manifest.

Any process can write any shard. A shard left by a killed process is kept if its digest fits the plan. Work in
progress lies in `.build`: `plan.json`, records of finished shards, shards being written. A finished folder
has a manifest instead; adding shards deletes the manifest first.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.latents.folder import LATENTS_NAME, TEXTS_NAME, numbers, read_table, shape_of
from trainer.data.latents.manifest import FORMAT, MANIFEST_NAME, Request, read_manifest
from trainer.data.latents.plan import Identity, PlannedShard, difference, plan_digest
from trainer.data.latents.write import (
    BUILD,
    as_table,
    file_facts,
    read_record,
    write_json,
    write_table,
)
from vidcurate import __version__
from vidcurate.errors import InputError, StageError, StorageError
from vidcurate.shards.index import Index
from vidcurate.shards.index_file import INDEX_NAME
from vidcurate.storage import atomic_file, json_shape, lock, regular_file
from vidcurate.storage.atomic_file import size_of
from vidcurate.storage.json_shape import FileName

_AWAY = "Give --out another folder, or delete this one."
PLAN_NAME = "plan.json"


@contextmanager
def holding(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a file or folder until this process exits, however it exits. Raises StageError."""

    def busy(holder: str) -> StageError:
        return StageError(f"{path}: another process is encoding this part. Wait until it ends.")

    with lock.exclusive(path, wait=wait, busy=busy):
        yield


def check_same(out: Path, have: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """Raise StageError, naming the first difference, unless the folder was made for this request."""
    if found := difference({name: have.get(name) for name in want}, want):
        key, there, now = found
        raise StageError(
            f"{out}: holds other latents: {key} is {there} there and {now} now. "
            f"The folder is unchanged. {_AWAY}"
        )


def is_finished(out: Path, shards: tuple[PlannedShard, ...], identity: Identity) -> bool:
    """Return whether all of these shards exist, complete.

    Raises StageError if the folder holds latents of other clips, encoders or dtypes.
    """
    manifest = read_manifest(out)
    if manifest is None:
        return False
    check_same(out, manifest, identity)
    have = {shard["name"]: shard for shard in manifest["shards"]}
    failed_whole = {name: digest for name, digest in manifest["empty_shards"].items()}
    for shard in shards:
        if failed_whole.get(shard.name) == shard.digest:
            continue
        facts = have.get(shard.name)
        if not facts or facts["digest"] != shard.digest or size_of(out / shard.name) != facts["bytes"]:
            return False
    return all(size_of(out / name) == facts["bytes"] for name, facts in manifest["tables"].items())


def begin(
    out: Path,
    index: Index,
    shards: tuple[PlannedShard, ...],
    identity: Identity,
    weights: Mapping[str, Any],
) -> None:
    """Prepare the folder for the plan. Every participating process calls this, in any order.

    `weights`: fingerprints of the encoders' weights. Raises StageError if the folder holds something else, or
    latents that the plan lacks; InputError for unplanned tars; StorageError (the disk).
    """
    build = out / BUILD
    want = {"format": FORMAT, **identity, "weights": dict(weights)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with holding(out, wait=True):
            if not (build / PLAN_NAME).exists():
                _lay_open(out, index, shards, want)
            plan = _read_plan(out)
            check_same(out, plan, want)
            if plan["digest"] != plan_digest(shards):
                raise StageError(
                    f"{out}: encoding of other clips or stages has started here. Finish it with the command "
                    f"that started it. {_AWAY}"
                )
            # A finished folder loses its tables before anything is written, or after a kill here.
            for name in (MANIFEST_NAME, LATENTS_NAME, TEXTS_NAME, INDEX_NAME):
                (out / name).unlink(missing_ok=True)
            there = [name for name in plan["replaces"] if (out / name).exists()]
            done = finished(out, shards)
            for name in there:
                if name not in done:
                    (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror or error}).") from error


@dataclass
class _Plan(Request):
    """The part of a folder's plan that is read."""

    digest: str
    replaces: list[FileName]


def _read_plan(out: Path) -> dict[str, Any]:
    """Return the plan of a folder under construction. Raises StageError for a damaged one."""
    path = out / BUILD / PLAN_NAME
    try:
        data = regular_file.read_bytes(path)
        json_shape.parse(data, _Plan)
    except (OSError, ValueError) as error:
        raise StageError(f"{path}: is damaged ({error}). {_AWAY}") from error
    plan: dict[str, Any] = json.loads(data)
    return plan


def _lay_open(out: Path, index: Index, shards: tuple[PlannedShard, ...], want: Mapping[str, Any]) -> None:
    """Create `.build` with the plan, and a record for each matching shard of a finished folder."""
    build, manifest = out / BUILD, read_manifest(out)
    named = {shard["name"] for shard in manifest["shards"]} if manifest else set()
    strangers = sorted(path.name for path in out.glob("*.tar") if path.name not in named)
    if strangers or (manifest is None and (out / INDEX_NAME).exists()):
        stranger = strangers[0] if strangers else INDEX_NAME
        raise InputError(f"{out}: holds {stranger}, which is not of latents. {_AWAY}")
    tables = {}
    if manifest:
        check_same(out, manifest, want)
        tables = {name: read_table(out / name, name) for name in (LATENTS_NAME, TEXTS_NAME)}
        _check_covers(out, tables[LATENTS_NAME], shards)
    _check_space(out, shards, named)
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir()
    digests = {shard.name: shard.digest for shard in shards}
    for facts in manifest["shards"] if manifest else ():
        if digests.get(facts["name"]) == facts["digest"]:
            table = tables[facts["table"]]
            rows = table.filter(pc.equal(table.column("shard"), facts["name"])).to_pylist()
            write_table(build / f"{facts['name']}.parquet", as_table(facts["table"], rows), facts)
    with atomic_file.atomic_path(build / INDEX_NAME) as partial:
        shutil.copyfile(index.folder / INDEX_NAME, partial)
    write_json(build / PLAN_NAME, {**want, "digest": plan_digest(shards), "replaces": sorted(named)})


def _check_covers(out: Path, latents: Any, shards: tuple[PlannedShard, ...]) -> None:
    """Raise StageError if the folder has latents that the plan lacks: they would be lost."""
    names = ("num_frames", "height", "width", "frame_stride", "clip_row", "view")
    had = set(zip(*(numbers(latents, name).tolist() for name in names), strict=True))
    for shard in shards:
        if shard.bucket:
            views = range(shard.num_views)
            had -= {(*shape_of(shard.bucket), row, view) for row in shard.rows.tolist() for view in views}
    if had:
        raise StageError(
            f"{out}: holds {len(had)} latents that this request does not name; they would be lost. Name all "
            f"stages in one request (leave --stage out), or give --out another folder."
        )


def _check_space(out: Path, shards: tuple[PlannedShard, ...], named: set[str]) -> None:
    free = shutil.disk_usage(out).free + sum(size_of(out / name) or 0 for name in named)
    need = sum(shard.num_bytes for shard in shards if shard.bucket)
    if need > free:
        raise StorageError(
            f"{out}: the latents need {need:,} bytes and {free:,} are free. Free disk space, "
            "give --out another "
            "disk, or set encoded.latent_dtype=bfloat16."
        )


def finished(out: Path, shards: tuple[PlannedShard, ...]) -> dict[str, dict[str, Any]]:
    """Return the facts of the plan's written shards, by name."""
    done: dict[str, dict[str, Any]] = {}
    for shard in shards:
        record = read_record(out / BUILD / f"{shard.name}.parquet")
        if record and record["digest"] == shard.digest:
            size = size_of(out / shard.name)
            if size == record["bytes"] or (record["sha256"] is None and size is None):
                done[shard.name] = record
    return done


def finish(out: Path, shards: tuple[PlannedShard, ...]) -> bool:
    """Write tables and manifest if every shard exists; return whether the folder is finished.

    If several processes finish at once, one of them writes. Raises StorageError (the disk).
    """
    build = out / BUILD
    try:
        with holding(out, wait=True):
            if not (build / PLAN_NAME).exists():  # another process was faster
                return read_manifest(out) is not None
            done = finished(out, shards)
            if len(done) < len(shards):
                return False
            plan = _read_plan(out)
            tables = {
                name: _join(build, [shard for shard in shards if shard.table == name], name)
                for name in (LATENTS_NAME, TEXTS_NAME)
            }
            for name, table in tables.items():
                write_table(out / name, table)
            # A copy: after a kill before the manifest, the next process starts here again.
            with atomic_file.atomic_path(out / INDEX_NAME, folder=build) as partial:
                shutil.copyfile(build / INDEX_NAME, partial)
            manifest = {
                "format": FORMAT,
                "version": __version__,
                **{name: plan[name] for name in ("clips", "encoders", "captions", "kept", "weights")},
                "shapes": _shapes(tables[LATENTS_NAME]),
                "totals": _totals(tables, done),
                "tables": {name: file_facts(out / name) for name in (INDEX_NAME, *tables)},
                "shards": [done[shard.name] for shard in shards if done[shard.name]["sha256"]],
                "empty_shards": {
                    shard.name: shard.digest for shard in shards if not done[shard.name]["sha256"]
                },
            }
            write_json(out / MANIFEST_NAME, manifest)
            shutil.rmtree(build, ignore_errors=True)
            return True
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror or error}).") from error


def _join(build: Path, shards: list[PlannedShard], name: str) -> Any:
    parts = [read_table(build / f"{shard.name}.parquet", name) for shard in shards]
    plain = as_table(name, []).schema
    return pa.concat_tables([part.cast(plain) for part in parts])


def _shapes(latents: Any) -> list[dict[str, Any]]:
    """Return one line per shape: what it contains."""
    shape = ["num_frames", "height", "width", "frame_stride"]
    found = (
        latents.append_column("failed", pc.is_valid(latents.column("failure_kind")).cast(pa.int64()))
        .group_by(shape, use_threads=False)
        .aggregate([("view", "max"), ("clip_row", "count_distinct"), ("failed", "sum"), ("size", "sum")])
    )
    lines = [
        {
            **{name: line[name] for name in shape},
            "views": line["view_max"] + 1,
            "clips": line["clip_row_count_distinct"],
            "failed": line["failed_sum"],
            "bytes": line["size_sum"],
        }
        for line in found.to_pylist()
    ]
    return sorted(lines, key=lambda line: [line[name] for name in shape])


def _totals(tables: Mapping[str, Any], done: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    latents, texts = tables[LATENTS_NAME], tables[TEXTS_NAME]
    return {
        "latents": latents.num_rows,
        "failed": latents.num_rows - latents.column("failure_kind").null_count,
        "texts": texts.num_rows,
        "tokens": pc.sum(texts.column("num_tokens")).as_py() or 0,
        "shards": sum(1 for facts in done.values() if facts["sha256"]),
        "bytes": sum(facts["bytes"] for facts in done.values()),
    }
