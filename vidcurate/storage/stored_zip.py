"""Zip archive that holds no more than its own bytes, checked before it is read.

torch's weights are zip archives of stored entries, and its reader inflates compressed ones, too: 6 MB of
zeros compressed are 6 GB of memory. So an archive may have stored entries alone, whose sizes fit into it.
torch's reader (miniz) finds the list of entries by the offsets at the archive's end, zipfile by its size, and
miniz takes no account of letter case: an archive whose two readers would see other entries is refused.
"""

import io
import zipfile
from pathlib import Path
from typing import BinaryIO

from vidcurate.storage import regular_file

_BEGIN = b"PK"
_END, _LOCATOR = b"PK\5\6", b"PK\6\7"
_END_BYTES, _LOCATOR_BYTES, _RECORD_BYTES = 22, 20, 56
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
    if file.read(len(_BEGIN)) != _BEGIN:
        file.seek(0)
        return
    try:
        archive = zipfile.ZipFile(file)
    except ZIP_ERRORS as error:
        raise ValueError(f"it is a damaged zip archive ({error})") from error
    entries = archive.infolist()
    if archive.start_dir != _directory_start(file, size):
        raise ValueError("its list of entries is not where its end says")
    if len({entry.filename.lower() for entry in entries}) < len(entries):
        raise ValueError("two of its entries have one name")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("an entry of it is compressed, which torch never writes")
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise ValueError(f"its entries hold {total:,} bytes, and it has {size:,}")
    file.seek(0)


def _directory_start(file: BinaryIO | Slice, size: int) -> int:
    """Return where an archive's end says that its list of entries starts; -1 for an end of another form.

    Source: PKWARE's APPNOTE 6.3, 4.3.14 to 4.3.16.
    """
    file.seek(max(0, size - _END_BYTES - _LOCATOR_BYTES - _RECORD_BYTES))
    tail = file.read()
    end, locator = tail[-_END_BYTES:], tail[-_END_BYTES - _LOCATOR_BYTES : -_END_BYTES]
    if not end.startswith(_END):
        return -1
    if not locator.startswith(_LOCATOR):
        return int.from_bytes(end[16:20], "little")
    is_before = int.from_bytes(locator[8:16], "little") == size - len(tail)
    return int.from_bytes(tail[48:56], "little") if is_before else -1


def require_stored_file(path: Path) -> None:
    """Check the file at `path` as `require_stored` does. Raises ValueError, OSError."""
    with regular_file.opened(path) as file:
        require_stored(file, path.stat().st_size)
