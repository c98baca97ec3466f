"""Probe cache: facts of checked files, by absolute path, size, time and digest.

The probe does not read a file again when absolute path, size and modification time match the cache, good or
bad: a file in another folder is another file. The SHA-256 of its bytes, if cached, identifies a copied or
touched file. Several runs may share a cache file: one
run at a time adds its entries to the current content, under the lock `.NAME.lock` next to the file.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from vidcurate.curation.probe.examine import VERSION
from vidcurate.curation.probe.findings import Facts
from vidcurate.errors import InputError
from vidcurate.storage import atomic_file, lock

FILE = "known-files.parquet"
_SCHEMA = {
    "video_path": pl.String,
    "size_bytes": pl.Int64,
    "mtime_ns": pl.Int64,
    "sha256": pl.String,
    "version": pl.Int32,
    "facts": pl.String,
}
Key = tuple[
    str, int, int
]  # absolute path with the video folder's links resolved, size in bytes, modification time in ns


@dataclass(frozen=True, slots=True)
class ProbeCache:
    """Facts by key, and by size for files whose digest is known."""

    by_key: Mapping[Key, Facts]
    by_size: Mapping[int, Mapping[str, Facts]] = field(default_factory=dict)


def read_cache(path: Path) -> ProbeCache:
    """Read the cache file, empty when it does not exist.

    Raises InputError for another kind of file. Facts of another probe version are left out.
    """
    if not path.exists():
        return ProbeCache({})
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path}: not a file of known files ({type(error).__name__}); remove it.") from error
    if dict(frame.schema) != {name: dtype() for name, dtype in _SCHEMA.items()}:
        raise InputError(
            f"{path}: not a file of known files; it has the columns {', '.join(frame.columns)}. Give another."
        )
    by_key: dict[Key, Facts] = {}
    by_size: dict[int, dict[str, Facts]] = {}
    for row in frame.filter(pl.col("version") == VERSION).iter_rows(named=True):
        facts = json.loads(row["facts"])
        by_key[row["video_path"], row["size_bytes"], row["mtime_ns"]] = facts
        if row["sha256"]:
            by_size.setdefault(row["size_bytes"], {})[row["sha256"]] = facts
    return ProbeCache(by_key, by_size)


def update_cache(path: Path, found: Iterable[tuple[Key, Facts]]) -> None:
    """Add new facts to the current content of the cache file; other writers wait.

    On a file system without locks the later of two concurrent writers wins. Raises InputError, StorageError.
    """
    with (
        atomic_file.storage_errors(path),
        lock.exclusive(path.with_name(f".{path.name}.lock"), is_removed=True, is_required=False),
    ):
        _merge(path, found)


def _merge(path: Path, found: Iterable[tuple[Key, Facts]]) -> None:
    entries = {**read_cache(path).by_key, **dict(found)}
    rows = [
        (*key, facts.get("sha256"), VERSION, json.dumps(facts, sort_keys=True))
        for key, facts in sorted(entries.items(), key=lambda entry: entry[0])
    ]
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    with atomic_file.atomic_path(path) as partial:
        frame.write_parquet(partial)
