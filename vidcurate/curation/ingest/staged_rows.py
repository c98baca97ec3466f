"""Rows that an adapter makes one by one: scratch files, opened as its rows.

The cells are text under the names of CELLS; own values are JSON Lines beside them, typed as any JSON table.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from vidcurate.curation.ingest.own_cells import own_cells
from vidcurate.curation.ingest.rows import CELLS, Rows
from vidcurate.curation.ingest.source import OWN, json_lines
from vidcurate.errors import StorageError

_BATCH_ROWS = 4096
_CAPTIONS = pa.list_(pa.struct([("name", pa.string()), ("text", pa.string())]))
_SCHEMA = pa.schema(
    [*((name, pa.string()) for name in (*CELLS, "bad", "caption_name")), ("captions", _CAPTIONS)]
)
_NUMBER = "\0row"  # no line of the own values is empty
_INT64 = range(-(2**63), 2**63)


def stage(rows: Iterable[Mapping[str, Any]], scratch: Path) -> Rows:
    """Return `rows` as an adapter's rows: cells as text, `bad`, captions, caption_name, and `own` as a dict.

    Raises StorageError.
    """
    path, own_path = scratch / "clips.parquet", scratch / "own.jsonl"
    batch: list[Mapping[str, Any]] = []
    has_own = False
    try:
        with pq.ParquetWriter(path, _SCHEMA) as writer, own_path.open("wb") as own_file:
            for number, row in enumerate(rows):
                own = row.get("own") or {}
                has_own = has_own or bool(own)
                own_file.write(json_line({_NUMBER: number, **own}))
                batch.append(row)
                if len(batch) == _BATCH_ROWS:
                    writer.write_table(pa.Table.from_pylist(batch, schema=_SCHEMA))
                    batch.clear()
            writer.write_table(pa.Table.from_pylist(batch, schema=_SCHEMA))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}).") from error
    frame = pl.scan_parquet(path)
    if not has_own:
        return Rows(frame=frame)
    source = json_lines(own_path, own_path)
    own_cells_found = own_cells(source, [_NUMBER])
    parts = source.frame.select(
        pl.nth(int(cell.part.removeprefix(OWN))).alias(cell.part) for cell in own_cells_found
    )
    return Rows(frame=pl.concat([frame, parts], how="horizontal"), own=own_cells_found)


def json_line(values: Mapping[str, Any]) -> bytes:
    """Return an object as a line of JSON that every reader takes: UTF-8, finite numbers, int64.

    Larger whole numbers become text; a number that is not finite becomes null.
    """
    text = json.dumps(_plain(values), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, int) and value not in _INT64:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
