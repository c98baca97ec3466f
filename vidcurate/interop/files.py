"""A small file, written whole or not at all, and not again when it is there."""

from pathlib import Path

from vidcurate import table


def put(path: Path, data: bytes) -> bool:
    """Write a file unless it is there with these bytes; say whether it was written. Raises OSError."""
    if path.is_file() and path.read_bytes() == data:
        return False
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    table.replace(partial, path)
    return True
