"""Write one shard in a worker: to a partial file, flushed, recorded, then renamed.

When a clip's file differs from the table (missing, another size, unreadable, impossible to cut), the writer
removes what it wrote of the clip, and the record names the clip with the reason. An error of the output disk
is no clip's fault and ends the shard.
"""

import base64
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from vidcurate.errors import MediaError, StorageError
from vidcurate.media import remux, transcode
from vidcurate.media.packets import frame_map_of
from vidcurate.shards import tar_write
from vidcurate.shards.background_digest import BackgroundDigest
from vidcurate.shards.layout import (
    PlannedShard,
    ShardSpec,
    clip_facts,
    extension_of,
    is_cut,
    is_remuxed,
    to_json,
)
from vidcurate.shards.probed_file import check_content, problem_of
from vidcurate.storage import atomic_file
from vidcurate.storage.checksum import crc32c

BUILD = ".build"  # folder of unfinished work, inside the folder of the shards
_CHUNK_BYTES = 1 << 18  # fits into a core's cache while being hashed and written
# Start writing back to disk after this many bytes: one fsync at the end took a third of the time.
_WRITE_OUT_BYTES = 16 << 20
_WATCH_SECONDS = 0.5
# Failures that a later run may not see: a file was missing or a mount was away.
MAY_HEAL = ("missing", "size_changed", "content_changed", "unreadable")
# Columns of the index that only the writer knows, and those that a cut changes.
PLACES = (
    "json_offset", "json_size", "json_crc32c",
    "video_offset", "video_size", "video_crc32c", "video_extension",
    "text_offset", "text_size", "text_crc32c", "frame_map", "rendition",
)  # fmt: skip
CHANGED_BY_A_CUT = ("width", "height", "fps", "num_frames", "duration_seconds")

# Record of a finished shard, plain JSON values: plan_sha256, blake3, bytes, positions (of the written clips
# in the plan), one list for each of PLACES (frame maps as base64), changed (position -> columns) and failed.
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Task of writing one shard; picklable.

    `checks_content`: the files may not be those that probe read, so compare each with its SHA-256.
    """

    out: Path
    videos: Path
    shard: PlannedShard
    rows: tuple[dict[str, Any], ...]
    columns: dict[str, bool]
    spec: ShardSpec
    parent: int
    checks_content: bool = False


def _chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks. Raises MediaError when the file has not `size_bytes` bytes."""
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                done += len(chunk)
                if done > size_bytes:
                    break
                yield chunk
    except OSError as error:
        raise MediaError(f"{path.name}: reading failed at byte {done} ({error.strerror})") from error
    if done != size_bytes:
        raise MediaError(f"{path.name}: its size changed while it was read", kind="size_changed")


def _add_sample(
    writer: tar_write.TarWriter, row: Mapping[str, Any], task: ShardTask, thread: ThreadPoolExecutor
) -> tuple[list[Any], dict[str, Any]]:
    """Write JSON, video and caption of one clip; return its PLACES and the facts that a cut changed.

    `thread` reads the frame map while this thread copies the video. Raises MediaError when the clip's file
    cannot be read or cut.
    """
    key, size = row["sample_key"], row["_size"]
    problem = problem_of(task.videos, row["video_path"], size)
    if problem:
        raise MediaError(problem[1], kind=problem[0])
    if size > tar_write.MAX_MEMBER_BYTES:
        most = tar_write.MAX_MEMBER_BYTES
        raise MediaError(f"{row['video_path']} has {size} bytes; a tar member takes {most}", kind="too_large")
    path = task.videos / row["video_path"]
    if task.checks_content:
        check_content(task.videos, row["video_path"], row.get("file_sha256"))
    facts = clip_facts(row, task.columns, task.spec.mode)
    changed: dict[str, Any] = {}
    cut = None
    if is_remuxed(row, task.spec.mode):
        if (payload := _remuxed(path)) is not None:
            cut = transcode.Cut(payload=payload, extension="mp4")
            facts |= {"container": "mov"} if "container" in facts else {}
    elif is_cut(row, task.spec.mode):
        interval = row.get("start_seconds"), row.get("end_seconds")
        if task.spec.mode == "trim":
            cut = transcode.trim_video(path, *interval)
        else:
            cut = transcode.transcode_video(path, *interval, task.spec.transcode)
        facts |= cut.facts
        changed = {name: cut.facts[name] for name in CHANGED_BY_A_CUT if name in cut.facts}
    frame_map = thread.submit(_frame_map, cut.payload if cut else path)
    payload = to_json(facts)
    place: list[Any] = [writer.add(f"{key}.json", payload), len(payload), crc32c(payload)]
    extension = cut.extension if cut else extension_of(row["video_path"])
    name = f"{key}.{extension}"
    if cut:
        size = len(cut.payload)
        offset, crc = writer.add(name, cut.payload), crc32c(cut.payload)
    else:
        offset, crc = writer.add_chunks(name, size, _chunks(path, size))
    place += [offset, size, crc, extension]
    caption = (row.get("caption") or "").encode()
    place += [writer.add(f"{key}.txt", caption), len(caption), crc32c(caption)]
    place += [frame_map.result(), task.spec.mode if cut else "copy"]
    return place, changed


def _remuxed(path: Path) -> bytes | None:
    try:
        return remux.remux_to_mp4(path)
    except MediaError:  # the filter decides about files that FFmpeg cannot open; copy them as they are
        return None


def _frame_map(video: Path | bytes) -> str | None:
    """Return the packed frame map as base64; None when the packets have no usable times."""
    try:
        found = frame_map_of(video)
    except MediaError:  # the filter decides about files that FFmpeg cannot open; copy them as they are
        return None
    return packed(found.to_bytes()) if found else None


def packed(data: bytes | None) -> str | None:
    """Encode bytes for a record, as base64."""
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text: str | None) -> bytes | None:
    """Decode the result of `packed`."""
    return None if text is None else base64.b64decode(text)


def _write_out(file: BinaryIO, first: int, end: int) -> None:
    """Start writing these bytes back to disk, without waiting."""
    if hasattr(os, "posix_fadvise"):
        file.flush()
        os.posix_fadvise(file.fileno(), first, end - first, os.POSIX_FADV_DONTNEED)


def _fill(file: BinaryIO, writer: tar_write.TarWriter, task: ShardTask, thread: ThreadPoolExecutor) -> Record:
    """Write all readable clips of the shard; return its record, without size and digest."""
    places: list[list[Any]] = []
    written_out = 0
    record: Record = {"plan_sha256": task.shard.digest, "positions": [], "changed": {}, "failed": []}
    for position, row in enumerate(task.rows):
        mark = writer.mark()
        try:
            place, changed = _add_sample(writer, row, task, thread)
        except MediaError as error:
            writer.roll_back(mark)
            reason = str(error).rstrip(".")
            record["failed"].append({"position": position, "kind": error.kind, "reason": reason})
            continue
        record["positions"].append(position)
        places.append(place)
        if writer.position - written_out >= _WRITE_OUT_BYTES:
            _write_out(file, written_out, writer.position)
            written_out = writer.position
        if changed:
            record["changed"][str(position)] = changed
    record |= {name: [place[column] for place in places] for column, name in enumerate(PLACES)}
    return record


@cache
def _end_with(parent: int) -> None:
    """Exit soon after the parent: idle workers of joblib's pool outlive a killed parent by minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)  # readers ignore the partial file

    if os.getpid() != parent:
        threading.Thread(target=watch, daemon=True).start()


def write_shard(task: ShardTask) -> Record:
    """Write one shard to a partial file, flush, record, then rename. Raises StorageError."""
    _end_with(task.parent)
    final, build = task.out / task.shard.name, task.out / BUILD
    try:
        with atomic_file.atomic_path(final, folder=build) as partial:
            with partial.open("wb") as file, ThreadPoolExecutor(1) as thread:
                writer = tar_write.TarWriter(file, BackgroundDigest(blake3(), thread))
                record = _fill(file, writer, task, thread)
                record["blake3"], record["bytes"] = writer.finish(), writer.position
            if not record["positions"]:  # a shard is never empty
                partial.unlink()
                final.unlink(missing_ok=True)
            write_json(build / f"{task.shard.name}.json", record)
    except OSError as error:
        raise StorageError(
            f"{final}: cannot be written ({error.strerror}); it needs {task.shard.num_bytes:,} bytes. "
            "Free disk space and run the same command again: finished shards are kept."
        ) from error
    return record


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write `value` as JSON, whole or not at all. Raises OSError."""
    atomic_file.put(path, json.dumps(value, indent=indent) + "\n")
