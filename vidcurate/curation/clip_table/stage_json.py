"""JSON file that a stage writes beside its table: read and checked.

`levels.json`, `funnel.json`, `reconcile.json` and `dedup.json` are small, and have no hash. A reader answers
to one that is missing, cut, edited or of another form in one line.
"""

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from vidcurate.errors import TableError, printable
from vidcurate.storage import regular_file

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=1 << 53)]


def read(path: Path, shape: type[T]) -> T | None:
    """Return what the file holds, as a `shape` (a dataclass, or a list of one); None when it is missing.

    Keys that the shape does not have are ignored. Raises TableError.
    """
    try:
        return TypeAdapter(shape).validate_json(regular_file.read_bytes(path), strict=True)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise _damaged(path, reason, is_json=first["type"] != "json_invalid") from error
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
    return TableError(
        f"{path}: {what} ({printable(reason)[:300]}). Delete the table that its stage wrote, and run it "
        "again."
    )
