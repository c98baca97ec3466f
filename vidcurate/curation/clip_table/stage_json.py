"""JSON file that a stage writes beside its table: read and checked.

`levels.json`, `funnel.json`, `reconcile.json` and `dedup.json` are small, and have no hash. A reader answers
to one that is missing, cut or of another form in one line.
"""

import json
from pathlib import Path
from typing import Any

from vidcurate.errors import TableError


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object at `path`, None when the file is missing. Raises TableError."""
    found = _read(path)
    if found is not None and not isinstance(found, dict):
        raise _damaged(path, "it is no JSON object")
    return found


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Return the list of JSON objects at `path`, empty when the file is missing. Raises TableError."""
    found = _read(path)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _damaged(path, "it is no list of JSON objects")
    return found


def require_object(path: Path) -> dict[str, Any]:
    """Return the JSON object at `path`. Raises TableError for a damaged or missing file."""
    found = read_object(path)
    if found is None:
        raise _damaged(path, "it is missing")
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> TableError:
    return TableError(
        f"{path}: cannot be read as JSON ({reason}). Delete the table that its stage wrote, and run it again."
    )
