"""JSON file that a stage writes beside its table: read and checked.

`levels.json`, `reconcile.json` and `dedup.json` are small, and have no hash. A reader answers to one that is
missing, cut, edited or of another form in one line.
"""

from pathlib import Path
from typing import TypeVar

from vidcurate.errors import TableError
from vidcurate.storage import json_shape, regular_file

T = TypeVar("T")


def read(path: Path, shape: type[T]) -> T | None:
    """Return what the file holds, as a `shape` (a dataclass, or a list of one); None when it is missing.

    Keys that the shape does not have are ignored. Raises TableError.
    """
    try:
        return json_shape.parse(regular_file.read_bytes(path), shape)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(path, str(error), is_json=not isinstance(error, json_shape.NotJson)) from error
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error


def require(path: Path, shape: type[T]) -> T:
    """Return what the file holds, as `read` does. Raises TableError for a damaged or missing file."""
    found = read(path, shape)
    if found is None:
        raise _damaged(path, "it is missing")
    return found


def _damaged(path: Path, reason: str, *, is_json: bool = True) -> TableError:
    what = "is not what its stage writes" if is_json else "cannot be read as JSON"
    return TableError(f"{path}: {what} ({reason}). Delete the table that its stage wrote, and run it again.")
