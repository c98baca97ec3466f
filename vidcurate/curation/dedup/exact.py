"""Exact duplicates: SHA-256 of files that share their size with another file."""

import hashlib
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.executor import map_clips
from vidcurate.executor.map_clips import Progress, no_progress

_BLOCK = 1 << 20


def hash_file(path: str) -> dict[str, Any]:
    """Return the SHA-256 of the file; null when the file cannot be read."""
    whole = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                whole.update(block)
    except OSError:
        return {"sha256": None}
    return {"sha256": whole.hexdigest()}


def to_read(files: pl.DataFrame) -> list[str]:
    """Return the paths of `files` (video_path, file_size_bytes, maybe packet_hash) that may have a copy."""
    known = [name for name in ("file_size_bytes", "packet_hash") if name in files.columns]
    distinct = files.unique("video_path", keep="first", maintain_order=True)
    alike = distinct.filter(
        pl.col("file_size_bytes").is_not_null() & (pl.len().over(known) > 1) & (pl.col("file_size_bytes") > 0)
    )
    return sorted(alike["video_path"].to_list())


def contents(
    paths: list[str], videos: Path, *, num_workers: int, parts: Path, progress: Progress = no_progress
) -> pl.DataFrame:
    """Return video_path, sha256 of each of `paths` (inside `videos`)."""
    rows = map_clips.map_clips(
        hash_file,
        [str(videos / path) for path in paths],
        on_lost=lambda path, loss: {"sha256": None},
        num_workers=num_workers,
        parts=parts,
        progress=progress,
        unit="files",
    )
    return pl.DataFrame(
        {"video_path": paths, "sha256": [row["sha256"] for row in rows]},
        schema={"video_path": pl.String, "sha256": pl.String},
    )
