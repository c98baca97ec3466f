"""Latent shard writer: write under a temporary name, flush, record, rename.

The record, `.build/NAME.parquet`, holds the shard's table rows and its inputs. A tar with a matching record
is finished; anything else left by a kill is written again.
"""

import io
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.latents.folder import WORD, schema_of
from vidcurate.errors import StorageError
from vidcurate.shards.tar_write import TarWriter
from vidcurate.storage import atomic_file, json_shape, regular_file
from vidcurate.storage.checksum import sha256_file
from vidcurate.storage.json_shape import Count, FileName

BUILD = ".build"  # subfolder of the latent folder for everything unfinished
_RECORD_KEY = b"vidcurate"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One WebDataset sample. `arrays`: what follows the key in the member's name → the tensor.

    Each of `rows` becomes a table row, which names its array under `array` and may name another one under
    `variance`. A row without `array` is a failure. A sample without arrays is not in the tar.
    """

    key: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, Tensor]
    rows: tuple[Row, ...]


def raw(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as a NumPy array: bfloat16 as the uint16 of its bits."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def npy(array: NDArray[Any]) -> tuple[bytes, bytes]:
    """Return header and data of an array in .npy format."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape},
    )
    return header.getvalue(), array.tobytes()


def _add(writer: TarWriter, sample: Sample, shard: str) -> list[Row]:
    """Write a sample; return its rows with their offsets."""
    places: dict[str, Row] = {}
    if sample.arrays:
        writer.add(
            f"{sample.key}.json", json.dumps(sample.facts, sort_keys=True, ensure_ascii=False).encode()
        )
    for name, tensor in sample.arrays.items():
        header, data = npy(raw(tensor))
        offset = writer.add(f"{sample.key}.{name}.npy", header + data) + len(header)
        places[name] = {
            "offset": offset,
            "size": len(data),
            "crc32": zlib.crc32(data),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
    rows = []
    for row in sample.rows:
        row = {**row, "shard": shard}
        array, variance = row.pop("array", None), row.pop("variance", None)
        row |= places[array] if array else {"offset": 0, "size": 0, "crc32": 0, "dtype": None}
        if variance:
            row["variance_offset"] = places[variance]["offset"]
            row["variance_crc32"] = places[variance]["crc32"]
        rows.append(row)
    return rows


def write_shard(
    out: Path, name: str, table: str, samples: Iterable[Sample], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the tar `name` and its record; return the record's facts. `table`: the table of its rows.

    `facts` hold the shard's inputs. A shard without any array gets a record and no tar. Raises StorageError
    if the disk fails.
    """
    final, build = out / name, out / BUILD
    rows: list[Row] = []
    num_samples = 0
    try:
        with atomic_file.atomic_path(final, folder=build) as partial:
            with partial.open("wb") as file:
                writer = TarWriter(file)
                for sample in samples:
                    rows += _add(writer, sample, name)
                    num_samples += bool(sample.arrays)
                digest, size = writer.finish(), writer.position
            done = {
                **facts,
                "name": name,
                "table": table,
                "samples": num_samples,
                "bytes": size if num_samples else 0,
                "sha256": digest if num_samples else None,
            }
            write_table(build / f"{name}.parquet", as_table(table, rows), done)
            if not num_samples:
                partial.unlink()
                final.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{final}: cannot be written ({error.strerror}). Free disk space and run the same command again: "
            "finished shards are kept."
        ) from error
    return done


def as_table(name: str, rows: Iterable[Row]) -> Any:
    """Return rows as a table of the kind `name`, with plain string columns."""
    rows = list(rows)
    fields = [(field.name, pa.string() if field.type == WORD else field.type) for field in schema_of(name)]
    return pa.table(
        {column: pa.array([row.get(column) for row in rows], type=dtype) for column, dtype in fields}
    )


def write_table(path: Path, table: Any, facts: Mapping[str, Any] | None = None) -> None:
    """Write a table atomically; the same rows give the same bytes."""
    words = [
        field.name for field in table.schema if pa.types.is_string(field.type) and field.name != "clip_id"
    ]
    metadata = {_RECORD_KEY: json.dumps(facts, sort_keys=True).encode()} if facts else None
    with atomic_file.atomic_path(path) as partial:
        pq.write_table(
            table.combine_chunks().replace_schema_metadata(metadata),
            partial,
            compression="zstd",
            use_dictionary=words,
            write_page_checksum=True,
        )


@dataclass
class _Record:
    """A record's facts."""

    name: FileName
    table: str
    digest: str
    samples: Count
    bytes: Count
    sha256: str | None


def read_record(path: Path) -> dict[str, Any] | None:
    """Return a record's facts; None without a record, or for a file of another kind."""
    try:
        with regular_file.opened(path) as file:
            data = (pq.read_metadata(file).metadata or {})[_RECORD_KEY]
        json_shape.parse(data, _Record)
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    facts: dict[str, Any] = json.loads(data)
    return facts


def file_facts(path: Path) -> dict[str, Any]:
    """Return a file's size and SHA-256."""
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically. Raises OSError."""
    atomic_file.put(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
