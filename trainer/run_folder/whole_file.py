"""Small files that appear whole or not at all: filled beside their place, then renamed. Stdlib only."""

import os
from contextlib import suppress
from pathlib import Path

from vidcurate.errors import StorageError


def write_beside(path: Path, text: str, *, by: str = "", is_flushed: bool = False) -> Path:
    """Write a file and return its path. Raises OSError.

    `by` tells apart those who may write the same file at once; `is_flushed`: it outlives a loss of power.
    """
    partial = path.with_name(f".{path.name}{f'.{by}' if by else ''}.partial")
    try:
        with partial.open("w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            if is_flushed:
                file.flush()
                os.fsync(file.fileno())
        return partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str, *, by: str = "", is_flushed: bool = False) -> Path:
    """Write a file as `write` does, its folder too. Raises StorageError, naming it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_beside(path, text, by=by, is_flushed=is_flushed)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error
