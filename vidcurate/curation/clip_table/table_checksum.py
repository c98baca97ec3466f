"""Checksum of a table: a CRC-32C of its file, in its own Parquet metadata.

polars reads pages without a checksum: of damaged bytes it makes other values, an error, a panic or an abort.
So each table is checked, once a process, before anything of it is read. The value stands under CHECKSUM in
the footer, eight hexadecimal digits, and is of all other bytes. It says nothing of a file that was forged.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from vidcurate.storage import regular_file
from vidcurate.storage.checksum import crc32c

CHECKSUM = "crc32c"
UNSEALED = "0" * 8
# The key, and the length of its value, as the footer has them (Thrift's compact protocol).
_BEFORE = b"\x18" + bytes([len(CHECKSUM)]) + CHECKSUM.encode() + b"\x18" + bytes([len(UNSEALED)])
_END = 8  # the length of the footer, and PAR1
_BYTES = 1 << 20


def seal(path: Path) -> None:
    """Write the checksum into a Parquet file whose metadata has CHECKSUM: UNSEALED. Raises OSError."""
    with path.open("r+b") as file:
        place = _place(file)
        if place is None:
            raise OSError(f"{path}: no place for the checksum in its footer")
        value = _value(file, place)
        file.seek(place)
        file.write(value)


def has_own_bytes(path: Path) -> bool | None:
    """Return whether the file's checksum is that of its bytes, None where it has none. Raises OSError.

    What was found for an unchanged file is cached in this process.
    """
    facts = path.stat()
    return _has_own(path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@lru_cache(maxsize=256)
def _has_own(path: Path, *_: int) -> bool | None:
    with regular_file.opened(path) as file:
        place = _place(file)
        if place is None:
            return None
        value = _value(file, place)
        file.seek(place)
        return file.read(len(value)) == value


def _place(file: BinaryIO) -> int | None:
    """Return the offset of the checksum in the file; None where its footer has none."""
    size = file.seek(0, os.SEEK_END)
    if size < _END:
        return None
    file.seek(size - _END)
    length = int.from_bytes(file.read(4), "little")
    start = size - _END - length
    if start < 0:
        return None
    file.seek(start)
    found = file.read(length).rfind(_BEFORE)  # the metadata are behind all that a table's owner can name
    return None if found < 0 else start + found + len(_BEFORE)


def _value(file: BinaryIO, place: int) -> bytes:
    """Return the checksum of all bytes but those at `place`, as it is written there."""
    file.seek(0)
    found, left = 0, place
    while data := file.read(min(_BYTES, left)):
        found, left = crc32c(data, found), left - len(data)
    file.seek(place + len(UNSEALED))
    while data := file.read(_BYTES):
        found = crc32c(data, found)
    return b"%08x" % found
