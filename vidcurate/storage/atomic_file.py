"""A small file, written whole or not at all, and not again when it is there."""

import json
import os
from pathlib import Path
from typing import Any

from vidcurate.errors import StorageError


def write_if_absent(path: Path, data: bytes) -> bool:
    """Write a file unless it is there with these bytes; say whether it was written. Raises OSError."""
    if path.is_file() and path.read_bytes() == data:
        return False
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    replace(partial, path)
    return True


def fsync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(partial: Path, final: Path) -> None:
    """Flush `partial`, then give it its final name: readers see the old file or the whole new one."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(final)
    fsync_folder(final.parent)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all. Raises StorageError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written ({error.strerror or error}).") from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path`, whole or not at all. Raises StorageError."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
