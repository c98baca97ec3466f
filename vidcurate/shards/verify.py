"""Verify shards against manifest, index and every rule of docs/shards.md.

Three levels. `index` reads the headers of the tars and no payload; `bytes` reads everything and compares the
CRC-32C of every part and the BLAKE3 of every shard; `decode` also decodes every video and compares it with
its frame map. `verify` writes nothing and trusts nothing: tars, index and manifest may come from elsewhere.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from vidcurate.errors import InputError, MissingError, ShardError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.executor.map_shards import in_processes
from vidcurate.shards import index, index_file
from vidcurate.shards.manifest import MANIFEST_NAME, read_manifest
from vidcurate.shards.reader_indexes import export as reader_indexes_export
from vidcurate.shards.verify_shard import COPY, ROW, Level, Problem, ShardResult, Task, check_shard
from vidcurate.shards.write_shard import BUILD
from vidcurate.storage import object_store
from vidcurate.storage.checksum import blake3_file

_REQUESTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of `verify`: counts and problems; the set is valid when `problems` is empty."""

    folder: str
    level: str
    shards: int
    clips: int
    members: int
    bytes_read: int
    integrity_levels: dict[str, int]
    """clips by the level of integrity that probe had checked; "none" for those never probed"""
    problems: tuple[Problem, ...]


def _open_index(folder: Path, manifest: dict[str, Any] | None, problems: list[Problem]) -> index.Index | None:
    """Return the index if readable; append its problems."""

    def add_problem(what: str) -> None:
        problems.append(Problem(index_file.INDEX_NAME, "", what))

    path = folder / index_file.INDEX_NAME
    if not path.exists():
        add_problem(f"is not there. {COPY}")
        return None
    entry = manifest["index"] if manifest else None
    try:
        is_another = entry and (path.stat().st_size, blake3_file(path)) != (entry["bytes"], entry["blake3"])
    except OSError as error:
        add_problem(f"cannot be read ({error.strerror})")
        return None
    if is_another:
        add_problem("is not the one that the manifest names: another size or BLAKE3")
    try:
        opened_index = index.read_index(folder, check_files=False)
        index.check_index(opened_index)
    except (MissingError, ShardError) as error:
        add_problem(str(error).removeprefix(f"{path}: "))
        return None
    without_text = pc.is_null(opened_index.words("text_offset"))
    for name in ("text_size", "text_crc32c"):
        if not pc.is_null(opened_index.words(name)).equals(without_text):
            add_problem(f"has a text_offset without a {name}, or the other way round")
            return None
    for name in ("clip_id", "sample_key"):
        counts = pc.value_counts(opened_index.words(name))
        for value in counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist():
            rows = pc.indices_nonzero(pc.equal(opened_index.words(name), value)).to_pylist()
            where = " and ".join(opened_index.word("shard", row) for row in rows)
            add_problem(f"the {name} {value!r} occurs {len(rows)} times, in {where}; it must be unique")
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
    for what, value in _totals(manifest, known).items():
        compare("", what, manifest["totals"].get(what), value)
    if "extensions" in manifest:
        extensions = Counter(known.words("video_extension").to_pylist())
        compare("", "extensions", manifest["extensions"], dict(sorted(extensions.items())))
    if "integrity_levels" in manifest:
        clips = sum(manifest["integrity_levels"].values())
        compare("", "the clips of all integrity_levels", clips, len(known))
    facts = _facts_of_shards(known)
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
            for what, value in facts[name].items():
                compare(name, what, listed[name][what], value)


def _totals(manifest: dict[str, Any], known: index.Index) -> dict[str, int]:
    """Return the totals that follow from the index and the manifest's own lists."""
    kept, rejected = len(known) + len(manifest["failed"]), manifest["totals"].get("rows_rejected")
    rejected = rejected if type(rejected) is int and rejected >= 0 else 0
    return {
        "rows_rejected": rejected,
        "rows_written": len(known),
        "rows_failed": len(manifest["failed"]),
        "rows_kept": kept,
        "rows_in": kept + rejected,
        "shards": len(manifest["shards"]),
        "bytes": sum(entry["bytes"] for entry in manifest["shards"]),
    }


def _runs(known: index.Index) -> Iterator[tuple[str, int, int]]:
    """Yield (shard, its first row, the row after its last) of the index."""
    starts = np.searchsorted(known.shard_number, np.arange(len(known.shards) + 1)).tolist()
    yield from zip(known.shards, starts, starts[1:], strict=False)


def _facts_of_shards(known: index.Index) -> dict[str, dict[str, Any]]:
    """Return shard → {clips, fold, level} by the index; several values of one fact are a list."""
    found: dict[str, dict[str, Any]] = {}
    for name, first, end in _runs(known):
        folds = known.words("fold").slice(first, end - first).unique().to_pylist()
        levels = np.unique(known.level[first:end]).tolist()
        found[name] = {"clips": end - first} | {
            what: values[0] if len(values) == 1 else values
            for what, values in (("fold", folds), ("level", levels))
        }
    return found


README = "README.md"  # of the hub, written by `vidcurate card`


def _strays(folder: Path, named: set[str]) -> Iterator[Problem]:
    for path in sorted(folder.iterdir()):
        if path.name == BUILD:
            yield Problem(BUILD, "", "the set is unfinished; run `vidcurate build-shards` again")
        elif path.name not in {*named, README} and not reader_indexes_export.is_ours(path.name, named):
            yield Problem(path.name, "", "is a file that the manifest does not name")


def _rows_of(known: index.Index, folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield (shard, rows of the index), shard by shard to save memory."""
    table = index_file.read_columns(folder, ROW)
    for name, first, end in _runs(known):
        yield name, table.slice(first, end - first).to_pylist()


def _tasks(
    shards: dict[str, Task], folder: Path, entries: dict[str, Any], known: index.Index | None
) -> Iterator[Task]:
    """Yield the task of every shard, with its entries in manifest and index."""
    rest = set(shards)
    for name, rows in _rows_of(known, folder) if known else ():
        rest.discard(name)
        yield replace(shards[name], entry=entries.get(name), rows=rows)
    for name in sorted(rest):
        yield replace(shards[name], entry=entries.get(name), rows=[] if known else None)


def verify(
    place: Path | str, level: Level = "bytes", *, num_workers: int = 1, progress: Progress = no_progress
) -> Verdict:
    """Check the shards in a folder or at a URL and return all problems.

    At a URL, `verify` looks neither for unknown files nor for files of other readers. Raises InputError for a
    missing folder or a folder without any file of a set, StorageError when a URL cannot be read; every other
    fault, in any file, is a problem in the result.
    """
    if isinstance(place, Path):
        if not place.is_dir():
            raise InputError(f"{place}: no such folder of shards.")
        return _verify(place, place, level, num_workers, progress)
    with tempfile.TemporaryDirectory(prefix="vidcurate-verify-") as folder:
        for name in (MANIFEST_NAME, index_file.INDEX_NAME):
            if stamp := object_store.stamp_if_there(f"{place}/{name}"):
                with (Path(folder) / name).open("wb") as file:
                    object_store.download(f"{place}/{name}", stamp, file)
        return _verify(place, Path(folder), level, num_workers, progress)


def _shards(place: Path | str, names: set[str], level: Level) -> dict[str, Task]:
    """Return the tasks of the shards in `names` or in the folder, without manifest and index entries."""
    if isinstance(place, Path):
        names = names | {path.name for path in place.glob("*.tar")}
        return {n: Task(place=str(place / n), level=level, entry=None, rows=None) for n in names}
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        stamps = pool.map(lambda name: object_store.stamp_if_there(f"{place}/{name}"), sorted(names))
        return {
            n: Task(place=f"{place}/{n}", level=level, entry=None, rows=None, stamp=stamp)
            for n, stamp in zip(sorted(names), stamps, strict=True)
        }


def _size(task: Task) -> int:
    if object_store.is_url(task.place):
        return task.stamp.size_bytes if task.stamp else 0
    return os.stat(task.place).st_size if os.path.exists(task.place) else 0


def _verify(place: Path | str, folder: Path, level: Level, num_workers: int, progress: Progress) -> Verdict:
    """Check the shards at `place`, whose manifest and index lie in `folder`."""
    problems: list[Problem] = []
    manifest = None
    try:
        manifest = read_manifest(folder)
        if manifest is None:
            problems.append(Problem(MANIFEST_NAME, "", f"is not there. {COPY}"))
    except ShardError as error:
        problems.append(Problem(MANIFEST_NAME, "", str(error).removeprefix(f"{folder / MANIFEST_NAME}: ")))
    tars = [path.name for path in folder.glob("*.tar")]
    is_here = isinstance(place, Path)
    if not tars and manifest is None and not (folder / index_file.INDEX_NAME).exists():
        raise InputError(
            f"{place}: holds no shards: no *.tar, no {MANIFEST_NAME}, no {index_file.INDEX_NAME}."
        )
    known = _open_index(folder, manifest, problems)
    entries = {entry["name"]: entry for entry in manifest["shards"]} if manifest else {}
    if manifest and known:
        _manifest_against_index(manifest, known, problems)
    named = {MANIFEST_NAME, index_file.INDEX_NAME, *(entries if manifest else tars)}
    if is_here:
        problems += _strays(folder, named)
    shards = _shards(place, {*entries, *(known.shards if known else ())}, level)
    total_mib = -(-sum(map(_size, shards.values())) >> 20)  # rounded up
    tasks = _tasks(shards, folder, entries, known)
    results = (
        map(check_shard, tasks)
        if num_workers == 1 or len(shards) < 2
        else in_processes(check_shard, tasks, min(num_workers, len(shards)), doing="read shards")
    )
    done = num_members = bytes_read = 0
    by_shard: list[ShardResult] = []
    where: dict[str, str] = {}
    progress(0, total_mib, "MiB")
    for found in results:
        done, num_members, bytes_read = (
            done + found.size,
            num_members + found.members,
            bytes_read + found.bytes_read,
        )
        by_shard.append(found)
        progress(-(-done >> 20), total_mib, "MiB")
    for found in sorted(by_shard, key=lambda found: found.name):
        problems += found.problems
        for key in found.keys:
            other = where.setdefault(key, found.name)
            if other != found.name:
                problems.append(
                    Problem(found.name, key, f"is also in {other}; keys must be unique over all shards")
                )
    if is_here and manifest is not None and known is not None and known.shards == tuple(sorted(entries)):
        problems += (
            Problem(name, "", what) for name, what in reader_indexes_export.problems(folder, manifest)
        )
    return Verdict(
        folder=str(place),
        level=level,
        shards=len(by_shard),
        clips=len(where),
        members=num_members,
        bytes_read=bytes_read,
        integrity_levels=dict((manifest or {}).get("integrity_levels", {})),
        problems=tuple(problems),
    )
