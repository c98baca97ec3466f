"""Index file index.parquet: its columns; write the file, read some columns.

Every row has two hashes of 16 bytes: of its structure and of its content (see `index`).

A light module: decode workers and GPU machines import it (no polars, no av, no torch).
"""

import hashlib
import itertools
import json
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vidcurate.errors import MissingError, ShardError
from vidcurate.storage import atomic_file, regular_file
from vidcurate.storage.checksum import sha256_file

INDEX_NAME = "index.parquet"
FORMAT = "vidcurate-index-2"
_FORMAT_KEY = b"vidcurate"
_HASH_BYTES = 16
_ROWS_PER_GROUP = 65_536
_MOST_THREADS = 4

_WORD = pa.dictionary(pa.int32(), pa.string())  # few different values
# Name, Arrow type and meaning of every column; docs/shards.md shows this table.
COLUMNS: dict[str, tuple[Any, str]] = {
    "sample_key": (pa.string(), "key of the sample in the tar: clip_id made safe"),
    "clip_id": (pa.string(), "the clip's name, unique over all shards"),
    "source_id": (pa.string(), "the video that the clip was cut from"),
    "source_dataset": (_WORD, "the data set that the clip comes from"),
    "fold": (_WORD, "train or validation"),
    "level": (pa.int32(), "difficulty level, 1 is the easiest; 0 when no split was run"),
    "caption": (pa.large_string(), "the text that describes the clip"),
    "shard": (_WORD, "file name of the tar"),
    "json_offset": (pa.int64(), "first byte of the JSON inside the tar"),
    "json_size": (pa.int64(), "bytes of the JSON"),
    "json_crc32c": (pa.uint32(), "CRC-32C of the JSON"),
    "video_offset": (pa.int64(), "first byte of the video inside the tar"),
    "video_size": (pa.int64(), "bytes of the video"),
    "video_extension": (_WORD, "extension of the video member, such as mp4"),
    "video_crc32c": (pa.uint32(), "CRC-32C of the video"),
    "text_offset": (pa.int64(), "first byte of the caption's own member; null when there is none"),
    "text_size": (pa.int64(), "bytes of that caption"),
    "text_crc32c": (pa.uint32(), "CRC-32C of that caption"),
    "rendition": (_WORD, "copy (the bytes of the file), remux, trim, transcode, proxy; null: not known"),
    "width": (pa.int32(), "px, as displayed; null when not known"),
    "height": (pa.int32(), "px, as displayed; null when not known"),
    "fps": (pa.float64(), "frames/s; null when not known"),
    "num_frames": (pa.int64(), "frames of the video in the shard; null when not known"),
    "duration_seconds": (pa.float64(), "s; null when not known"),
    "noun_count": (pa.int32(), "NOUN and PROPN tokens of the caption; null when not scored"),
    "frame_map": (pa.large_binary(), "time and key-frame flag of every frame, packed; null when not known"),
    "structure_hash": (pa.binary(_HASH_BYTES), "BLAKE2b of id, fold, level, shape, frames and frame rate"),
    "content_hash": (pa.binary(_HASH_BYTES), "BLAKE2b of id, video CRC-32C, video size and caption"),
}
# Columns that follow these in an index whose clips have several captions; own columns of the metadata come
# last. An index without them has the bytes that it always had.
OF_CAPTIONS: dict[str, tuple[Any, str]] = {
    "captions": (
        pa.list_(pa.struct([("name", pa.string()), ("text", pa.large_string())])),
        "all captions of a clip that has several: name and text; null for one caption",
    ),
    "caption_name": (pa.string(), "name in captions of the one that is caption; null for one caption"),
}
SCHEMA = pa.schema([(name, dtype) for name, (dtype, _) in COLUMNS.items()])
# Columns that each hash of a row covers.
HASHED = {
    "structure_hash": ("clip_id", "fold", "level", "width", "height", "num_frames", "fps"),
    "content_hash": ("clip_id", "video_crc32c", "video_size", "caption"),
}
_OWN_KEY = b"own_columns"  # JSON: own column → its name in the metadata
# Columns that every clip has a value of; in the others null stands for what is not known.
_NEVER_NULL = {"sample_key", "clip_id", "fold", "level", "shard", "json_offset", "json_size"} | {
    "json_crc32c", "video_offset", "video_size", "video_extension", "video_crc32c"
}  # fmt: skip
_MAY_BE_LEFT_OUT = ("text_offset", "text_size", "text_crc32c", "frame_map", "rendition")
_DICTIONARIES = [name for name, (dtype, _) in COLUMNS.items() if dtype == _WORD]

WRITTEN: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": _DICTIONARIES,
    "write_page_checksum": True,
}
AGAIN = "Run `vidcurate build-shards` again, into another folder or with --overwrite."
Hashes = NDArray[np.uint64]  # (clips, 2)


def hash_rows(table: Any, name: str) -> Any:
    """Return the hash `name` of each row: 16 bytes of BLAKE2b of its HASHED columns as a JSON list.

    The content of a clip with several captions ends with [name, text] of each.
    """
    lists = [table.column(column).to_pylist() for column in HASHED[name]]
    if name == "content_hash" and "captions" in table.column_names:
        captions = (
            [[caption["name"], caption["text"]] for caption in cell or ()]
            for cell in table.column("captions").to_pylist()
        )
        rows: Iterable[list[Any]] = ([*row, *more] for *row, more in zip(*lists, captions, strict=True))
    else:
        rows = map(list, zip(*lists, strict=True))
    return pa.array(
        [hashlib.blake2b(json.dumps(row).encode(), digest_size=_HASH_BYTES).digest() for row in rows],
        type=pa.binary(_HASH_BYTES),
    )


def hashes_of(hashes: Any) -> Hashes:
    """View a chunk of 16-byte hashes as (n, 2) little-endian numbers."""
    if len(hashes) == 0:
        return np.empty((0, 2), dtype=np.uint64)
    data = np.frombuffer(hashes.buffers()[1], dtype="<u8")
    return data.reshape(-1, 2)[hashes.offset : hashes.offset + len(hashes)]


def _columns_fit(names: list[str], path: Path) -> None:
    missing = [name for name in SCHEMA.names if name not in names]
    if missing:
        raise ShardError(f"{path}: the column {', '.join(missing)} is missing. {AGAIN}")


def write_index(folder: Path, rows: Mapping[str, Any], own: Mapping[str, str] | None = None) -> str:
    """Write `folder`/index.parquet from columns of equal length and return the file's SHA-256, as hex.

    `rows` has every column of COLUMNS but the two hashes, as arrays or lists in any order of rows; frame
    maps, renditions, the offsets of a caption's own member and OF_CAPTIONS are optional. `own` maps the own
    columns of `rows` (arrays of int64, float64, bool, string, or lists of them) to their names in the
    metadata. The write is atomic; the same rows give the same bytes. Raises ShardError when a clip id or a
    key occurs twice, StorageError for errors of the disk.
    """
    path, own = folder / INDEX_NAME, own or {}
    types = {field.name: field.type for field in SCHEMA if field.name not in HASHED}
    types |= {name: dtype for name, (dtype, _) in OF_CAPTIONS.items() if name in rows}
    plain = {name: pa.string() if name in _DICTIONARIES else dtype for name, dtype in types.items()}
    count, names = len(rows["clip_id"]), list(plain)
    given = {
        name: rows.get(name, [None] * count) if name in _MAY_BE_LEFT_OUT else rows[name] for name in names
    }
    arrays = {name: pa.array(given[name], type=plain[name], from_pandas=False) for name in names}
    table = pa.table({**arrays, **{name: rows[name] for name in own}})
    for name in ("clip_id", "sample_key"):
        counts = pc.value_counts(table.column(name))
        twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
        if twice:
            raise ShardError(f"{path}: the {name} {min(twice)!r} occurs more than once; ids must be unique.")
    table = table.sort_by([("shard", "ascending"), ("video_offset", "ascending")])
    for number, name in enumerate(HASHED, start=len(SCHEMA) - len(HASHED)):
        table = table.add_column(number, name, hash_rows(table, name))
    # Stored as plain strings (Parquet makes its own dictionaries), so that any reader sees text.
    words = {_OWN_KEY: json.dumps(own).encode()} if own else {}
    table = table.replace_schema_metadata({_FORMAT_KEY: FORMAT.encode(), **words})
    with atomic_file.storage_errors(path), atomic_file.atomic_path(path) as partial:
        pq.write_table(table, partial, row_group_size=_ROWS_PER_GROUP, **WRITTEN)
        digest = sha256_file(partial)
    return digest


@contextmanager
def _arrow_at_its_best() -> Iterator[None]:
    """Let Arrow use a few cores, and an allocator that does not request huge pages.

    Arrow takes its number of threads from OMP_NUM_THREADS, which launchers of ranks set to 1. Arrow's default
    allocator makes the kernel search for huge pages, which takes seconds with fragmented memory.
    """
    with _arrow:
        threads, pool = pa.cpu_count(), pa.default_memory_pool()
        pa.set_cpu_count(max(threads, min(_MOST_THREADS, len(os.sched_getaffinity(0)))))
        if "jemalloc" in pa.supported_memory_backends():
            pa.set_memory_pool(pa.jemalloc_memory_pool())
        try:
            yield
        finally:
            pa.set_cpu_count(threads)
            pa.set_memory_pool(pool)


_arrow = threading.Lock()  # both are settings of the whole process


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise MissingError where there is no index, ShardError for all else that goes wrong."""
    try:
        with _arrow_at_its_best(), regular_file.opened(path):  # arrow would wait for a pipe
            yield
    except FileNotFoundError as error:
        raise MissingError(f"{path}: no such index. Run `vidcurate build-shards` first.") from error
    except (OSError, pa.ArrowException) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ShardError(f"{path}: damaged or not an index ({reason}). {AGAIN}") from error


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[], Any]]:
    """Yield what opens the index, checked, as a ParquetFile. Raises MissingError, ShardError."""
    with _reading(path):
        footer = pq.read_metadata(path)
        form = (footer.metadata or {}).get(_FORMAT_KEY, b"").decode()
        if form != FORMAT:
            raise ShardError(
                f"{path}: its format is {form or 'unknown'!r}, this version reads {FORMAT!r}. {AGAIN}"
            )
        _columns_fit(footer.schema.names, path)
        given: dict[str, Any] = {"read_dictionary": _DICTIONARIES, "page_checksum_verification": True}
        yield lambda: pq.ParquetFile(path, metadata=footer, **given)


def _type_of(name: str, written: Any) -> Any:
    """Return the Arrow type of a column: of SCHEMA or OF_CAPTIONS, else as it was written."""
    if name in OF_CAPTIONS:
        return OF_CAPTIONS[name][0]
    return SCHEMA.field(name).type if name in SCHEMA.names else written


def _in_one_chunk(table: Any, columns: list[str]) -> Any:
    schema = pa.schema([(name, _type_of(name, table.schema.field(name).type)) for name in columns])
    if table.num_rows == 0:  # no chunk to combine
        return pa.table([pa.array([], type=field.type) for field in schema], schema=schema)
    for name in sorted(_NEVER_NULL & set(columns)):
        if table.column(name).null_count:
            raise ShardError(f"{INDEX_NAME}: a clip has no {name}. {AGAIN}")
    return table.select(columns).cast(schema).unify_dictionaries().combine_chunks()


def _sums_of_hashes(file: Any) -> dict[str, Hashes]:
    """Return the sums of the hashes of all clips, without keeping the hashes: 320 MB for 10 M clips."""
    sums = {name: np.zeros(2, dtype=np.uint64) for name in HASHED}
    for batch in file.iter_batches(_ROWS_PER_GROUP, columns=list(HASHED), use_threads=False):
        for name in HASHED:
            hashes = hashes_of(batch.column(name).cast(SCHEMA.field(name).type))
            sums[name] += np.array([half.sum(dtype=np.uint64) for half in hashes.T])
    return sums


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return (inode, size, mtime), which identifies a version of a file; () for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_columns(folder: Path, names: list[str]) -> Any:
    """Return these columns of the index in `folder` as a pyarrow table, each in one chunk.

    The columns have the types of SCHEMA and OF_CAPTIONS; own columns those that were written. Raises
    MissingError when there is no index, ShardError when the index is damaged, of another format, or has no
    such column.
    """
    path = folder / INDEX_NAME
    with _opened(path) as open_file:
        file = open_file()
        missing = [name for name in names if name not in file.schema_arrow.names]
        if missing:
            raise ShardError(
                f"{path}: no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}."
            )
        return _in_one_chunk(file.read(columns=names), names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraColumns:
    """Columns of an index beyond COLUMNS: `own` → its name in the metadata, and which of them are text."""

    own: dict[str, str]
    texts: frozenset[str]
    has_captions: bool


def extra_columns(folder: Path) -> ExtraColumns:
    """Return what the index in `folder` has beyond COLUMNS. Raises as `read_columns` does."""
    path = folder / INDEX_NAME
    with _reading(path):
        schema = pq.read_schema(path)
    try:
        own: dict[str, str] = json.loads((schema.metadata or {}).get(_OWN_KEY, b"{}"))
    except ValueError as error:
        raise ShardError(f"{path}: the names of its own columns are damaged ({error}). {AGAIN}") from error
    texts = frozenset(name for name in own if name in schema.names and schema.field(name).type == pa.string())
    return ExtraColumns(own=own, texts=texts, has_captions="captions" in schema.names)


def caption_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the captions of the index in `folder`, sorted; the texts are not read."""
    found: set[str] = set()
    with _opened(folder / INDEX_NAME) as open_file:
        for batch in open_file().iter_batches(_ROWS_PER_GROUP, columns=["captions.list.element.name"]):
            found.update(pc.list_flatten(batch.column("captions")).field("name").unique().to_pylist())
    return tuple(sorted(found))


def read_and_sum(folder: Path, names: list[str]) -> tuple[Any, dict[str, Hashes]]:
    """Return `read_columns` and the sums of both hashes over all clips, read in parallel."""
    with _opened(folder / INDEX_NAME) as open_file, ThreadPoolExecutor(1) as beside:
        summing = beside.submit(_sums_of_hashes, open_file())
        return _in_one_chunk(open_file().read(columns=names), names), summing.result()


class RowGroups:
    """Lazy reader of some columns of an index, which reads and caches whole row groups.

    The file stays open, so a file that replaces it is never read. Thread-safe.
    """

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self._path, self._columns = folder / INDEX_NAME, list(columns)
        with _opened(self._path) as open_file:
            self._file = open_file()
        footer = self._file.metadata
        sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        self._ends = list(itertools.accumulate(sizes))
        self._groups: dict[int, Any] = {}
        self._lock = threading.Lock()

    def at(self, column: str, row: int) -> Any:
        """Return the value of a column in a row; None for null. Raises ShardError, IndexError."""
        number = bisect_right(self._ends, row)
        first = self._ends[number - 1] if number else 0
        with self._lock:
            if number not in self._groups:
                if number == len(self._ends):
                    raise IndexError(f"row {row} of {first}")
                with _reading(self._path):
                    self._groups[number] = self._file.read_row_group(number, columns=self._columns)
            group = self._groups[number]
        return group.column(column)[row - first].as_py()


def numbers_of(column: Any) -> NDArray[Any]:
    """Return a one-chunk column of numbers as an array, with 0 or NaN for null."""
    floating = pa.types.is_floating(column.type)
    filled = pc.fill_null(column, float("nan") if floating else 0) if column.null_count else column
    array: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    array.flags.writeable = False
    return array
