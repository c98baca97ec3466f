"""Plan file: cells with the hashes of their clip ids, to rebuild a plan later.

A plan refers to rows of an index. After a change of the data, the order up to the change depends on clips
that the new index lacks or has at other rows; this file identifies clips by the 64-bit hash of their ids. The
file's name is the hash of its bytes, and the writer replaces it atomically. 8 bytes per clip.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vidcurate import rng
from vidcurate.errors import StateError
from vidcurate.sampler import mixture
from vidcurate.sampler.bucket_shapes import Bucket
from vidcurate.sampler.plan import Cell, Plan, Rows
from vidcurate.sampler.shard_blocks import Blocks
from vidcurate.storage import atomic_file, regular_file

FORMAT = "vidcurate-plan-1"
_KEY = b"vidcurate"
_HASH = pa.schema([("clip_hash", pa.uint64())])

FindRows = Callable[[rng.Words], Rows]


def _cell_facts(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "bucket": asdict(cell.bucket),
        "clips": len(cell.rows),
        "weight": cell.weight,
        "micro_batch_size": cell.micro_batch_size,
        "digest": cell.digest,
        "blocks": cell.blocks and {"sizes": cell.blocks.sizes.tolist(), "together": cell.blocks.together},
    }


def write_plan(folder: Path, plan: Plan, hashes: rng.Words) -> str:
    """Write a plan without changes and return the name of its file, without the extension.

    `hashes`: of the clip id of each row of the index. Raises StorageError.
    """
    facts = {
        "format": FORMAT,
        "algorithm_version": plan.algorithm_version,
        "seed": plan.seed,
        "micro_batches_per_step": plan.micro_batches_per_step,
        "fingerprint": plan.fingerprint,
        "run": plan.run,
        "phases": plan.phases,
        "spans": [(span.first, span.pieces) for span in plan.mixture.spans],
        "cells": [_cell_facts(cell) for cell in plan.cells],
    }
    rows = np.concatenate([cell.rows for cell in plan.cells])
    schema = _HASH.with_metadata({_KEY: json.dumps(facts).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"clip_hash": hashes[rows]}, schema=schema), sink, compression="none")
    data = sink.getvalue()
    name = rng.hash_bytes(data)
    atomic_file.write_bytes(folder / f"{name}.parquet", data)
    return name


def read_whole(path: Path, name: str) -> bytes:
    """Return the bytes of a file with the hash `name`. Raises StateError when missing or altered."""
    try:
        data = regular_file.read_bytes(path)
    except OSError as error:
        raise StateError(
            f"{path}: cannot read this file ({error.strerror}). It records changes of this run's data. Copy "
            "the journal folder of the run that made the changes."
        ) from error
    if rng.hash_bytes(data) != name:
        raise StateError(
            f"{path}: this file was altered after the run wrote it. Copy it again from the run that made it."
        )
    return data


def read_plan(folder: Path, name: str, find_rows: FindRows) -> Plan:
    """Return the plan that `write_plan` wrote; `find_rows` maps the hashes of clip ids to rows.

    Raises StateError when the file is missing, altered or of another format.
    """
    path = folder / f"{name}.parquet"
    data = read_whole(path, name)
    file = pq.ParquetFile(pa.BufferReader(data))
    facts = json.loads(file.metadata.metadata[_KEY])
    if facts["format"] != FORMAT:
        raise StateError(f"{path}: the format is {facts['format']!r}, this version reads {FORMAT!r}.")
    rows = find_rows(file.read().column("clip_hash").to_numpy())
    ends = np.cumsum([cell["clips"] for cell in facts["cells"]])
    cells = tuple(
        _cell(cell, part) for cell, part in zip(facts["cells"], np.split(rows, ends[:-1]), strict=True)
    )
    return Plan(
        algorithm_version=facts["algorithm_version"],
        seed=facts["seed"],
        cells=cells,
        micro_batches_per_step=facts["micro_batches_per_step"],
        fingerprint=facts["fingerprint"],
        mixture=_mixture(facts["spans"], facts["run"]),
        left_out={},
        notes=(),
        run=facts["run"],
        phases=tuple(facts["phases"]),
    )


def _cell(facts: dict[str, Any], rows: Rows) -> Cell:
    blocks = facts["blocks"]
    return Cell(
        name=facts["name"],
        bucket=Bucket(**facts["bucket"]),
        rows=rows,
        weight=facts["weight"],
        micro_batch_size=facts["micro_batch_size"],
        digest=facts["digest"],
        blocks=blocks and Blocks(np.array(blocks["sizes"], dtype=np.int64), blocks["together"]),
    )


def _mixture(spans: list[tuple[int, list[tuple[int, list[int]]]]], run: int) -> mixture.Mixture:
    return mixture.chained([(first, mixture.piecewise(pieces, run=run)) for first, pieces in spans])
