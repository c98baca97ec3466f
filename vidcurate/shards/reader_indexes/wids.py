"""wids index file index.json, for the random-access reader of WebDataset."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidcurate.executor.map_shards import in_threads
from vidcurate.storage import json_shape, regular_file
from vidcurate.storage.atomic_file import put, write_if_absent

NAME = "index.json"
_PROGRESS = ".index.json.partial.jsonl"


@dataclass(frozen=True, slots=True)
class _Entry:
    url: str
    blake3: str
    md5sum: str


@dataclass(frozen=True, slots=True)
class _Index:
    shardlist: list[_Entry]


def known_md5(folder: Path) -> dict[tuple[str, str], str]:
    """Return (shard, BLAKE3) → MD5 of an earlier run, from its progress file or from index.json."""
    entries: list[_Entry] = []
    with suppress(OSError, ValueError):  # none yet, or another program's: all is read anew
        entries += json_shape.parse(regular_file.read_bytes(folder / NAME), _Index).shardlist
    with suppress(OSError):
        for line in regular_file.read_bytes(folder / _PROGRESS).splitlines():
            with suppress(ValueError):  # the line that a kill cut
                entries.append(json_shape.parse(line, _Entry))
    return {(entry.url, entry.blake3): entry.md5sum for entry in entries}


def _md5(path: Path) -> tuple[str, str]:
    with path.open("rb") as file:
        return path.name, hashlib.file_digest(file, "md5").hexdigest()


def to_json(manifest: Mapping[str, Any], md5: Mapping[str, str]) -> bytes:
    """Return index.json. `blake3`, our addition, ties each MD5 to the bytes of its shard."""
    shards = [
        {
            "url": entry["name"], "md5sum": md5[entry["name"]], "nsamples": entry["clips"],
            "filesize": entry["bytes"], "blake3": entry["blake3"],
        }
        for entry in manifest["shards"]
    ]  # fmt: skip
    whole = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "vidcurate", "shardlist": shards}
    return (json.dumps(whole, indent=2) + "\n").encode()


def put_index(
    folder: Path, manifest: Mapping[str, Any], num_workers: int, progress: Callable[[int], None]
) -> bool:
    """Write index.json unless it is right; return whether it was written. Raises OSError."""
    known = known_md5(folder)
    sizes = {entry["name"]: entry["bytes"] for entry in manifest["shards"]}
    digests = {entry["name"]: entry["blake3"] for entry in manifest["shards"]}
    md5 = {name: known[name, digest] for name, digest in digests.items() if (name, digest) in known}
    todo = [folder / name for name in digests if name not in md5]

    def line(name: str) -> str:
        return json.dumps({"url": name, "blake3": digests[name], "md5sum": md5[name]}) + "\n"

    put(folder / _PROGRESS, "".join(map(line, md5)), is_flushed=False)  # anew: it may be a link or a pipe
    with (folder / _PROGRESS).open("a", encoding="utf-8") as file:
        for name, value in in_threads(_md5, todo, num_workers):
            md5[name] = value
            file.write(line(name))
            file.flush()
            progress(sizes[name])
    written = write_if_absent(folder / NAME, to_json(manifest, md5))
    (folder / _PROGRESS).unlink()
    return written
