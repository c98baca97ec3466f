"""Writing one shard, in a worker: beside its name, flushed, recorded, then renamed.

A clip whose file is not what the table says (gone, another size, unreadable, not to be cut) is left out and
named in the record with the reason; what was written of it is taken back. Trouble with the disk that is
written to is no clip's fault and ends the shard.
"""

import base64
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from blake3 import blake3

from vidcurate.errors import MediaError, StorageError
from vidcurate.media import transcode
from vidcurate.media.packets import frame_map_of
from vidcurate.shards import tar_write
from vidcurate.shards.layout import PlannedShard, ShardSpec, clip_facts, extension_of, is_cut, to_json
from vidcurate.storage import atomic_file
from vidcurate.storage.checksum import crc32c

BUILD = ".build"  # the folder of everything unfinished, inside the folder of the shards
_CHUNK_BYTES = 1 << 18  # stays in a core's cache while it is hashed and written
# The disk begins to write after this many bytes: waiting for it at the end took a third of the time.
_WRITE_OUT_BYTES = 16 << 20
_WATCH_SECONDS = 0.5
# Failures that another run may not meet: a file was missing or a mount was gone.
MAY_HEAL = ("missing", "size_changed", "unreadable")
# The columns of the index that only the writing can know, and those that a cut changes.
PLACES = (
    "json_offset", "json_size", "json_crc32c",
    "video_offset", "video_size", "video_crc32c", "video_extension",
    "text_offset", "text_size", "text_crc32c", "frame_map", "rendition",
)  # fmt: skip
CHANGED_BY_A_CUT = ("width", "height", "fps", "num_frames", "duration_seconds")

# What is in a finished shard, as plain JSON values: plan_sha256, blake3, bytes, positions (of the planned
# clips that were written), one list for each of PLACES (frame maps as base64), changed (position -> columns)
# and failed.
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """What a worker needs to write one shard; it travels to another process."""

    out: Path
    videos: Path
    shard: PlannedShard
    rows: tuple[dict[str, Any], ...]
    spec: ShardSpec
    parent: int


def problem_of(videos: Path, video_path: str | None, size_bytes: int) -> tuple[str, str] | None:
    """Return (kind, reason) when the file is not what the table says, else None."""
    if not video_path:
        return "missing", "the table names no file"
    inside = PurePosixPath(video_path)
    if inside.is_absolute() or ".." in inside.parts:
        return "path_outside_root", f"{video_path} is outside the video folder"
    try:
        size = (videos / inside).stat().st_size
        with (videos / inside).open("rb"):
            pass
    except FileNotFoundError:
        return "missing", f"{video_path}: no such file"
    except OSError as error:
        return "unreadable", f"{video_path}: cannot be read ({error.strerror})"
    if size != size_bytes:
        return "size_changed", f"{video_path} has {size} bytes; it had {size_bytes} when it was probed"
    if size > tar_write.MAX_MEMBER_BYTES:
        return "too_large", f"{video_path} has {size} bytes; a tar member takes {tar_write.MAX_MEMBER_BYTES}"
    return None


def _chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a file piece by piece. Raises MediaError when they are not `size_bytes`."""
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
    writer: tar_write.TarWriter, row: Mapping[str, Any], task: ShardTask
) -> tuple[list[Any], dict[str, Any]]:
    """Write JSON, video and caption of one clip; return its places and the facts that a cut changed.

    Raises MediaError when the clip's file cannot be read or cut.
    """
    key, size = row["sample_key"], row["_size"]
    problem = problem_of(task.videos, row["video_path"], size)
    if problem:
        raise MediaError(problem[1], kind=problem[0])
    path = task.videos / row["video_path"]
    facts = clip_facts({name: value for name, value in row.items() if name != "_size"}, task.spec.mode)
    changed: dict[str, Any] = {}
    cut = None
    if is_cut(row, task.spec.mode):
        interval = row.get("start_seconds"), row.get("end_seconds")
        if task.spec.mode == "trim":
            cut = transcode.trim_video(path, *interval)
        else:
            cut = transcode.transcode_video(path, *interval, task.spec.encoding())
        facts |= cut.facts
        changed = {name: cut.facts[name] for name in CHANGED_BY_A_CUT if name in cut.facts}
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
    place += [_frame_map(cut.payload if cut else path), task.spec.mode if cut else "copy"]
    return place, changed


def _frame_map(video: Path | bytes) -> str | None:
    """Return the packed frame map as base64, None where the packets do not say when a frame is shown."""
    try:
        found = frame_map_of(video)
    except (
        MediaError
    ):  # a file that FFmpeg cannot open is the filter's affair: its bytes are kept as they are
        return None
    return packed(found.to_bytes()) if found else None


def packed(data: bytes | None) -> str | None:
    """Return bytes as a record keeps them."""
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text: str | None) -> bytes | None:
    """Undo `packed`."""
    return None if text is None else base64.b64decode(text)


def _write_out(file: BinaryIO, first: int, end: int) -> None:
    """Have the disk begin to write these bytes, without waiting for it."""
    if hasattr(os, "posix_fadvise"):
        file.flush()
        os.posix_fadvise(file.fileno(), first, end - first, os.POSIX_FADV_DONTNEED)


def _fill(file: BinaryIO, writer: tar_write.TarWriter, task: ShardTask) -> Record:
    """Write all clips of the shard that can be read; return its record, yet without size and digest."""
    places: list[list[Any]] = []
    written_out = 0
    record: Record = {"plan_sha256": task.shard.digest, "positions": [], "changed": {}, "failed": []}
    for position, row in enumerate(task.rows):
        mark = writer.mark()
        try:
            place, changed = _add_sample(writer, row, task)
        except MediaError as error:
            writer.take_back(mark)
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
    """End this worker soon after its parent: a pool's idle workers outlive a SIGKILL of it by minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)  # what it was writing has no name that a reader takes

    if os.getpid() != parent:
        threading.Thread(target=watch, daemon=True).start()


def write_shard(task: ShardTask) -> Record:
    """Write one shard: beside its name, flushed, recorded, renamed. Raises StorageError."""
    _end_with(task.parent)
    final, build = task.out / task.shard.name, task.out / BUILD
    try:
        with atomic_file.atomic_path(final, folder=build) as partial:
            with partial.open("wb") as file:
                writer = tar_write.TarWriter(file, blake3())
                record = _fill(file, writer, task)
                record["blake3"], record["bytes"] = writer.finish(), writer.position
            if not record["positions"]:  # a shard is never empty
                partial.unlink()
                final.unlink(missing_ok=True)
            write_json(build / f"{task.shard.name}.json", record)
    except OSError as error:
        raise StorageError(
            f"{final}: cannot be written ({error.strerror}); it needs {task.shard.num_bytes:,} bytes. "
            "Make room and run the same command again: finished shards are kept."
        ) from error
    return record


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write `value` as JSON, whole or not at all. Raises OSError."""
    atomic_file.put(path, json.dumps(value, indent=indent) + "\n")
