"""Atomic writes of small files: write a hidden file beside, then rename. Stdlib only."""

import os
from contextlib import suppress
from pathlib import Path

from vidcurate.errors import StorageError


def replace_text(path: Path, text: str, *, by: str = "", is_flushed: bool = False) -> Path:
    """Write a file atomically and return its path. Raises OSError.

    `by` distinguishes processes that may write the same file at once; `is_flushed`: the text survives a power
    cut.
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
    """Write a file as `replace_text` does, and create its folder. Raises StorageError, naming the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return replace_text(path, text, by=by, is_flushed=is_flushed)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error
