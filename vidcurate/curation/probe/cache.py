"""Probe cache: facts of checked files, by absolute path, size, time and digest.

The probe does not read a file again when absolute path, size and modification time match the cache, good or
bad: a file in another folder is another file. The SHA-256 of its bytes, if cached, identifies a copied or
touched file. Several runs may share a cache file: one run at a time adds its entries to the current content,
under the lock `.NAME.lock` next to the file.

Facts are JSON of 0.5 to 1 KB a file, as Python objects 3 KB. So this module holds only the keys in memory,
and reads and writes facts in batches of rows.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vidcurate.curation.clip_table import table, table_checksum
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
KEY = ("video_path", "size_bytes", "mtime_ns")
_BATCH_ROWS = 8192
Key = tuple[
    str, int, int
]  # absolute path with the video folder's links resolved, size in bytes, modification time in ns


@dataclass(frozen=True, slots=True)
class ProbeCache:
    """An opened cache file: `keys` has row (in the file), KEY and sha256 of each entry of this version.

    The file stays open, so that another run may replace it meanwhile. `file` is None for a cache that does
    not exist.
    """

    keys: pl.DataFrame
    file: pq.ParquetFile | None = None

    def rows_of(self, files: pl.DataFrame) -> NDArray[np.int64]:
        """Return the row of each file's entry, -1 where there is none. `files` has the columns KEY."""
        found = files.select(KEY).join(
            self.keys.select(*KEY, "row"), on=KEY, how="left", maintain_order="left"
        )
        return found["row"].fill_null(-1).to_numpy()

    def facts(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, Facts]]:
        """Yield (row, facts) of each of `rows`, which ascend."""
        if self.file is None:
            return
        first = 0
        for group in range(self.file.num_row_groups):
            behind = first + self.file.metadata.row_group(group).num_rows
            if np.searchsorted(rows, first) < np.searchsorted(rows, behind):
                batches = self.file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=["facts"])
                for batch in batches:
                    low, high = np.searchsorted(rows, (first, first + len(batch)))
                    texts = batch.column(0).take(rows[low:high] - first).to_pylist()
                    yield from zip(map(int, rows[low:high]), map(json.loads, texts), strict=True)
                    first += len(batch)
            first = behind


@contextmanager
def opened(path: Path) -> Iterator[ProbeCache]:
    """Yield the cache file, opened, or an empty cache when it does not exist.

    Raises InputError for another kind of file. Facts of another probe version are left out.
    """
    if not path.exists():
        yield ProbeCache(pl.DataFrame(schema={"row": pl.Int64, **_SCHEMA}).select("row", *KEY, "sha256"))
        return
    _require_cache(path)
    with path.open("rb") as file:
        keys = pl.read_parquet(file, columns=[*KEY, "sha256", "version"]).with_row_index("row")
        keys = keys.filter(pl.col("version") == VERSION).select(pl.col("row").cast(pl.Int64), *KEY, "sha256")
        yield ProbeCache(keys, pq.ParquetFile(file))


def _require_cache(path: Path) -> None:
    try:
        if table_checksum.has_own_bytes(path) is False:
            raise InputError(f"{path}: damaged (its checksum is of other bytes); remove it.")
        schema = pl.read_parquet_schema(path)
    except table.UNREADABLE as error:
        raise InputError(f"{path}: not a file of known files ({type(error).__name__}); remove it.") from error
    if dict(schema) != {name: dtype() for name, dtype in _SCHEMA.items()}:
        raise InputError(
            f"{path}: not a file of known files; it has the columns {', '.join(schema)}. Give another."
        )


@contextmanager
def added_to(path: Path) -> Iterator[Callable[[Key, Facts], None]]:
    """Yield a function that adds one file's facts; at the end merge all into the cache file's content.

    Entries wait in a hidden file beside the cache. The merge holds the lock: other writers wait. On a file
    system without locks the later of two concurrent writers wins. A block that raises changes nothing.
    Raises InputError, StorageError.
    """
    with atomic_file.storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        waiting = atomic_file.partial_path(path, suffix=".new")
        try:
            with pq.ParquetWriter(waiting, pl.DataFrame(schema=_SCHEMA).to_arrow().schema) as writer:
                batch: list[tuple[Any, ...]] = []

                def flush() -> None:
                    writer.write_table(pl.DataFrame(batch, schema=_SCHEMA, orient="row").to_arrow())
                    batch.clear()

                def add(key: Key, facts: Facts) -> None:
                    batch.append((*key, facts.get("sha256"), VERSION, json.dumps(facts, sort_keys=True)))
                    if len(batch) == _BATCH_ROWS:
                        flush()

                yield add
                flush()
            with lock.exclusive(path.with_name(f".{path.name}.lock"), is_removed=True, is_required=False):
                _merge(path, waiting)
        finally:
            waiting.unlink(missing_ok=True)


def _merge(path: Path, waiting: Path) -> None:
    """Write the cache file anew: its entries that the waiting ones do not replace, then the waiting ones.

    Batch by batch, keys as 64-bit hashes: of two files with one hash (3 in 10^8 for a million files) one is
    left out, and read again by the next probe.
    """
    with ExitStack() as stack:
        new = stack.enter_context(pq.ParquetFile(waiting))
        if not new.metadata.num_rows:
            return
        hashes, _ = _hashes_and_versions(new)
        is_kept = np.zeros(len(hashes), dtype=bool)
        is_kept[len(hashes) - 1 - np.unique(hashes[::-1], return_index=True)[1]] = True  # the last of a key
        parts = [(new, is_kept)]
        if path.exists():
            _require_cache(path)
            old = stack.enter_context(pq.ParquetFile(path))
            older, versions = _hashes_and_versions(old)
            parts.insert(0, (old, ~np.isin(older, hashes) & (versions == VERSION)))
        with atomic_file.atomic_path(path) as partial:
            with pq.ParquetWriter(partial, new.schema_arrow, compression="zstd") as writer:
                writer.add_key_value_metadata({table_checksum.CHECKSUM: table_checksum.UNSEALED})
                for file, is_kept in parts:
                    first = 0
                    for batch in file.iter_batches(_BATCH_ROWS):
                        writer.write_batch(batch.filter(pa.array(is_kept[first : first + len(batch)])))
                        first += len(batch)
            table_checksum.seal(partial)


def _hashes_and_versions(file: pq.ParquetFile) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return a hash of each entry's key, and its version."""
    hashes, versions = [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
    for batch in file.iter_batches(_BATCH_ROWS, columns=[*KEY, "version"]):
        entries = pl.DataFrame(batch)
        hashes.append(entries.select(KEY).hash_rows().to_numpy())
        versions.append(entries["version"].to_numpy())
    return np.concatenate(hashes), np.concatenate(versions)
