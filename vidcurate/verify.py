"""Is a set of shards what its manifest and its index say? Every rule of docs/shards.md, one line per problem.

Three levels. `index` reads the headers of the tars and no payload; `bytes` reads everything and compares the
CRC-32C of every part and the BLAKE3 of every shard; `decode` also decodes every video and holds it against
its frame map. Nothing is written and nothing is trusted: tars, index and manifest may come from elsewhere.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import pyarrow.compute as pc
from blake3 import blake3

from vidcurate import index, interop, stores
from vidcurate.crc import crc32c
from vidcurate.engine import Progress, no_progress
from vidcurate.errors import InputError, MediaError, ShardError, StorageError
from vidcurate.filebytes import FileBytes
from vidcurate.frame_map import parse
from vidcurate.shard_manifest import MANIFEST_NAME, read_manifest
from vidcurate.shard_pool import in_processes
from vidcurate.shard_write import BUILD
from vidcurate.stores import RangeFile, Stamp
from vidcurate.tar_read import Member, members
from vidcurate.video import frame_map_of, opened, reason_of

Level = Literal["index", "bytes", "decode"]
LEVELS: tuple[Level, ...] = ("index", "bytes", "decode")
_PARTS = ("json", "video", "text")
_REQUESTS_AT_ONCE = 16
_ROW = [
    "sample_key", "clip_id", "caption", "shard", "video_extension", "num_frames", "frame_map",
    *(f"{part}_{fact}" for part in _PARTS for fact in ("offset", "size", "crc32c")),
]  # fmt: skip
_COPY = "Copy it anew, or delete it and run `vidcurate build-shards` again."


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: in which file, at which member of it ("" for the file), and what is wrong."""

    file: str
    member: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.member + ': ' if self.member else ''}{self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was looked at and what is wrong with it; sound when `problems` is empty."""

    folder: str
    level: str
    shards: int
    clips: int
    members: int
    bytes_read: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One shard: `entry` of the manifest and `rows` of the index, None where these do not name it.

    `place`: its path, or its URL with the `stamp` of its version, None where it is not there.
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
class _Found:
    """What a shard holds."""

    name: str
    size: int = 0
    members: int = 0
    bytes_read: int = 0
    keys: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def tell(self, member: str, what: str) -> None:
        self.problems.append(Problem(self.name, member, what))


# ── one shard ───────────────────────────────────────────────────────────────────────────────────────────


def _samples(found: _Found, every: Sequence[Member]) -> None:
    """Check that each sample lies in one piece, with the same parts in the same order."""
    parts: dict[str, list[str]] = {}
    last = None
    for member in every:
        if member.key in parts and member.key != last:
            found.tell(
                member.name, "lies apart from the rest of its sample; readers would see two half samples"
            )
        parts.setdefault(member.key, []).append(member.extension)
        last = member.key
    for key, extensions in parts.items():
        if len(extensions) != 3 or extensions[0] != "json" or extensions[2] != "txt":
            found.tell(
                key, f"its sample has {', '.join(extensions)}; each sample is json, video, txt in this order"
            )
    found.keys = list(parts)


def _names(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (part, member's name) of a row of the index."""
    for part, extension in (("json", "json"), ("video", row["video_extension"]), ("text", "txt")):
        if row[f"{part}_offset"] is not None:
            yield part, f"{row['sample_key']}.{extension}"


def _payload(row: dict[str, Any], part: str, data: bytes, found: _Found, name: str) -> None:
    """Check that the text of a part is what the index says; its bytes are already known to be sound."""
    if part == "text" and data != (row["caption"] or "").encode():
        found.tell(name, f"is not the caption that the index has of clip {row['clip_id']!r}")
    if part != "json":
        return
    try:
        facts = json.loads(data)
        said = facts.get("clip_id"), facts.get("caption") or ""
    except (ValueError, AttributeError):
        found.tell(name, "is no JSON object")
        return
    for what, value, expected in zip(
        ("clip_id", "caption"), said, (row["clip_id"], row["caption"] or ""), strict=True
    ):
        if value != expected:
            found.tell(name, f"has the {what} {value!r}, the index says {expected!r}")


def _decode(row: dict[str, Any], data: bytes, found: _Found, name: str) -> None:
    """Decode a video and hold its frames against the frame map and the number in the index."""
    try:
        with opened(data) as (container, stream):
            times = sorted(frame.pts for frame in container.decode(stream) if frame.pts is not None)
        made = frame_map_of(data)
    except (MediaError, OSError, ValueError) as error:
        found.tell(name, f"cannot be decoded ({reason_of(error)})")
        return
    known = row["frame_map"]
    if row["num_frames"] is not None and len(times) != row["num_frames"]:
        found.tell(name, f"has {len(times)} frames, the index says {row['num_frames']}")
    if known != (made.to_bytes() if made else None):
        found.tell(name, "its packets give another frame map than the index has")
    elif known is not None and parse(known).pts.tolist() != times:
        found.tell(
            name,
            f"decodes to {len(times)} frames at other times than the {len(parse(known))} of its frame map",
        )


def _against_index(data: FileBytes, task: _Task, every: Sequence[Member], found: _Found) -> None:
    here = {member.name: member for member in every}
    for row in task.rows or ():
        for part, name in _names(row):
            member = here.pop(name, None)
            offset, size, known = (row[f"{part}_{fact}"] for fact in ("offset", "size", "crc32c"))
            if member is None:
                found.tell(name, f"is not there; the index has it at byte {offset:,}")
                continue
            if (member.offset, member.size) != (offset, size):
                found.tell(
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
                found.tell(name, f"has CRC-32C {crc32c(payload):08x}, the index says {known:08x}")
                continue
            _payload(row, part, payload, found, name)
            if task.level == "decode" and part == "video":
                _decode(row, payload, found, name)
    for name in here:
        found.tell(name, "is not in the index")


@contextmanager
def _bytes_of(task: _Task) -> Iterator[FileBytes]:
    """Yield the bytes of a shard. Raises OSError, and for a URL ShardError and StorageError."""
    if not stores.is_url(task.place):
        with open(task.place, "rb") as file:
            yield FileBytes(file, os.fstat(file.fileno()).st_size)
    elif task.stamp is None:
        raise FileNotFoundError(task.place)
    else:
        yield FileBytes(cast(BinaryIO, RangeFile(task.place, task.stamp)), task.stamp.size_bytes)


def _check_shard(task: _Task) -> _Found:
    found = _Found(task.name)
    try:
        with _bytes_of(task) as data:
            found.size = data.size
            every = list(members(data, found.tell))
            found.members = len(every)
            _samples(found, every)
            if task.rows is not None:
                _against_index(data, task, every, found)
            if task.entry is not None:
                _against_manifest(data, task, found)
    except FileNotFoundError:
        found.tell("", f"is not there. {_COPY}")
    except OSError as error:
        found.tell("", f"cannot be read ({error.strerror})")
    except (ShardError, StorageError) as error:
        found.tell("", str(error).removeprefix(f"{task.place}: "))
    return found


def _against_manifest(data: FileBytes, task: _Task, found: _Found) -> None:
    assert task.entry is not None
    if data.size != task.entry["bytes"]:
        found.tell("", f"has {data.size:,} bytes, the manifest says {task.entry['bytes']:,}. {_COPY}")
    elif task.level != "index":
        digest = blake3()
        for piece in data.pieces(0, data.size):
            digest.update(piece)
        if digest.hexdigest() != task.entry["blake3"]:
            found.tell("", f"has BLAKE3 {digest.hexdigest()[:16]}…, the manifest says "
                       f"{task.entry['blake3'][:16]}…. {_COPY}")  # fmt: skip


# ── the set ─────────────────────────────────────────────────────────────────────────────────────────────


def _open_index(folder: Path, manifest: dict[str, Any] | None, problems: list[Problem]) -> index.Index | None:
    """Return the index when it can be read; say what is wrong with it."""

    def tell(what: str) -> None:
        problems.append(Problem(index.INDEX_NAME, "", what))

    path = folder / index.INDEX_NAME
    if not path.exists():
        tell(f"is not there. {_COPY}")
        return None
    entry = manifest["index"] if manifest else None
    if entry and (path.stat().st_size, blake3(path.read_bytes()).hexdigest()) != (
        entry["bytes"],
        entry["blake3"],
    ):
        tell("is not the one that the manifest names: another size or BLAKE3")
    try:
        opened_index = index.read_index(folder, check_files=False)
        index.check_index(opened_index)
    except ShardError as error:
        tell(str(error).removeprefix(f"{path}: "))
        return None
    for name in ("clip_id", "sample_key"):
        counts = pc.value_counts(opened_index.words(name))
        for value in counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist():
            rows = pc.indices_nonzero(pc.equal(opened_index.words(name), value)).to_pylist()
            where = " and ".join(opened_index.word("shard", row) for row in rows)
            tell(f"the {name} {value!r} occurs {len(rows)} times, in {where}; it must be unique")
    return opened_index


def _manifest_against_index(manifest: dict[str, Any], known: index.Index, problems: list[Problem]) -> None:
    prints = index.shard_fingerprints(known)

    def compare(member: str, what: str, value: object, expected: object) -> None:
        if value != expected:
            problems.append(
                Problem(MANIFEST_NAME, member, f"says {value!r} for {what}, the index gives {expected!r}")
            )

    for what in ("structure_fingerprint", "content_fingerprint"):
        compare("", what, manifest[what], getattr(known, what))
    compare("", "rows_written", manifest["totals"]["rows_written"], len(known))
    listed = {entry["name"]: entry for entry in manifest["shards"]}
    for name in sorted(prints.keys() | listed.keys()):
        if name not in listed:
            problems.append(
                Problem(MANIFEST_NAME, name, "the index has clips in it, the manifest does not name it")
            )
        elif name not in prints:
            problems.append(
                Problem(MANIFEST_NAME, name, "the manifest names it, the index has no clip in it")
            )
        else:
            said = listed[name]["structure_fingerprint"], listed[name]["content_fingerprint"]
            compare(name, "its fingerprints", said, prints[name])


def _strays(folder: Path, named: set[str]) -> Iterator[Problem]:
    for path in sorted(folder.iterdir()):
        if path.name == BUILD:
            yield Problem(BUILD, "", "the set is unfinished; run `vidcurate build-shards` again")
        elif path.name not in named and not interop.is_ours(path.name, named):
            yield Problem(path.name, "", "is a file that the manifest does not name")


def _rows_of(known: index.Index, folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield (shard, rows of the index), shard by shard: all at once would take memory."""
    table = index.read_columns(folder, _ROW)
    starts = np.searchsorted(known.shard_number, np.arange(len(known.shards) + 1)).tolist()
    for name, first, end in zip(known.shards, starts, starts[1:], strict=False):
        yield name, table.slice(first, end - first).to_pylist()


def _tasks(
    shards: dict[str, _Task], folder: Path, entries: dict[str, Any], known: index.Index | None
) -> Iterator[_Task]:
    """Yield the task of every shard, with what manifest and index say of it."""
    rest = set(shards)
    for name, rows in _rows_of(known, folder) if known else ():
        rest.discard(name)
        yield replace(shards[name], entry=entries.get(name), rows=rows)
    for name in sorted(rest):
        yield replace(shards[name], entry=entries.get(name), rows=[] if known else None)


def verify(
    place: Path | str, level: Level = "bytes", *, num_workers: int = 1, progress: Progress = no_progress
) -> Verdict:
    """Check the shards in a folder or at a URL and return everything that is wrong with them.

    At a URL files that belong to nothing, and those of other readers, are not looked for. Raises InputError
    when there is no such folder or nothing of a set in it, StorageError when a URL cannot be read; whatever
    else is wrong, in any file, is a problem in the verdict.
    """
    if isinstance(place, Path):
        if not place.is_dir():
            raise InputError(f"{place}: no such folder of shards.")
        return _verify(place, place, level, num_workers, progress)
    with tempfile.TemporaryDirectory(prefix="vidcurate-verify-") as folder:
        for name in (MANIFEST_NAME, index.INDEX_NAME):
            if stamp := stores.stamp_if_there(f"{place}/{name}"):
                with (Path(folder) / name).open("wb") as file:
                    stores.download(f"{place}/{name}", stamp, file)
        return _verify(place, Path(folder), level, num_workers, progress)


def _shards(place: Path | str, names: set[str], level: Level) -> dict[str, _Task]:
    """Return the shards that are named or lie in the folder, and not yet what is said of them."""
    if isinstance(place, Path):
        names = names | {path.name for path in place.glob("*.tar")}
        return {n: _Task(place=str(place / n), level=level, entry=None, rows=None) for n in names}
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        stamps = pool.map(lambda name: stores.stamp_if_there(f"{place}/{name}"), sorted(names))
        return {
            n: _Task(place=f"{place}/{n}", level=level, entry=None, rows=None, stamp=stamp)
            for n, stamp in zip(sorted(names), stamps, strict=True)
        }


def _size(task: _Task) -> int:
    if stores.is_url(task.place):
        return task.stamp.size_bytes if task.stamp else 0
    return os.stat(task.place).st_size if os.path.exists(task.place) else 0


def _verify(place: Path | str, folder: Path, level: Level, num_workers: int, progress: Progress) -> Verdict:
    """Check the shards at `place`, whose manifest and index lie in `folder`."""
    problems: list[Problem] = []
    manifest = None
    try:
        manifest = read_manifest(folder)
        if manifest is None:
            problems.append(Problem(MANIFEST_NAME, "", f"is not there. {_COPY}"))
    except ShardError as error:
        problems.append(Problem(MANIFEST_NAME, "", str(error).removeprefix(f"{folder / MANIFEST_NAME}: ")))
    tars = [path.name for path in folder.glob("*.tar")]
    is_here = isinstance(place, Path)
    if not tars and manifest is None and not (folder / index.INDEX_NAME).exists():
        raise InputError(f"{place}: holds no shards: no *.tar, no {MANIFEST_NAME}, no {index.INDEX_NAME}.")
    known = _open_index(folder, manifest, problems)
    entries = {entry["name"]: entry for entry in manifest["shards"]} if manifest else {}
    if manifest and known:
        _manifest_against_index(manifest, known, problems)
    named = {MANIFEST_NAME, index.INDEX_NAME, *(entries if manifest else tars)}
    if is_here:
        problems += _strays(folder, named)
    shards = _shards(place, {*entries, *(known.shards if known else ())}, level)
    total = sum(map(_size, shards.values()))
    tasks = _tasks(shards, folder, entries, known)
    results = (
        map(_check_shard, tasks)
        if num_workers == 1 or len(shards) < 2
        else in_processes(_check_shard, tasks, min(num_workers, len(shards)), doing="read shards")
    )
    done = num_members = bytes_read = 0
    by_shard: list[_Found] = []
    where: dict[str, str] = {}
    progress(0, total >> 20, "MiB")
    for found in results:
        done, num_members, bytes_read = (
            done + found.size,
            num_members + found.members,
            bytes_read + found.bytes_read,
        )
        by_shard.append(found)
        progress(done >> 20, total >> 20, "MiB")
    for found in sorted(by_shard, key=lambda found: found.name):
        problems += found.problems
        for key in found.keys:
            other = where.setdefault(key, found.name)
            if other != found.name:
                problems.append(
                    Problem(found.name, key, f"is also in {other}; keys must be unique over all shards")
                )
    if is_here and manifest is not None and known is not None and known.shards == tuple(sorted(entries)):
        problems += (Problem(name, "", what) for name, what in interop.problems(folder, manifest))
    return Verdict(
        folder=str(place),
        level=level,
        shards=len(by_shard),
        clips=len(where),
        members=num_members,
        bytes_read=bytes_read,
        problems=tuple(problems),
    )
