"""Manifest of a set of shards, and the lock that allows one writer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vidcurate.errors import ShardError, StageError, StorageError
from vidcurate.shards.layout import LAYOUT
from vidcurate.storage import lock, regular_file
from vidcurate.storage.json_shape import is_own_name

MANIFEST_NAME = "manifest.json"
# Formats that this version reads; format 2 had hashes as numbers, and no key of a clip without a value.
_READABLE = ("vidcurate-shards-2", LAYOUT)
_MOST = 1 << 53  # of a count or a size in bytes
_PRINTS: dict[str, Any] = {"structure_fingerprint": str, "content_fingerprint": str}
_REQUEST = {"spec": dict, "inputs": dict}
_WHOLE = {**_PRINTS, **_REQUEST, "totals": dict, "index": dict, "shards": list, "failed": list}
_TOTALS = {"rows_written": int, "bytes": int}
_FILE = {"name": str, "bytes": int, "blake3": str}
_OR_NULL: dict[str, Any] = {"video_path": (str, type(None)), "file_size_bytes": (int, type(None))}
_FAILED = {"shard": str, "clip_id": str, "kind": str, "reason": str, **_OR_NULL}
_SHARD = {**_FILE, **_PRINTS, "fold": str, "level": int, "clips": int, "plan_sha256": str}


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Lock the folder for this process; the kernel releases the lock when the process ends."""

    def busy(holder: str) -> StageError:
        return StageError(f"{out}: another build-shards is writing here; wait until it ends.")

    with lock.exclusive(out, wait=False, busy=busy):
        yield


def read_manifest(out: Path) -> dict[str, Any] | None:
    """Return the manifest of the shards in `out`, None when the file is missing.

    Raises ShardError for a manifest.json that this package did not write, or that was edited or cut,
    StorageError for one that cannot be read.
    """
    path = out / MANIFEST_NAME
    try:
        manifest: dict[str, Any] = json.loads(regular_file.read_bytes(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{path}: cannot be read as JSON. Choose another folder for the shards.") from error
    form = manifest.get("format") if isinstance(manifest, dict) else None
    if form not in _READABLE:
        raise ShardError(
            f"{path}: its format is {form!r}, this version reads {LAYOUT!r}. "
            "Build the shards again, into another folder."
        )
    for where, entry, fields in _entries(manifest):
        for name, kind in fields.items():
            value: Any = entry.get(name) if isinstance(entry, dict) else None
            if (
                type(value) not in (kind if isinstance(kind, tuple) else (kind,))
                or (type(value) is int and not 0 <= value < _MOST)
                or (name == "name" and not is_own_name(value))
                or (type(value) is str and value.encode("utf-8", "ignore").decode() != value)  # half a pair
            ):
                raise ShardError(
                    f"{path}: {where}{name} is {json.dumps(value)[:60]}: the file was edited or cut. Copy it "
                    "again from where the shards were built."
                )
    return manifest


def _entries(manifest: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield (place, entry, key → type) for the parts that other modules read; the lists are checked first."""
    yield "", manifest, _WHOLE
    yield "totals.", manifest["totals"], _TOTALS
    yield "index.", manifest["index"], _FILE
    for number, entry in enumerate(manifest["shards"]):
        yield f"shards.{number}.", entry, _SHARD
    for number, entry in enumerate(manifest["failed"]):
        yield f"failed.{number}.", entry, _FAILED
    if "extensions" in manifest:
        yield "", manifest, {"extensions": dict}
        yield "extensions.", manifest["extensions"], dict.fromkeys(manifest["extensions"], int)
    if "integrity_levels" in manifest:
        yield "", manifest, {"integrity_levels": dict}
        yield (
            "integrity_levels.",
            manifest["integrity_levels"],
            dict.fromkeys(manifest["integrity_levels"], int),
        )
