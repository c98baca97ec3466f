"""Zip archive that holds no more than its own bytes, checked before it is read.

torch's weights are zip archives of stored entries, and its reader inflates compressed ones, too: 6 MB of
zeros compressed are 6 GB of memory. So an archive may have stored entries alone, whose sizes fit into it.
"""

import io
import zipfile
from pathlib import Path
from typing import BinaryIO

from vidcurate.storage import regular_file

_BEGIN = b"PK"
ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError)
"""raised by zipfile: damage, an unknown version, a name marked as UTF-8 that is not UTF-8"""


class Slice(io.RawIOBase):
    """The bytes `offset` to `offset + size` of an open file, as a file; reads seek in that file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size, self._at = file, offset, size, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position, inside the slice or at its end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, min(base + offset, self._size))
        return self._at

    def tell(self) -> int:
        """Return the position in the slice."""
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Fill `buffer` from the position on; return the number of bytes."""
        self._file.seek(self._offset + self._at)
        part = memoryview(buffer).cast("B")[: self._size - self._at]
        count = self._file.readinto(part) if len(part) else 0  # type: ignore[attr-defined]
        self._at += count
        return int(count)


def require_stored(file: BinaryIO | Slice, size: int) -> None:
    """Raise ValueError for a zip archive of `size` bytes with compressed entries, or larger than itself.

    A file of another kind passes. Leaves the file at its start.
    """
    file.seek(0)
    is_zip = file.read(len(_BEGIN)) == _BEGIN
    try:
        entries = zipfile.ZipFile(file).infolist() if is_zip else []
    except ZIP_ERRORS as error:
        raise ValueError(f"it is a damaged zip archive ({error})") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("an entry of it is compressed, which torch never writes")
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise ValueError(f"its entries hold {total:,} bytes, and it has {size:,}")
    file.seek(0)


def require_stored_file(path: Path) -> None:
    """Check the file at `path` as `require_stored` does. Raises ValueError, OSError."""
    with regular_file.opened(path) as file:
        require_stored(file, path.stat().st_size)
