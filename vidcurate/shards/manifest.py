"""The manifest of a set of shards, and the lock of the one process that may write the set."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vidcurate.errors import ShardError, StageError
from vidcurate.shards.layout import LAYOUT

MANIFEST_NAME = "manifest.json"


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Hold the folder for this process; the lock goes with the process, however it ends."""
    handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StageError(f"{out}: another build-shards is writing here; wait until it ends.") from error
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child between fork and exec has it open, too
    finally:
        os.close(handle)


def read_manifest(out: Path) -> dict[str, Any] | None:
    """Return the manifest of the shards in `out`, None when there is none.

    Raises ShardError when there is a manifest.json that this package did not write.
    """
    path = out / MANIFEST_NAME
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ShardError(f"{path}: cannot be read as JSON. Choose another folder for the shards.") from error
    form = manifest.get("format") if isinstance(manifest, dict) else None
    if form != LAYOUT:
        raise ShardError(
            f"{path}: its format is {form!r}, this version reads {LAYOUT!r}. "
            "Build the shards again, into another folder."
        )
    return manifest
