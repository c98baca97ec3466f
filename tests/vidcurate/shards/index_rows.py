"""Rows of an index and the shards that they describe, for tests."""

from pathlib import Path
from typing import Any

from vidcurate.storage.checksum import crc32c

SHARD = "train-level1-{:06d}.tar"


def columns(num_clips: int = 12, per_shard: int = 5, **changed: Any) -> dict[str, Any]:
    """Return the columns of an index whose clip i is 10 + i bytes at 1000 · (its place in the shard)."""
    numbers = range(num_clips)
    ids = [f"clip_{i:07d}" for i in numbers]
    rows: dict[str, Any] = {
        "sample_key": ids,
        "clip_id": ids,
        "source_id": [f"source_{i // 2}" for i in numbers],
        "source_dataset": ["openvid"] * num_clips,
        "fold": ["train"] * num_clips,
        "level": [1] * num_clips,
        "caption": [f"caption {i}, ünï ☂" for i in numbers],
        "shard": [SHARD.format(i // per_shard) for i in numbers],
        "json_offset": [1000 * (i % per_shard) for i in numbers],
        "json_size": [2] * num_clips,
        "video_offset": [1000 * (i % per_shard) + 100 for i in numbers],
        "video_size": [10 + i for i in numbers],
        "video_extension": ["mp4"] * num_clips,
        "video_crc32c": [crc32c(bytes([i % 256]) * (10 + i)) for i in numbers],
        "json_crc32c": [crc32c(b"{}")] * num_clips,
        "width": [640] * num_clips,
        "height": [360] * num_clips,
        "fps": [29.97] * num_clips,
        "num_frames": [100 + i for i in numbers],
        "duration_seconds": [3.5] * num_clips,
        "noun_count": list(numbers),
    }
    return rows | changed


def write_shards(folder: Path, rows: dict[str, Any]) -> None:
    for shard in sorted(set(rows["shard"])):
        data = bytearray(8000)
        for i, name in enumerate(rows["shard"]):
            if name == shard:
                data[rows["json_offset"][i] : rows["json_offset"][i] + 2] = b"{}"
                at = rows["video_offset"][i]
                data[at : at + 10 + i] = bytes([i % 256]) * (10 + i)
        (folder / shard).write_bytes(data)
