"""Latent folder on disk: tables of clips, shapes, views and their offsets.

    index.parquet     the clips: the index of their own shards, byte for byte
    latents.parquet   a row for each clip, shape and view: shard, offset, size, CRC-32; or why there is none
    texts.parquet     a row for each clip and caption: the same, and how many tokens
    *.tar             WebDataset samples: KEY.json, KEY.v0.latent.npy, KEY.v0.variance.npy, KEY.c0.text.npy
    manifest.json     what was encoded, with what; size and SHA-256 of every file. Written last

Two tables beside the index, because a clip can be kept in several shapes but has each text once.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.data.latents.manifest import MANIFEST_NAME, read_manifest
from vidcurate.errors import InputError, MissingError, ShardError
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.shards.index import Index, read_index
from vidcurate.shards.index_file import INDEX_NAME

LATENTS_NAME, TEXTS_NAME = "latents.parquet", "texts.parquet"
TABLES = (INDEX_NAME, LATENTS_NAME, TEXTS_NAME)

WORD = pa.dictionary(pa.int32(), pa.string())  # few different values
_PLACE: dict[str, tuple[Any, str]] = {
    "shard": (WORD, "file name of the tar"),
    "offset": (pa.int64(), "first byte of the array inside the tar, behind the header of the .npy"),
    "size": (pa.int64(), "bytes of the array"),
    "crc32": (pa.uint32(), "CRC-32 (zlib) of the array's bytes"),
    "dtype": (WORD, "bfloat16 (its bits are kept as uint16), float16 or float32"),
}
# Name, Arrow type and meaning of every column; docs/latents.md shows these tables.
LATENT_COLUMNS: dict[str, tuple[Any, str]] = {
    "clip_row": (pa.int64(), "row of the clip in index.parquet"),
    "clip_id": (pa.string(), "the clip's name"),
    "source_dataset": (WORD, "the data set that the clip comes from"),
    "level": (pa.int32(), "difficulty level"),
    "bucket": (WORD, "name of the bucket in the recipe that asked first"),
    "num_frames": (pa.int32(), "frames of the bucket"),
    "height": (pa.int32(), "px of the bucket"),
    "width": (pa.int32(), "px of the bucket"),
    "frame_stride": (pa.int32(), "every n-th frame of the clip"),
    "view": (pa.int32(), "which of the clip's views, from 0"),
    "first_frame": (pa.int64(), "the clip's frame with which the view begins"),
    **_PLACE,
    "channels": (pa.int32(), "C of the array (C, T, H, W)"),
    "latent_frames": (pa.int32(), "T"),
    "latent_height": (pa.int32(), "H"),
    "latent_width": (pa.int32(), "W"),
    "variance_offset": (
        pa.int64(),
        "the posterior's variance, an array of the same size; null: none is kept",
    ),
    "variance_crc32": (pa.uint32(), "its CRC-32"),
    "failure_kind": (pa.string(), "why the clip could not be decoded; null: it could"),
    "failure_reason": (pa.string(), "the error message"),
}
TEXT_COLUMNS: dict[str, tuple[Any, str]] = {
    "clip_row": (pa.int64(), "row of the clip in index.parquet"),
    "clip_id": (pa.string(), "the clip's name"),
    "caption_number": (pa.int32(), "which of the clip's captions, from 0"),
    "caption_name": (WORD, "its key in the clip's JSON"),
    "caption_hash": (pa.binary(16), "BLAKE2b of the caption's UTF-8 bytes"),
    **_PLACE,
    "num_tokens": (pa.int32(), "L of the array (L, C): the caption's own tokens, without padding"),
    "channels": (pa.int32(), "C: of the text encoder, or the model's width when projected"),
}
COLUMNS = {LATENTS_NAME: LATENT_COLUMNS, TEXTS_NAME: TEXT_COLUMNS}

Rows = NDArray[np.int64]
Shape = tuple[int, int, int, int]


def shape_of(bucket: Bucket) -> Shape:
    """Return (num_frames, height, width, frame_stride): the part of a bucket that its latents depend on.

    Raises InputError for a bucket with a separate frame rate: latents keep their clips' frame rate.
    """
    if bucket.fps is not None and bucket.num_frames > 1:
        raise InputError(
            f"buckets.fps is {bucket.fps:g}; latents keep the frame rate of their clips. Leave it out, or "
            "give the clips that rate in `vidcurate build-shards` (mode: transcode, transcode.fps)."
        )
    return bucket.num_frames, bucket.height, bucket.width, bucket.frame_stride


def shape_name(shape: Shape) -> str:
    """Return a shape's file name: 51f-144x256, with -s2 appended for a stride of 2."""
    frames, height, width, stride = shape
    return f"{frames}f-{height}x{width}" + (f"-s{stride}" if stride > 1 else "")


@dataclass(frozen=True, kw_only=True)
class LatentFolder:
    """An open folder. `latents` and `texts` are pyarrow tables, one chunk a column.

    `latent_keys` are sorted, `latent_rows` are the rows of `latents` in that order; the same for texts.
    """

    path: Path
    manifest: dict[str, Any]
    index: Index
    latents: Any
    texts: Any
    shapes: dict[Shape, int]
    latent_keys: Rows
    latent_rows: Rows
    text_keys: Rows
    text_rows: Rows

    @property
    def num_captions(self) -> int:
        return len(self.manifest["captions"])

    @property
    def has_variance(self) -> bool:
        return bool(self.manifest["kept"]["variance"])

    def find_latents(self, bucket: Bucket, clip_rows: Rows, view: int | Rows) -> Rows:
        """Return the rows of `latents` with these clips in the bucket's shape and view, -1 if missing."""
        number = self.shapes.get(shape_of(bucket))
        if number is None:
            return np.full(len(clip_rows), -1, dtype=np.int64)
        wanted = _latent_keys(np.asarray(number), np.asarray(view), clip_rows, len(self.index))
        return _find(self.latent_keys, self.latent_rows, wanted)

    def find_texts(self, clip_rows: Rows, caption: int | Rows) -> Rows:
        """Return the rows of `texts` with these captions of these clips, -1 if missing."""
        wanted = np.asarray(caption) * len(self.index) + clip_rows
        return _find(self.text_keys, self.text_rows, wanted)


_MOST_VIEWS = 1 << 16


def _latent_keys(shape: Any, view: Any, clip_rows: Rows, num_clips: int) -> Rows:
    keys: Rows = (shape.astype(np.int64) * _MOST_VIEWS + view) * num_clips + clip_rows
    return np.where(view < _MOST_VIEWS, keys, -1)


def _find(keys: Rows, rows: Rows, wanted: Rows) -> Rows:
    if not len(keys):
        return np.full(wanted.shape, -1, dtype=np.int64)
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[place] == wanted, rows[place], -1)


def numbers(table: Any, name: str) -> NDArray[Any]:
    """Return a column without nulls as a NumPy array."""
    array: NDArray[Any] = table.column(name).chunk(0).to_numpy(zero_copy_only=False)
    return array


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────


def schema_of(name: str) -> Any:
    """Return the Arrow schema of latents.parquet or texts.parquet."""
    return pa.schema([(column, dtype) for column, (dtype, _) in COLUMNS[name].items()])


def read_table(path: Path, name: str) -> Any:
    """Read a table of the kind `name` (latents.parquet or texts.parquet), one chunk a column.

    Raises ShardError for a file that is damaged or lacks a column.
    """
    columns = COLUMNS[name]
    try:
        words = [name for name, (dtype, _) in columns.items() if dtype == WORD]
        table = pq.ParquetFile(path, read_dictionary=words, page_checksum_verification=True).read()
    except (OSError, pa.ArrowException) as error:
        raise ShardError(
            f"{path}: cannot be read ({type(error).__name__}: {error}). Copy it again."
        ) from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ShardError(f"{path}: the column {missing[0]} is missing. Encode the clips again.")
    schema = schema_of(name)
    if table.num_rows == 0:
        return pa.table([pa.array([], type=field.type) for field in schema], schema=schema)
    return table.select(schema.names).cast(schema).unify_dictionaries().combine_chunks()


def _size(path: Path) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise ShardError(f"{path}: named by the manifest and cannot be read ({error.strerror}).") from error


def open_folder(path: Path) -> LatentFolder:
    """Open a finished latent folder.

    Raises MissingError if none exists; ShardError if encoding has not finished, or if a file is missing,
    damaged or shorter than the manifest says.
    """
    manifest = read_manifest(path)
    if manifest is None:
        if (path / ".build").is_dir():
            raise ShardError(f"{path}: encoding has not finished here. Run the same command again.")
        raise MissingError(
            f"{path}: no latents there (no {MANIFEST_NAME}). "
            f"Run `python -m trainer precompute RECIPE --out {path}` first."
        )
    for shard in manifest["shards"]:
        have = _size(path / shard["name"])
        if have != shard["bytes"]:
            raise ShardError(
                f"{path / shard['name']}: has {have} bytes and the manifest says {shard['bytes']}. Copy it "
                "anew, or delete it and encode again: the rest is kept."
            )
    index = read_index(path, check_files=False)
    for name in ("structure_fingerprint", "content_fingerprint"):
        if getattr(index, name) != manifest["clips"][name]:
            raise ShardError(
                f"{path / INDEX_NAME}: its {name} is {getattr(index, name)[:8]}, the manifest says "
                f"{manifest['clips'][name][:8]}; the files do not belong together. Copy them again."
            )
    for name in (LATENTS_NAME, TEXTS_NAME):
        size, needed = _size(path / name), manifest["tables"][name]["bytes"]
        if size != needed:
            raise ShardError(
                f"{path / name}: has {size} bytes and the manifest says {needed}. Copy it again."
            )
    latents, texts = (read_table(path / name, name) for name in (LATENTS_NAME, TEXTS_NAME))
    shapes: dict[Shape, int] = {}
    for part in manifest["shapes"]:
        shapes[part["num_frames"], part["height"], part["width"], part["frame_stride"]] = len(shapes)
    keys = _latent_keys(
        _shape_numbers(latents, shapes), numbers(latents, "view"), numbers(latents, "clip_row"), len(index)
    )
    text_keys = numbers(texts, "caption_number").astype(np.int64) * len(index) + numbers(texts, "clip_row")
    order, text_order = np.argsort(keys, kind="stable"), np.argsort(text_keys, kind="stable")
    return LatentFolder(
        path=path,
        manifest=manifest,
        index=index,
        latents=latents,
        texts=texts,
        shapes=shapes,
        latent_keys=keys[order],
        latent_rows=order.astype(np.int64),
        text_keys=text_keys[text_order],
        text_rows=text_order.astype(np.int64),
    )


def _shape_numbers(latents: Any, shapes: Mapping[Shape, int]) -> Rows:
    columns = [numbers(latents, name) for name in ("num_frames", "height", "width", "frame_stride")]
    found = np.zeros(len(latents), dtype=np.int64)
    for shape, number in shapes.items():
        same = np.ones(len(latents), dtype=np.bool_)
        for column, value in zip(columns, shape, strict=True):
            same &= column == value
        found[same] = number
    return found
