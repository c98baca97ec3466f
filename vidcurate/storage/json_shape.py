"""Shape of a JSON file: types of its keys, and names of files in its own folder.

A file may be missing keys, cut, edited or forged. A name in it must not lead out of the folder that holds it.
"""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from vidcurate.errors import printable

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
_MOST_CHARACTERS = 300  # of a reason, which may hold keys of the file


class NotJson(ValueError):
    """Raised for data that is no JSON."""


def is_own_name(name: str) -> bool:
    """Return whether a name out of a file can be that of a file beside it."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


def _own_name(name: str) -> str:
    if not is_own_name(name):
        raise ValueError("is no name of a file in this folder")
    return name


FileName = Annotated[str, AfterValidator(_own_name)]
"""name of a file in the folder itself"""


def parse(data: bytes, shape: type[T]) -> T:
    """Return JSON as a `shape`: a dataclass, or a list of one; keys that it does not have are ignored.

    Raises NotJson, or ValueError for JSON of another shape, both in one line.
    """
    try:
        return TypeAdapter(shape).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = printable(f"{where}: {first['msg']}" if where else first["msg"])[:_MOST_CHARACTERS]
        raise (NotJson if first["type"] == "json_invalid" else ValueError)(reason) from error
