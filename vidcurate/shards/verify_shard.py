"""Verify one shard against the rules, the index and the manifest; see `verify`."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, cast

from blake3 import blake3

from vidcurate.errors import MediaError, ShardError, StorageError, counted
from vidcurate.media.container import opened, reason_of
from vidcurate.media.frame_map import parse
from vidcurate.media.packets import frame_map_of
from vidcurate.shards.tar_read import Member, members
from vidcurate.storage import object_store, regular_file
from vidcurate.storage.checksum import crc32c
from vidcurate.storage.file_window import FileBytes
from vidcurate.storage.object_store import RangeFile, Stamp

Level = Literal["index", "bytes", "decode"]
LEVELS: tuple[Level, ...] = ("index", "bytes", "decode")
_PARTS = ("json", "video", "text")
ROW = [
    "sample_key", "clip_id", "caption", "shard", "video_extension", "num_frames", "frame_map",
    *(f"{part}_{fact}" for part in _PARTS for fact in ("offset", "size", "crc32c")),
]  # fmt: skip
COPY = "Copy this file again, or delete it and run `vidcurate build-shards` again."


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: the file, its member ("" for the whole file), and what is wrong."""

    file: str
    member: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.member + ': ' if self.member else ''}{self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task of one shard: `entry` of the manifest and `rows` of the index, None when these lack the shard.

    `place`: its path, or its URL with the `stamp` of its version (None for a missing file).
    """

    place: str
    level: Level
    stamp: Stamp | None = None
    entry: dict[str, Any] | None
    rows: list[dict[str, Any]] | None

    @property
    def name(self) -> str:
        return self.place.rpartition("/")[2]


@dataclass(slots=True)
class ShardResult:
    """Result of one shard: counts, keys and problems."""

    name: str
    size: int = 0
    members: int = 0
    bytes_read: int = 0
    keys: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, member: str, what: str) -> None:
        self.problems.append(Problem(self.name, member, what))


def _samples(found: ShardResult, every: Sequence[Member]) -> None:
    """Check that the parts of each sample are adjacent and in the same order."""
    parts: dict[str, list[str]] = {}
    last = None
    for member in every:
        if member.key in parts and member.key != last:
            found.add_problem(
                member.name, "lies apart from the rest of its sample; readers would see two half samples"
            )
        parts.setdefault(member.key, []).append(member.extension)
        last = member.key
    for key, extensions in parts.items():
        if len(extensions) != 3 or extensions[0] != "json" or extensions[2] != "txt":
            found.add_problem(
                key, f"its sample has {', '.join(extensions)}; each sample is json, video, txt in this order"
            )
    found.keys = list(parts)


def _names(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (part, member's name) of a row of the index."""
    for part, extension in (("json", "json"), ("video", row["video_extension"]), ("text", "txt")):
        if row[f"{part}_offset"] is not None:
            yield part, f"{row['sample_key']}.{extension}"


def _payload(row: dict[str, Any], part: str, data: bytes, found: ShardResult, name: str) -> None:
    """Compare the text of a part with the index, after its checksum was found right."""
    if part == "text" and data != (row["caption"] or "").encode():
        found.add_problem(name, f"is not the caption that the index has of clip {row['clip_id']!r}")
    if part != "json":
        return
    try:
        facts = json.loads(data)
        said = facts.get("clip_id"), facts.get("caption") or ""
    except (ValueError, AttributeError):
        found.add_problem(name, "is no JSON object")
        return
    for what, value, expected in zip(
        ("clip_id", "caption"), said, (row["clip_id"], row["caption"] or ""), strict=True
    ):
        if value != expected:
            found.add_problem(name, f"has the {what} {value!r}, the index says {expected!r}")


def _decode(row: dict[str, Any], data: bytes, found: ShardResult, name: str) -> None:
    """Decode a video and compare its frames with the frame map and the number in the index."""
    try:
        with opened(data) as (container, stream):
            times = sorted(frame.pts for frame in container.decode(stream) if frame.pts is not None)
        made = frame_map_of(data)
    except (MediaError, OSError, ValueError) as error:
        found.add_problem(name, f"cannot be decoded ({reason_of(error)})")
        return
    known = row["frame_map"]
    if row["num_frames"] is not None and len(times) != row["num_frames"]:
        found.add_problem(name, f"has {counted(len(times), 'frame')}, the index says {row['num_frames']}")
    if known != (made.to_bytes() if made else None):
        found.add_problem(name, "its packets give another frame map than the index has")
    elif known is not None and parse(known).pts.tolist() != times:
        found.add_problem(
            name,
            f"decodes to {counted(len(times), 'frame')} at other times than the "
            f"{len(parse(known))} of its frame map",
        )


def _against_index(data: FileBytes, task: Task, every: Sequence[Member], found: ShardResult) -> None:
    here = {member.name: member for member in every}
    for row in task.rows or ():
        for part, name in _names(row):
            member = here.pop(name, None)
            offset, size, known = (row[f"{part}_{fact}"] for fact in ("offset", "size", "crc32c"))
            if member is None:
                found.add_problem(name, f"is not there; the index has it at byte {offset:,}")
                continue
            if (member.offset, member.size) != (offset, size):
                found.add_problem(
                    name,
                    f"has {member.size:,} bytes at byte {member.offset:,}, "
                    f"the index says {size:,} at {offset:,}",
                )
                continue
            if task.level == "index":
                continue
            payload = data.read(offset, size)
            found.bytes_read += size
            if crc32c(payload) != known:
                found.add_problem(name, f"has CRC-32C {crc32c(payload):08x}, the index says {known:08x}")
                continue
            _payload(row, part, payload, found, name)
            if task.level == "decode" and part == "video":
                _decode(row, payload, found, name)
    for name in here:
        found.add_problem(name, "is not in the index")


@contextmanager
def _bytes_of(task: Task) -> Iterator[FileBytes]:
    """Yield the bytes of a shard. Raises OSError, and for a URL ShardError and StorageError."""
    if not object_store.is_url(task.place):
        with regular_file.opened(task.place) as file:
            yield FileBytes(file, os.fstat(file.fileno()).st_size)
    elif task.stamp is None:
        raise FileNotFoundError(task.place)
    else:
        yield FileBytes(cast(BinaryIO, RangeFile(task.place, task.stamp)), task.stamp.size_bytes)


def check_shard(task: Task) -> ShardResult:
    found = ShardResult(task.name)
    try:
        with _bytes_of(task) as data:
            found.size = data.size
            every = list(members(data, found.add_problem))
            found.members = len(every)
            _samples(found, every)
            if task.rows is not None:
                _against_index(data, task, every, found)
            if task.entry is not None:
                _against_manifest(data, task, found)
    except FileNotFoundError:
        found.add_problem("", f"is not there. {COPY}")
    except OSError as error:
        found.add_problem("", f"cannot be read ({error.strerror})")
    except (ShardError, StorageError) as error:
        found.add_problem("", str(error).removeprefix(f"{task.place}: "))
    return found


def _against_manifest(data: FileBytes, task: Task, found: ShardResult) -> None:
    assert task.entry is not None
    if data.size != task.entry["bytes"]:
        found.add_problem("", f"has {data.size:,} bytes, the manifest says {task.entry['bytes']:,}. {COPY}")
    elif task.level != "index":
        digest = blake3()
        for piece in data.pieces(0, data.size):
            digest.update(piece)
        if digest.hexdigest() != task.entry["blake3"]:
            found.add_problem("", f"has BLAKE3 {digest.hexdigest()[:16]}…, the manifest says "
                       f"{task.entry['blake3'][:16]}…. {COPY}")  # fmt: skip
