"""Manifest of a set of shards, and the lock that allows one writer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vidcurate.errors import ShardError, StageError
from vidcurate.shards.layout import LAYOUT
from vidcurate.storage import lock

MANIFEST_NAME = "manifest.json"
# Formats that this version reads; format 2 had hashes as numbers, and no key of a clip without a value.
_READABLE = ("vidcurate-shards-2", LAYOUT)


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Lock the folder for this process; the kernel releases the lock when the process ends."""

    def busy(holder: str) -> StageError:
        return StageError(f"{out}: another build-shards is writing here; wait until it ends.")

    with lock.exclusive(out, wait=False, busy=busy):
        yield


def read_manifest(out: Path) -> dict[str, Any] | None:
    """Return the manifest of the shards in `out`, None when the file is missing.

    Raises ShardError for a manifest.json that this package did not write.
    """
    path = out / MANIFEST_NAME
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ShardError(f"{path}: cannot be read as JSON. Choose another folder for the shards.") from error
    form = manifest.get("format") if isinstance(manifest, dict) else None
    if form not in _READABLE:
        raise ShardError(
            f"{path}: its format is {form!r}, this version reads {LAYOUT!r}. "
            "Build the shards again, into another folder."
        )
    return manifest
