"""Folder of a set of shards: which shards to keep, and which folders to refuse.

A finished set has tars, `index.parquet` and `manifest.json`. An unfinished set has the folder `.build`
instead of the last two: the plan (`plan.json`, which also lists every tar that this package wrote), the
partial shards, and a record of each finished one.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from vidcurate.errors import InputError, StageError, StorageError
from vidcurate.shards import index_file
from vidcurate.shards.layout import ShardPlan, ShardSpec
from vidcurate.shards.manifest import MANIFEST_NAME, read_manifest
from vidcurate.shards.probed_file import problem_of
from vidcurate.shards.reader_indexes import export as reader_indexes_export
from vidcurate.shards.write_shard import (
    BUILD,
    CHANGED_BY_A_CUT,
    MAY_HEAL,
    PLACES,
    Record,
    packed,
    write_json,
)
from vidcurate.storage import json_shape, regular_file
from vidcurate.storage.atomic_file import size_of
from vidcurate.storage.json_shape import Count, FileName

_WAYS_ON = "Give --out another folder, or add --overwrite to replace what is there."


def _read_json(path: Path, shape: type) -> Any:
    """Return the parsed file; None when it is missing, incomplete or of another shape."""
    try:
        data = regular_file.read_bytes(path)
        json_shape.parse(data, shape)
    except (OSError, ValueError):
        return None
    return json.loads(data)


@dataclass
class _Plan:
    """The part of a set's plan, under construction, that is compared and that names files."""

    plan_sha256: str
    spec: dict[str, Any]
    inputs: dict[str, str]
    shards: list[FileName]
    replaces: list[FileName]


_Crc = Annotated[int, Field(ge=0, lt=2**32)]
_Packed = Annotated[str, Field(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]


@dataclass
class _Record:
    """The record of a finished shard (`write_shard.Record`)."""

    plan_sha256: str
    blake3: str
    bytes: Count
    positions: list[Count]
    failed: list[dict[str, Any]]
    changed: dict[str, dict[str, float | None]]
    json_offset: list[Count]
    json_size: list[Count]
    json_crc32c: list[_Crc]
    video_offset: list[Count]
    video_size: list[Count]
    video_crc32c: list[_Crc]
    video_extension: list[str]
    text_offset: list[Count | None]
    text_size: list[Count | None]
    text_crc32c: list[_Crc | None]
    frame_map: list[_Packed | None]
    rendition: list[str | None]


def _read_record(path: Path, num_clips: int) -> Record | None:
    """Return the record of a finished shard of so many clips; None when it is missing or damaged."""
    record: Record | None = _read_json(path, _Record)
    if record is None:
        return None
    positions = record["positions"]
    is_whole = (
        positions == sorted(set(positions))
        and all(position < num_clips for position in positions)
        and all(len(record[name]) == len(positions) for name in PLACES)
        and all(set(columns) <= {*CHANGED_BY_A_CUT} for columns in record["changed"].values())
    )
    return record if is_whole else None


def finished_by(out: Path, spec: ShardSpec, inputs: Mapping[str, str], videos: Path) -> dict[str, Any] | None:
    """Return the manifest in `out` if the same request made the set and the set is still complete.

    None also when a clip that failed then is readable now, or none was written, as without a codec.
    """
    if (out / BUILD).exists():
        return None
    manifest = read_manifest(out)
    if manifest is None or manifest["spec"] != spec.lasting() or manifest["inputs"] != inputs:
        return None
    if size_of(out / index_file.INDEX_NAME) != manifest["index"]["bytes"]:
        return None
    if any(size_of(out / shard["name"]) != shard["bytes"] for shard in manifest["shards"]):
        return None
    for clip in manifest["failed"]:
        if clip["kind"] not in MAY_HEAL:
            if not manifest["shards"]:
                return None
        elif not problem_of(videos, clip["video_path"], clip["file_size_bytes"]):
            return None
    return manifest


def _records_of_finished(out: Path, plan: ShardPlan, manifest: Mapping[str, Any]) -> dict[str, Record]:
    """Return the records of a finished set's shards that match the plan, made from its index."""
    planned = {shard.name: shard for shard in plan.shards}
    failing = {clip["shard"] for clip in manifest["failed"]}
    listed = [
        shard
        for shard in manifest["shards"]
        if shard["name"] not in failing
        and shard["name"] in planned
        and planned[shard["name"]].digest == shard["plan_sha256"]
    ]
    if not listed:
        return {}
    rows = index_file.read_columns(out, ["clip_id", *PLACES, *CHANGED_BY_A_CUT])
    where = {clip_id: row for row, clip_id in enumerate(rows.column("clip_id").to_pylist())}
    columns = {name: rows.column(name).to_pylist() for name in (*PLACES, *CHANGED_BY_A_CUT)}
    columns["frame_map"] = [packed(data) for data in columns["frame_map"]]
    clip_ids = plan.clips["clip_id"]
    records: dict[str, Record] = {}
    for shard in listed:
        at = [where[clip_ids[int(row)]] for row in planned[shard["name"]].rows]
        records[shard["name"]] = {
            "plan_sha256": shard["plan_sha256"],
            "blake3": shard["blake3"],
            "bytes": shard["bytes"],
            "positions": list(range(len(at))),
            "failed": [],
            "changed": {
                str(position): {name: columns[name][row] for name in CHANGED_BY_A_CUT}
                for position, row in enumerate(at)
            },
            **{name: [columns[name][row] for row in at] for name in PLACES},
        }
    return records


def open_set(
    out: Path, plan: ShardPlan, spec: ShardSpec, inputs: Mapping[str, str], *, overwrite: bool = False
) -> dict[str, Record]:
    """Prepare `out` for this plan and return the records of the shards to keep.

    Raises StageError when the folder holds another set and `overwrite` is false, InputError when the folder
    holds tars that `build-shards` did not write, StorageError when the other shards do not fit on the disk;
    after an error the folder is unchanged.
    """
    build = out / BUILD
    building, manifest = _read_json(build / "plan.json", _Plan), read_manifest(out)
    names = [shard.name for shard in plan.shards]
    ours = {shard["name"] for shard in manifest["shards"]} if manifest else set()
    if building:
        ours |= {*building["shards"], *building["replaces"]}
    strangers = sorted(path.name for path in out.glob("*.tar") if path.name not in ours)
    if strangers or (not building and not manifest and (out / index_file.INDEX_NAME).exists()):
        stranger = strangers[0] if strangers else index_file.INDEX_NAME
        raise InputError(f"{out}: holds {stranger}, which build-shards did not write. Choose another folder.")
    current = building or manifest
    if current and current["plan_sha256"] != plan.digest and not overwrite:
        raise StageError(f"{out}: {_difference(current, spec, inputs)}; nothing was changed. {_WAYS_ON}")
    done: dict[str, Record] = {}
    found = _records_of_finished(out, plan, manifest) if manifest and not building else {}
    for shard in plan.shards:
        record = found.get(shard.name) or _read_record(build / f"{shard.name}.json", len(shard.rows))
        if not record or record["plan_sha256"] != shard.digest or record["failed"]:
            continue
        if size_of(out / shard.name) == record["bytes"]:
            done[shard.name] = record
    stale = [out / name for name in sorted(ours) if name not in done and (out / name).exists()]
    _check_space(out, sum(s.num_bytes for s in plan.shards if s.name not in done), stale)
    try:
        build.mkdir(exist_ok=True)
        for name in found.keys() & done.keys():
            write_json(build / f"{name}.json", done[name])
        write_json(
            build / "plan.json",
            {"plan_sha256": plan.digest, "spec": spec.lasting(), "inputs": dict(inputs), "shards": names,
             "replaces": sorted(ours - set(names))},
        )  # fmt: skip
        if ours:
            reader_indexes_export.remove(out, ours)
        for path in (
            out / MANIFEST_NAME,
            out / index_file.INDEX_NAME,
            *stale,
            *build.glob("*.partial"),
        ):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{build}: cannot be written ({error.strerror}).") from error
    return done


def _difference(current: Mapping[str, Any], spec: ShardSpec, inputs: Mapping[str, str]) -> str:
    old, new = current["spec"], spec.lasting()
    changed = [
        f"{name} is {new.get(name)}, was {old.get(name)}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    if not changed:
        changed = [f"{' and '.join(inputs)}.parquet has other clips or facts"]
    return f"holds the shards of another request ({'; '.join(changed)})"


def _check_space(out: Path, need: int, stale: list[Path]) -> None:
    free = shutil.disk_usage(out).free + sum(path.stat().st_size for path in stale)
    if need > free:
        raise StorageError(
            f"{out}: the shards need {need:,} bytes and {free:,} are free. "
            "Free disk space or give --out another disk."
        )
