"""An answer between two marks, so that what a login script prints around it does no harm."""

import json
from typing import Any

BEGIN, END = b"<<<trainer-answer ", b" trainer-answer>>>"


def marked(document: dict[str, Any]) -> bytes:
    """Return the document on a line of its own, between the marks, which cannot stand inside it."""
    text = json.dumps(document).replace("<", "\\u003c").replace(">", "\\u003e")
    return b"\n" + BEGIN + text.encode() + END + b"\n"


def unmarked(data: bytes) -> dict[str, Any]:
    """Return the document that ends where `data` ends, without the mark. Raises ValueError for none."""
    _, mark, text = data.rpartition(BEGIN)
    document = json.loads(text) if mark else None
    if not isinstance(document, dict):
        raise ValueError("no document stands between the marks")
    return document
