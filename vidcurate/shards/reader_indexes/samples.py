"""Samples of each shard from the index, for the index files of other readers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidcurate.errors import ShardError
from vidcurate.shards import index_file, tar_write

_PLACES = [
    "sample_key", "video_extension", "json_offset", "json_size", "video_offset", "video_size", "text_offset",
    "text_size",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplePart:
    """Member of a sample: its payload is `size` bytes at `offset` of the tar."""

    extension: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample of a shard: its parts in the order of the tar."""

    key: str
    parts: tuple[SamplePart, ...]

    @property
    def begin(self) -> int:
        """First byte of the first header."""
        return self.parts[0].offset - tar_write.BLOCK_BYTES

    @property
    def end(self) -> int:
        """First byte after the last part's padding."""
        return self.parts[-1].offset - tar_write.BLOCK_BYTES + tar_write.member_size(self.parts[-1].size)


def samples_of(folder: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[str, list[Sample]]]:
    """Yield (shard, its samples in order) for the shards of the manifest, in its order."""
    columns = index_file.read_columns(folder, ["shard", *_PLACES])
    shards = columns.column("shard").to_pylist()
    first = {name: row for row, name in reversed(list(enumerate(shards)))}
    for entry in manifest["shards"]:
        if entry["name"] not in first:
            raise ShardError(
                f"{folder / index_file.INDEX_NAME}: has no clip in {entry['name']}. Run `vidcurate verify`."
            )
        rows = columns.slice(first[entry["name"]], entry["clips"]).to_pylist()
        yield (
            entry["name"],
            [
                Sample(
                    row["sample_key"],
                    tuple(
                        SamplePart(extension, row[f"{part}_offset"], row[f"{part}_size"])
                        for part, extension in (
                            ("json", "json"),
                            ("video", row["video_extension"]),
                            ("text", "txt"),
                        )
                        if row[f"{part}_offset"] is not None
                    ),
                )
                for row in rows
            ],
        )
