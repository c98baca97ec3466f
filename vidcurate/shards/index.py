"""Index of shards (index.parquet): clip locations and inputs of the sampler.

One row per clip, sorted by shard and offset. Every row has two hashes of 16 bytes: of its structure (id,
fold, level, shape: the inputs of the training order) and of its content (payload and caption). The
fingerprint of a set of clips is the hash of the sum of their hashes. So a fingerprint does not depend on the
distribution over shards, a moved or re-sharded data set keeps its fingerprint, and the fingerprint of a shard
shows which shard differs. `read_index` adds up the hashes; `check_index` recomputes them.

A light module: decode workers and GPU machines import it (no polars, no av, no torch).
"""

import hashlib
import itertools
import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vidcurate import rng
from vidcurate.errors import ShardError
from vidcurate.shards.index_file import (
    AGAIN,
    COLUMNS,
    FORMAT,
    HASHED,
    INDEX_NAME,
    ExtraColumns,
    Hashes,
    RowGroups,
    caption_names,
    extra_columns,
    hash_rows,
    hashes_of,
    numbers_of,
    read_and_sum,
    read_columns,
    stamp_of,
)
from vidcurate.shards.index_trust import check_bounds, check_digest
from vidcurate.shards.remote_index import RemoteShards, RemoteSpec, open_shards
from vidcurate.storage import object_store

# Columns that `read_index` reads: the inputs of an order. Others are read on first use,
_FIRST = (
    *("clip_id", "fold", "level", "width", "height", "fps", "num_frames"),
    *("shard", "video_offset", "video_size"),
)
# and these by row group: the inputs for reading a clip.
_PLACES = ("source_dataset", "json_offset", "json_size", "json_crc32c", "video_crc32c", "frame_map")


@dataclass(frozen=True, kw_only=True)
class Index:
    """Open index.parquet; row i of every array is the same clip.

    `table` holds the inputs of an order; `words` and `numbers` read other columns on first use. In the arrays
    an unknown integer is 0 and an unknown `fps` is NaN. `shards` are the sorted file names, and
    `shard_number` is an index into them. `stamp` identifies this version of the file.
    """

    folder: Path
    stamp: tuple[int, ...]
    table: Any  # pyarrow.Table
    shards: tuple[str, ...]
    shard_number: NDArray[np.int32]
    level: NDArray[np.int32]
    video_offset: NDArray[np.int64]
    video_size: NDArray[np.int64]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    fps: NDArray[np.float64]
    num_frames: NDArray[np.int64]
    structure_fingerprint: str
    content_fingerprint: str
    remote: RemoteShards | None = None

    @property
    def place(self) -> Path | str:
        """Folder of the shards, or its URL."""
        return self.remote.url if self.remote else self.folder

    def shard_place(self, row: int) -> str:
        """Return the path or URL of the shard that holds a clip."""
        shard = self.shards[self.shard_number[row]]
        return self.remote.url_of(shard) if self.remote else str(self.folder / shard)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: a copy in another process opens the file itself for other columns."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def words(self, column: str) -> Any:
        """Return a column (clip_id, sample_key, source_id, fold, …) as one pyarrow array.

        Reads columns outside `table` on first use. Raises ShardError when reading fails, or when another
        index has replaced this one.
        """
        if column in self.table.column_names:
            return self.table.column(column).chunk(0)
        if column not in self._kept:
            self._kept[column] = self._read_later([column]).column(column).chunk(0)
        return self._kept[column]

    def numbers(self, column: str) -> NDArray[Any]:
        """Return a column of numbers as an array, read on first use. Raises as `words` does."""
        name = f"numbers of {column}"
        if name not in self._kept:
            self._kept[name] = numbers_of(self.words(column))
        found: NDArray[Any] = self._kept[name]
        return found

    def at(self, column: str, row: int) -> Any:
        """Return the value of any column in one row, None for null.

        Reads offsets and frame maps by row group. Raises as `words` does.
        """
        if column in _PLACES and column not in self._kept:
            return self._places.at(column, row)
        return self.words(column)[row].as_py()

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    @cached_property
    def _places(self) -> RowGroups:
        self._check_stamp()
        found = RowGroups(self.folder, _PLACES)
        self._check_stamp()
        return found

    @cached_property
    def own_columns(self) -> dict[str, str]:
        """Own columns of the clips (`words` and `at` read them) → their names in the metadata."""
        return self._extra.own

    @cached_property
    def caption_names(self) -> tuple[str, ...]:
        """Names of the captions of clips that have several, sorted; () when no clip has several.

        Then there are the columns captions and caption_name.
        """
        self._check_stamp()
        return caption_names(self.folder) if self._extra.has_captions else ()

    def is_text(self, column: str) -> bool:
        """Return whether an own column holds text."""
        return column in self._extra.texts

    @cached_property
    def _extra(self) -> ExtraColumns:
        self._check_stamp()
        return extra_columns(self.folder)

    def _read_later(self, columns: list[str]) -> Any:
        self._check_stamp()
        table = read_columns(self.folder, columns)
        self._check_stamp()
        return table

    def _check_stamp(self) -> None:
        path = self.folder / INDEX_NAME
        now = stamp_of(path)
        if not now:
            raise ShardError(
                f"{path}: this index was removed while in use. Restore the file and start again."
            )
        if now != self.stamp:
            raise ShardError(f"{path}: another index replaced this one while in use. Start again.")

    def word(self, column: str, row: int) -> str:
        """Return one value of a text column, "" for null."""
        return self.at(column, row) or ""

    @property
    def captions(self) -> Any:
        """All captions as one pyarrow array."""
        return self.words("caption")


def _fingerprint(kind: str, num_clips: int, total: Hashes) -> str:
    text = f"{FORMAT} {kind} {num_clips} ".encode() + total.astype("<u8").tobytes()
    return hashlib.sha256(text).hexdigest()[:32]


def _is_number(dtype: Any) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype))


def read_index(place: Path | str, *, check_files: bool = True, remote: RemoteSpec | None = None) -> Index:
    """Open the index of the shards in a folder or at a URL (read with the settings `remote`).

    Raises MissingError when the index is missing; ShardError when it is damaged, of another format, or holds
    an impossible size or rate, or (with `check_files`) when a shard is missing or shorter than in the index,
    or the manifest names another index; StorageError and InputError for a URL. At a URL `check_files` also
    records the current version of each shard: reads of other versions then fail.
    """
    where = object_store.place(place)
    shards = open_shards(where, INDEX_NAME, remote or RemoteSpec()) if isinstance(where, str) else None
    folder = shards.index_folder if shards else Path(where)
    path = folder / INDEX_NAME
    stamp = stamp_of(path)
    table, sums = read_and_sum(folder, list(_FIRST))
    check_bounds(table, path)
    shard = table.column("shard").chunk(0)
    names = shard.dictionary.to_pylist()
    order = np.argsort(np.array(names, dtype=object), kind="stable")
    rank = np.empty(len(names), dtype=np.int32)
    rank[order] = np.arange(len(names), dtype=np.int32)
    shard_number = rank[shard.indices.to_numpy(zero_copy_only=False)]
    numbers = {
        name: numbers_of(table.column(name).chunk(0)) for name in _FIRST if _is_number(COLUMNS[name][0])
    }

    def rises(rows: slice) -> bool:
        here = slice(rows.start, rows.stop + 1)  # with the first one of the next stretch
        steps = np.diff(shard_number[here])
        return not np.any((steps < 0) | ((steps == 0) & (np.diff(numbers["video_offset"][here]) <= 0)))

    if not all(rng.by_chunks(len(shard_number), rises)):
        raise ShardError(f"{path}: not sorted by shard and offset. {AGAIN}")
    if shards and check_files:
        shards = shards.with_stamps(names)
    index = Index(
        folder=folder,
        stamp=stamp,
        remote=shards,
        table=table,
        shards=tuple(names[number] for number in order),
        shard_number=shard_number,
        structure_fingerprint=_fingerprint("structure", table.num_rows, sums["structure_hash"]),
        content_fingerprint=_fingerprint("content", table.num_rows, sums["content_hash"]),
        **numbers,
    )
    if check_files:
        _check_files(index)
        if not shards:
            check_digest(folder)
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
    numbers = {name: hashes_of(index.words(name)) for name in HASHED}
    for number, shard in enumerate(index.shards):
        rows = slice(starts[number], starts[number + 1])
        count = int(starts[number + 1] - starts[number])
        structure, content = (
            _fingerprint(name.removesuffix("_hash"), count, numbers[name][rows].sum(axis=0, dtype=np.uint64))
            for name in HASHED
        )
        found[shard] = (structure, content)
    return found


def check_index(index: Index) -> None:
    """Recompute every hash of the index (a few seconds per million clips).

    Raises ShardError, naming the first shard and clip whose row does not match its hash.
    """
    wanted = dict.fromkeys(itertools.chain(HASHED, *HASHED.values()))
    captions = ["captions"] if index.caption_names else []
    table = read_columns(index.folder, [*wanted, *captions])
    for name in HASHED:
        wrong = pc.not_equal(hash_rows(table, name), table.column(name).chunk(0))
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            raise ShardError(
                f"{index.place}/{INDEX_NAME}: the row of clip {index.word('clip_id', row)!r} in "
                f"{index.word('shard', row)} was changed after it was written. {AGAIN}"
            )


def find_clip(index: Index, clip_id: str) -> int:
    """Return the row of a clip. Raises ShardError when the index does not have it."""
    row = int(pc.index(index.words("clip_id"), clip_id).as_py())
    if row < 0:
        raise ShardError(f"{index.place}/{INDEX_NAME}: no clip {clip_id!r} among its {len(index)}.")
    return row
