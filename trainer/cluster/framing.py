"""Framing: a JSON document between two marks, safe from login script output."""

import json
from typing import Any

BEGIN, END = b"<<<trainer-answer ", b" trainer-answer>>>"


def marked(document: dict[str, Any]) -> bytes:
    """Return the document on one line, between marks that it cannot contain."""
    text = json.dumps(document).replace("<", "\\u003c").replace(">", "\\u003e")
    return b"\n" + BEGIN + text.encode() + END + b"\n"


def unmarked(data: bytes) -> dict[str, Any]:
    """Return the document that ends `data`, without its mark. Raises ValueError without a document."""
    _, mark, text = data.rpartition(BEGIN)
    document = json.loads(text) if mark else None
    if not isinstance(document, dict):
        raise ValueError("no document stands between the marks")
    return document
