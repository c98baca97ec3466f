"""Trust in index.parquet: bounds of its numbers, digest against the manifest.

A light module: GPU machines import it (no polars, no av, no torch).
"""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from vidcurate.errors import ShardError
from vidcurate.shards.index_file import AGAIN, INDEX_NAME
from vidcurate.storage import regular_file
from vidcurate.storage.checksum import blake3_file

_MANIFEST = "manifest.json"
# Smallest and largest value that a clip can have; null stands for "not known" and passes.
BOUNDS: dict[str, tuple[float, float]] = {
    "width": (1, 1 << 16),  # px; FFmpeg decodes nothing wider
    "height": (1, 1 << 16),
    "fps": (1e-3, 1e4),  # frames/s: one frame in 17 minutes, a high-speed camera
    "num_frames": (1, 1 << 31),
    "video_offset": (0, 1 << 53),
    "video_size": (1, 1 << 53),
}


def check_bounds(table: Any, path: Path) -> None:
    """Raise ShardError for the first clip whose size, rate or place no clip can have.

    `table` is a pyarrow table with `clip_id` and any columns of BOUNDS, each in one chunk.
    """
    for name in BOUNDS.keys() & set(table.column_names):
        low, high = BOUNDS[name]
        column = table.column(name)
        inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))  # NaN is not inside
        if pa.types.is_floating(column.type):
            inside = pc.and_(inside, pc.is_finite(column))
        row = pc.index(inside, False).as_py()
        if row >= 0:
            value = column[row].as_py()
            shown = value if not isinstance(value, float) or math.isfinite(value) else str(value)
            raise ShardError(
                f"{path}: clip {table.column('clip_id')[row].as_py()!r} has {name} {shown}; it must lie in "
                f"{low:g} to {high:g}. {AGAIN}"
            )


def check_digest(folder: Path) -> None:
    """Raise ShardError where the manifest beside the index names another file; pass where there is none."""
    path = folder / INDEX_NAME
    try:
        manifest = json.loads(regular_file.read_bytes(folder / _MANIFEST))
        wanted = manifest["index"]["blake3"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ShardError(f"{folder / _MANIFEST}: names no digest of {INDEX_NAME}. {AGAIN}") from error
    found = blake3_file(path)
    if found != wanted:
        raise ShardError(
            f"{path}: is not the file that {_MANIFEST} names (BLAKE3 {found[:9]}…, not {str(wanted)[:9]}…). "
            f"Copy both again from where they were built; `vidcurate verify {folder}` looks at the rest."
        )
