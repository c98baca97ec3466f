"""Rows that Python makes one by one, kept on disk in batches instead of in memory."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vidcurate.errors import StorageError
from vidcurate.ingest.rows import CELLS

_BATCH_ROWS = 4096
_SCHEMA = pa.schema([(name, pa.string()) for name in (*CELLS, "bad")])


def stage(rows: Iterable[Mapping[str, str | None]], path: Path) -> None:
    """Write `rows` (cells as text, `bad` among them) to a Parquet file. Raises StorageError."""
    batch: list[Mapping[str, str | None]] = []
    try:
        with pq.ParquetWriter(path, _SCHEMA) as writer:
            for row in rows:
                batch.append(row)
                if len(batch) == _BATCH_ROWS:
                    writer.write_table(pa.Table.from_pylist(batch, schema=_SCHEMA))
                    batch.clear()
            writer.write_table(pa.Table.from_pylist(batch, schema=_SCHEMA))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}).") from error
