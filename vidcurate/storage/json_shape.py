"""Shape of JSON: types of its keys, and names of files in the folder itself.

A file may be edited, cut or forged. A name in it must not lead out of the folder that holds it.
"""

import json
from typing import Annotated

from pydantic import AfterValidator, TypeAdapter, ValidationError


def _own_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise ValueError("is no name of a file in this folder")
    return name


FileName = Annotated[str, AfterValidator(_own_name)]
"""name of a file in the folder itself"""


def check_shape(value: object, shape: type) -> None:
    """Raise ValueError, in one line, for JSON that is not of a dataclass's shape; it may have more keys."""
    try:
        TypeAdapter(shape).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(f"{where}: {first['msg']}") from error
