"""Read one clip from its shard: one seek, one read, and a checksum comparison."""

import json
from typing import Any

from vidcurate.errors import ShardError
from vidcurate.shards.index import Index
from vidcurate.storage.checksum import crc32c


def _place(index: Index, row: int) -> str:
    return f"{index.shard_place(row)}: clip {index.word('clip_id', row)!r}"


def _read_at(index: Index, row: int, offset: int, size: int) -> bytes:
    shard = index.shards[index.shard_number[row]]
    if index.remote:
        return index.remote.read(shard, offset, size)
    try:
        with (index.folder / shard).open("rb", buffering=0) as file:
            file.seek(offset)
            parts: list[bytes] = []
            while size and (data := file.read(size)):
                parts.append(data)
                size -= len(data)
            return b"".join(parts)
    except OSError as error:
        raise ShardError(f"{_place(index, row)} cannot be read ({error.strerror}).") from error


def _read_checked(index: Index, row: int, part: str) -> bytes:
    offset, size, known = (index.at(f"{part}_{what}", row) for what in ("offset", "size", "crc32c"))
    data = _read_at(index, row, offset, size)
    found = crc32c(data)
    if len(data) != size or found != known:
        raise ShardError(
            f"{_place(index, row)} has {len(data)} bytes of {part} with CRC-32C {found:08x}, the index says "
            f"{size} and {known:08x}. Build or copy this shard again."
        )
    return data


def read_clip_bytes(index: Index, row: int) -> bytes:
    """Return the bytes of one clip's video, after comparing the CRC-32C with the index.

    Raises ShardError, naming shard and clip, when the file cannot be read or holds other bytes.
    """
    return _read_checked(index, row, "video")


def read_clip_facts(index: Index, row: int) -> dict[str, Any]:
    """Return the JSON of one clip. Raises ShardError, naming shard and clip, when it is missing."""
    data = _read_checked(index, row, "json")
    try:
        facts: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise ShardError(
            f"{_place(index, row)} has no readable JSON there. Build or copy this shard again."
        ) from error
    return facts
