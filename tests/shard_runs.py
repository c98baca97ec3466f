"""Shard runs: a filtered table with its videos (random bytes), and shards built from the table."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vidcurate.curation.clip_table import schema, table
from vidcurate.shards.build import ShardSummary, run_build_shards
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.reader_indexes import export as reader_indexes_export

SMALL = ShardSpec(max_clips=7, max_bytes=60_000)
MP4_HEAD = (24).to_bytes(4) + b"ftypisom" + bytes(4) + b"isommp42"
IDS = ["12.1", "12.10", "a b/ü", "日本", "plain_id", "x" * 120]


def rows(num_clips: int = 40) -> list[dict[str, Any]]:
    """Return a table: three levels, two folds, one clip in ten rejected, ids that are unsafe keys."""
    found = []
    for i in range(num_clips):
        rejected = i % 10 == 9
        clip_id = IDS[i] if i < len(IDS) else f"clip{i}"
        found.append(
            {
                "clip_id": clip_id,
                "sample_key": schema.sample_key(clip_id),
                "source_dataset": "openvid",
                "source_id": f"source{i // 3}",
                "video_path": f"sub{i % 3}/video {i}.{['mp4', 'MKV', 'webm'][i % 3]}",
                "caption": f"caption {i} – ünï ☂",
                "width": 640,
                "height": 360,
                "fps": 29.97,
                "num_frames": 100 + i,
                "duration_seconds": (100 + i) / 29.97,
                "codec": "h264",
                "noun_count": i % 13,
                "aesthetic_score": float("nan") if i == 3 else i / 7,
                "width_from_metadata": 1,
                "probe_status": "ok",
                "integrity_level": "keyframes",
                "is_kept": not rejected,
                "reject_rule": "caption_words" if rejected else None,
                "level": None if rejected else 1 + i % 3,
                "fold": None if rejected else ("validation" if i % 8 == 0 else "train"),
            }
        )
    return found


def make_run(
    folder: Path, table_rows: list[dict[str, Any]], sizes: Callable[[int], int] | None = None
) -> Path:
    """Write the videos (random bytes) and RUN/split.parquet; return the run folder.

    A head of MP4 lets FFmpeg see at once that there is no video; in bytes of no format it looks for long.
    """
    videos = folder / "videos"
    rng = np.random.default_rng(0)
    for i, row in enumerate(table_rows):
        path = videos / row["video_path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            size = sizes(i) if sizes else 100 + 977 * i % 9000
            path.write_bytes((MP4_HEAD + (size - 24).to_bytes(4) + b"mdat" + rng.bytes(size))[:size])
        row["file_size_bytes"] = path.stat().st_size
    return write_table(folder / "run", table_rows)


def write_table(run: Path, table_rows: list[dict[str, Any]], stage: str = "split") -> Path:
    frame = pl.DataFrame(table_rows, infer_schema_length=None)
    known = {name: column.dtype for name, column in schema.COLUMNS.items()}
    frame = frame.with_columns(pl.col(name).cast(known[name]) for name in frame.columns if name in known)
    table.write(frame, table.stage_path(run, stage), table.Provenance(stage=stage, settings={}, inputs={}))
    return run


def build(
    folder: Path, spec: ShardSpec = SMALL, *, workers: int = 1, out: str = "shards", **more: Any
) -> ShardSummary:
    return run_build_shards(
        folder / "run", spec, videos=folder / "videos", out=folder / out, num_workers=workers, **more
    )


def build_for_readers(folder: Path) -> Path:
    """Build the shards of `rows` with the index files of every reader; return their folder."""
    make_run(folder, rows())
    build(folder)
    reader_indexes_export.export(folder / "shards", reader_indexes_export.READERS)
    return folder / "shards"


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
