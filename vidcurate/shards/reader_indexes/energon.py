"""Energon index files: SHARD.tar.idx, and the folder .nv-meta of the set.

The layout is that of `energon prepare` 7.4.1 of Megatron-Energon, which writes the same bytes to
SHARD.tar.idx. `index.uuid` is a hash of the shards' digests, so the same shards give the same uuid.
"""

import json
import shutil
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vidcurate.errors import StorageError
from vidcurate.shards.reader_indexes.samples import Sample, samples_of
from vidcurate.storage import atomic_file

FOLDER = ".nv-meta"
VERSION = "7.4.1"
_SPLITS = {"train": "train", "validation": "val"}
_DATABASE = "index.sqlite"
_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL,
    sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL,
    byte_offset INTEGER,
    byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER,
    sample_index INTEGER,
    part_name TEXT,
    content_byte_offset INTEGER,
    content_byte_size INTEGER
);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def offsets(samples: Sequence[Sample]) -> bytes:
    """Return SHARD.tar.idx: N + 1 little-endian uint64, where each sample begins and where the last ends."""
    return np.array([*(sample.begin for sample in samples), samples[-1].end], dtype="<u8").tobytes()


def _yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, sort_keys=False))


def _files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the small files of .nv-meta, by name."""
    shards = manifest["shards"]
    splits: dict[str, list[str]] = {name: [] for name in _SPLITS.values()}
    for entry in shards:
        splits.setdefault(_SPLITS.get(entry["fold"], entry["fold"]), []).append(entry["name"])
    counts = {entry["name"]: entry["clips"] for entry in shards}
    digests = "\n".join(f"{entry['name']} {entry['blake3']}" for entry in shards)
    return {
        ".info.json": json.dumps({"energon_version": VERSION, "shard_counts": counts}, indent=2),
        "split.yaml": _yaml({"split_parts": splits, "exclude": []}),
        "dataset.yaml": _yaml({"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}),
        "index.uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, digests)),
    }


def _rows(samples: Iterator[tuple[str, list[Sample]]]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield the rows of the tables samples and sample_parts, shard by shard."""
    for tar_file, (_, found) in enumerate(samples):
        yield (
            [(tar_file, s.key, number, s.begin, s.end - s.begin) for number, s in enumerate(found)],
            [
                (tar_file, number, part.extension, part.offset, part.size)
                for number, sample in enumerate(found)
                for part in sample.parts
            ],
        )


def _write_database(path: Path, samples: Iterator[tuple[str, list[Sample]]]) -> None:
    """Write index.sqlite: the same rows and the same SQLite give the same bytes."""
    database = sqlite3.connect(path)
    try:
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _TABLES)
        for sample_rows, part_rows in _rows(samples):
            database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", sample_rows)
            database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", part_rows)
        database.commit()
        database.executescript(_INDEXES)
    except sqlite3.Error as error:
        raise StorageError(f"{path}: cannot be written ({error}).") from error
    finally:
        database.close()


def put_folder(folder: Path, manifest: Mapping[str, Any]) -> bool:
    """Write .nv-meta unless it is up to date; return whether it was written. Raises OSError, StorageError."""
    final = folder / FOLDER
    if final.is_dir() and not list(problems(folder, manifest)):
        return False
    with atomic_file.atomic_folder(final) as partial:
        for name, text in _files(manifest).items():
            (partial / name).write_bytes(text.encode())
        _write_database(partial / _DATABASE, samples_of(folder, manifest))
        if final.exists():
            shutil.rmtree(final)
    return True


def problems(folder: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (file, what is wrong) of .nv-meta."""
    for name, text in _files(manifest).items():
        path = folder / FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
            yield f"{FOLDER}/{name}", "is not what the manifest gives"
    path = folder / FOLDER / _DATABASE
    if not path.is_file():
        yield f"{FOLDER}/{_DATABASE}", "is not there"
        return
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        found = [
            database.execute(f"SELECT * FROM {table} ORDER BY tar_file_id, sample_index, {offset}")
            for table, offset in (("samples", "byte_offset"), ("sample_parts", "content_byte_offset"))
        ]
        for both in _rows(samples_of(folder, manifest)):
            for rows, cursor in zip(both, found, strict=True):
                if cursor.fetchmany(len(rows)) != rows:
                    yield (
                        f"{FOLDER}/{_DATABASE}",
                        f"has other samples than the index for shard {rows[0][0]}",
                    )
                    return
        if any(cursor.fetchone() for cursor in found):
            yield f"{FOLDER}/{_DATABASE}", "has samples that the index does not have"
    except sqlite3.Error as error:
        yield f"{FOLDER}/{_DATABASE}", f"cannot be read ({error})"
    finally:
        database.close()
