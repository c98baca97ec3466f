"""index.parquet: where each clip lies in the shards, and what a sampler must know of it.

One row per clip, sorted by shard and offset. Every row carries two hashes of 16 bytes: of its structure (id,
fold, level, shape: what decides the order of training) and of its content (payload and caption). The
fingerprint of any set of clips is the hash of the sum of theirs. So it does not depend on how the clips lie
in shards, a moved or re-sharded data set keeps its own, and a shard's fingerprint names the shard that
differs. Opening adds the hashes up and never recomputes them: `check_index` does.

A light module: decode workers and GPU machines import it (no polars, no av, no torch).
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vidcurate import stores
from vidcurate.errors import ShardError, StorageError
from vidcurate.remote_shards import RemoteShards, RemoteSpec, open_shards

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
    "rendition": (_WORD, "copy (the bytes of the file), trim, transcode or proxy; null when not known"),
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
SCHEMA = pa.schema([(name, dtype) for name, (dtype, _) in COLUMNS.items()])
_HASHES = ("structure_hash", "content_hash")
_STRUCTURE = ("clip_id", "fold", "level", "width", "height", "num_frames", "fps")
_CONTENT = ("clip_id", "video_crc32c", "video_size", "caption")
# Not read when an index is opened: long, or wanted by few.
_LATER = (
    *("sample_key", "source_id", "caption", "text_offset", "text_size", "text_crc32c", "frame_map"),
    "rendition",
)
_DICTIONARIES = [name for name, (dtype, _) in COLUMNS.items() if dtype == _WORD]

_AGAIN = "Run `vidcurate build-shards` again, into another folder or with overwrite: true."
Hashes = NDArray[np.uint64]  # (clips, 2)


@dataclass(frozen=True, kw_only=True)
class Index:
    """An open index.parquet; row i of every array is the same clip.

    `table` holds all columns but those that few need; `words` reads these from the file when they are first
    asked for, `read_columns` reads any.
    In the arrays an unknown whole number is 0 and an unknown `fps` or `duration_seconds` is NaN. `shards` are
    the file names, sorted, and `shard_number` counts in them.
    """

    folder: Path
    table: Any  # pyarrow.Table
    shards: tuple[str, ...]
    shard_number: NDArray[np.int32]
    level: NDArray[np.int32]
    json_offset: NDArray[np.int64]
    json_size: NDArray[np.int64]
    json_crc32c: NDArray[np.uint32]
    video_offset: NDArray[np.int64]
    video_size: NDArray[np.int64]
    video_crc32c: NDArray[np.uint32]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    fps: NDArray[np.float64]
    num_frames: NDArray[np.int64]
    duration_seconds: NDArray[np.float64]
    noun_count: NDArray[np.int32]
    structure_fingerprint: str
    content_fingerprint: str
    remote: RemoteShards | None = None

    @property
    def place(self) -> Path | str:
        """The folder of the shards, or its URL."""
        return self.remote.url if self.remote else self.folder

    def shard_place(self, row: int) -> str:
        """Return the path or URL of the shard that holds a clip."""
        shard = self.shards[self.shard_number[row]]
        return self.remote.url_of(shard) if self.remote else str(self.folder / shard)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def words(self, column: str) -> Any:
        """Return a text column (clip_id, sample_key, source_id, fold, …) as one pyarrow array.

        One that is not read when the index is opened is read on first use.
        """
        if column in self.table.column_names:
            return self.table.column(column).chunk(0)
        if column not in self._read_later:
            self._read_later[column] = read_columns(self.folder, [column]).column(column).chunk(0)
        return self._read_later[column]

    @cached_property
    def _read_later(self) -> dict[str, Any]:
        return {}

    def word(self, column: str, row: int) -> str:
        """Return one value of a text column, "" where there is none."""
        return self.words(column)[row].as_py() or ""

    @property
    def captions(self) -> Any:
        """All captions as one pyarrow array."""
        return self.words("caption")

    @property
    def frame_maps(self) -> Any:
        """The frame map of every clip as one pyarrow array of bytes, null where there is none."""
        return self.words("frame_map")


def _hash_rows(table: Any, columns: tuple[str, ...]) -> Any:
    """Return the 16-byte hash of each row's `columns`, written as a JSON list."""
    lists = [table.column(name).to_pylist() for name in columns]
    return pa.array(
        [
            hashlib.blake2b(json.dumps(values).encode(), digest_size=_HASH_BYTES).digest()
            for values in zip(*lists, strict=True)
        ],
        type=pa.binary(_HASH_BYTES),
    )


def _as_numbers(hashes: Any) -> Hashes:
    """View a chunk of 16-byte hashes as (n, 2) little-endian numbers."""
    if len(hashes) == 0:
        return np.empty((0, 2), dtype=np.uint64)
    data = np.frombuffer(hashes.buffers()[1], dtype="<u8")
    return data.reshape(-1, 2)[hashes.offset : hashes.offset + len(hashes)]


def _fingerprint(kind: str, num_clips: int, total: Hashes) -> str:
    text = f"{FORMAT} {kind} {num_clips} ".encode() + total.astype("<u8").tobytes()
    return hashlib.sha256(text).hexdigest()[:32]


def _columns_fit(names: list[str], path: Path) -> None:
    missing = [name for name in SCHEMA.names if name not in names]
    if missing:
        raise ShardError(f"{path}: the column {', '.join(missing)} is missing. {_AGAIN}")


def write_index(folder: Path, rows: Mapping[str, Any]) -> str:
    """Write `folder`/index.parquet from columns of equal length and return the file's SHA-256, as hex.

    `rows` has every column of COLUMNS but the two hashes, as arrays or lists in any order of rows; frame
    maps, renditions and the places of a caption's own member may be left out. The file appears whole or not
    at all; the same rows give the same bytes. Raises ShardError when a clip id or a key occurs twice,
    StorageError when the disk refuses.
    """
    path = folder / INDEX_NAME
    names = [name for name in SCHEMA.names if name not in _HASHES]
    plain = {name: pa.string() if name in _DICTIONARIES else SCHEMA.field(name).type for name in names}
    count = len(rows["clip_id"])
    given = {name: rows.get(name, [None] * count) if name in _LATER[1:] else rows[name] for name in names}
    table = pa.table({name: pa.array(given[name], type=plain[name], from_pandas=False) for name in names})
    for name in ("clip_id", "sample_key"):
        counts = pc.value_counts(table.column(name))
        twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
        if twice:
            raise ShardError(f"{path}: the {name} {min(twice)!r} occurs more than once; ids must be unique.")
    table = table.sort_by([("shard", "ascending"), ("video_offset", "ascending")])
    table = table.append_column("structure_hash", _hash_rows(table, _STRUCTURE))
    table = table.append_column("content_hash", _hash_rows(table, _CONTENT))
    # Stored as plain strings (Parquet makes its own dictionaries), so that any reader sees text.
    table = table.replace_schema_metadata({_FORMAT_KEY: FORMAT.encode()})
    partial = folder / f".{INDEX_NAME}.partial"
    try:
        pq.write_table(
            table,
            partial,
            compression="zstd",
            row_group_size=_ROWS_PER_GROUP,
            use_dictionary=_DICTIONARIES,
            write_page_checksum=True,
        )
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        partial.replace(path)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}).") from error
    return digest


@contextmanager
def _arrow_threads() -> Iterator[None]:
    """Let Arrow use a few cores: it takes OMP_NUM_THREADS for its own, which launchers of ranks set to 1."""
    before = pa.cpu_count()
    pa.set_cpu_count(max(before, min(_MOST_THREADS, len(os.sched_getaffinity(0)))))
    try:
        yield
    finally:
        pa.set_cpu_count(before)


def _read(path: Path, columns: list[str] | None) -> Any:
    """Return the columns with the types of SCHEMA, each in one chunk."""
    try:
        footer = pq.read_metadata(path)
        form = (footer.metadata or {}).get(_FORMAT_KEY, b"").decode()
        if form != FORMAT:
            raise ShardError(
                f"{path}: its format is {form or 'unknown'!r}, this version reads {FORMAT!r}. {_AGAIN}"
            )
        _columns_fit(footer.schema.names, path)
        file = pq.ParquetFile(
            path, metadata=footer, read_dictionary=_DICTIONARIES, page_checksum_verification=True
        )
        wanted = columns or [name for name in SCHEMA.names if name not in _LATER]
        with _arrow_threads():
            table = file.read(columns=wanted)
    except FileNotFoundError as error:
        raise ShardError(f"{path}: no such index. Run `vidcurate build-shards` first.") from error
    except (OSError, pa.ArrowException) as error:
        raise ShardError(f"{path}: damaged or not an index ({type(error).__name__}: {error}).") from error
    schema = pa.schema([SCHEMA.field(name) for name in wanted])
    if table.num_rows == 0:  # no chunk to combine
        return pa.table([pa.array([], type=field.type) for field in schema], schema=schema)
    return table.select(wanted).cast(schema).unify_dictionaries().combine_chunks()


def read_columns(folder: Path, names: list[str]) -> Any:
    """Return these columns of the index in `folder` as a pyarrow table. Raises ShardError as `read_index`."""
    return _read(folder / INDEX_NAME, names)


def _numbers(table: Any, name: str) -> NDArray[Any]:
    column = table.column(name).chunk(0)
    floating = pa.types.is_floating(column.type)
    filled = pc.fill_null(column, float("nan") if floating else 0) if column.null_count else column
    array: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    array.flags.writeable = False
    return array


def read_index(place: Path | str, *, check_files: bool = True, remote: RemoteSpec | None = None) -> Index:
    """Open the index of the shards in a folder or at a URL, which is read as `remote` says.

    Raises ShardError when there is none, when it is damaged or of another format, or (with `check_files`)
    when a shard is missing or shorter than the index says; StorageError and InputError for a URL. At a URL
    `check_files` also notes which version of each shard is there now: no other will be read.
    """
    where = stores.place(place)
    shards = open_shards(where, INDEX_NAME, remote or RemoteSpec()) if isinstance(where, str) else None
    folder = shards.index_folder if shards else Path(where)
    path = folder / INDEX_NAME
    table = _read(path, None)
    shard = table.column("shard").chunk(0)
    names = shard.dictionary.to_pylist()
    order = np.argsort(np.array(names, dtype=object), kind="stable")
    rank = np.empty(len(names), dtype=np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    shard_number = rank[shard.indices.to_numpy(zero_copy_only=False)]
    offsets = _numbers(table, "video_offset")
    steps = np.diff(shard_number)
    if np.any(steps < 0) or np.any((steps == 0) & (np.diff(offsets) <= 0)):
        raise ShardError(f"{path}: not sorted by shard and offset. {_AGAIN}")
    sums = {
        name: np.array([half.sum(dtype=np.uint64) for half in _as_numbers(table.column(name).chunk(0)).T])
        for name in _HASHES
    }
    if shards and check_files:
        shards = shards.with_stamps(names)
    index = Index(
        folder=folder,
        remote=shards,
        table=table,
        shards=tuple(names[number] for number in order),
        shard_number=shard_number,
        structure_fingerprint=_fingerprint("structure", table.num_rows, sums["structure_hash"]),
        content_fingerprint=_fingerprint("content", table.num_rows, sums["content_hash"]),
        **{
            name: _numbers(table, name)
            for name, (dtype, _) in COLUMNS.items()
            if name not in _LATER and (pa.types.is_integer(dtype) or pa.types.is_floating(dtype))
        },
    )
    if check_files:
        _check_files(index)
    return index


def _shard_starts(index: Index) -> NDArray[np.int64]:
    return np.searchsorted(index.shard_number, np.arange(len(index.shards) + 1)).astype(np.int64)


def _check_files(index: Index) -> None:
    starts = _shard_starts(index)
    for number, name in enumerate(index.shards):
        last = starts[number + 1] - 1
        need = int(index.video_offset[last] + index.video_size[last])
        try:
            if index.remote:
                have = index.remote.stamps[name].size_bytes
            else:
                have = os.path.getsize(index.folder / name)
        except OSError as error:
            raise ShardError(
                f"{index.folder / name}: named by the index and cannot be read ({error.strerror})."
            ) from error
        if have < need:
            raise ShardError(f"{index.shard_place(last)}: has {have} bytes and the index needs {need}.")


def shard_fingerprints(index: Index) -> dict[str, tuple[str, str]]:
    """Return the (structure, content) fingerprints of each shard, by its file name."""
    starts = _shard_starts(index)
    found: dict[str, tuple[str, str]] = {}
    numbers = {name: _as_numbers(index.table.column(name).chunk(0)) for name in _HASHES}
    for number, shard in enumerate(index.shards):
        rows = slice(starts[number], starts[number + 1])
        count = int(starts[number + 1] - starts[number])
        structure, content = (
            _fingerprint(name.removesuffix("_hash"), count, numbers[name][rows].sum(axis=0, dtype=np.uint64))
            for name in _HASHES
        )
        found[shard] = (structure, content)
    return found


def differing_shards(
    old: Mapping[str, tuple[str, str]], new: Mapping[str, tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """Return (shard, what differs) for shards that are not the same in two `shard_fingerprints`.

    What differs is one of removed, added, structure, content.
    """
    found: list[tuple[str, str]] = []
    for shard in sorted(old.keys() | new.keys()):
        if shard not in new:
            found.append((shard, "removed"))
        elif shard not in old:
            found.append((shard, "added"))
        elif old[shard][0] != new[shard][0]:
            found.append((shard, "structure"))
        elif old[shard][1] != new[shard][1]:
            found.append((shard, "content"))
    return tuple(found)


def check_index(index: Index) -> None:
    """Recompute every hash of the index (a few seconds per million clips).

    Raises ShardError that names the first shard and clip whose row was changed without its hash.
    """
    table = index.table.append_column("caption", [index.captions])
    for name, columns in zip(_HASHES, (_STRUCTURE, _CONTENT), strict=True):
        wrong = pc.not_equal(_hash_rows(table, columns), table.column(name).chunk(0))
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            raise ShardError(
                f"{index.place}/{INDEX_NAME}: the row of clip {index.word('clip_id', row)!r} in "
                f"{index.word('shard', row)} was changed after it was written. {_AGAIN}"
            )


def find_clip(index: Index, clip_id: str) -> int:
    """Return the row of a clip. Raises ShardError when the index does not have it."""
    row = int(pc.index(index.words("clip_id"), clip_id).as_py())
    if row < 0:
        raise ShardError(f"{index.place}/{INDEX_NAME}: no clip {clip_id!r} among its {len(index)}.")
    return row
