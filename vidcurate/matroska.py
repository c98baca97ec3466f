"""Where a Matroska or WebM file says that it ends: the Segment element's size in its header.

A file that ends before it was cut short, which its frames do not tell until the last one is read.
Source: RFC 8794 (EBML) §4-6 and RFC 9559 (Matroska) §5.1.
"""

from typing import BinaryIO

_EBML = 0x1A45DFA3
_SEGMENT = 0x18538067


def _element_id(file: BinaryIO) -> int | None:
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    return int.from_bytes(first + rest, "big") if len(rest) == length - 1 else None


def _element_size(file: BinaryIO) -> int | None:
    """Return the size, or None where it is unknown (all ones: a live stream) or unreadable."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    if len(rest) != length - 1:
        return None
    bits = 7 * length
    value = int.from_bytes(first + rest, "big") & ((1 << bits) - 1)
    return None if value == (1 << bits) - 1 else value


def segment_end_bytes(file: BinaryIO) -> int | None:
    """Return the offset at which the Segment ends by its own size, or None where the file does not say."""
    file.seek(0)
    if _element_id(file) != _EBML:
        return None
    size = _element_size(file)
    if size is None:
        return None
    file.seek(size, 1)
    if _element_id(file) != _SEGMENT:
        return None
    size = _element_size(file)
    return None if size is None else file.tell() + size
