"""Write reproducible tar files: plain USTAR, independent of machine and clock.

Time 0, owner 0, mode 0644, regular files only, names of at most 99 ASCII characters, no PAX or GNU records:
every WebDataset reader accepts this (webdataset, wids, Energon and DALI disagree on the rest). The end is two
zero blocks, without the padding to 10,240 bytes that tape drives needed.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

from vidcurate.errors import ShardError
from vidcurate.storage.checksum import crc32c

BLOCK_BYTES = 512
END_BYTES = 2 * BLOCK_BYTES
MAX_MEMBER_BYTES = 8 * 1024**3 - 1  # eleven octal digits
MAX_NAME_BYTES = 99
# The fields of a USTAR header (POSIX.1-1988) that are the same in every one of ours, in its order.
_OWNER = b"0000644\0" + b"0000000\0" * 2  # mode, uid, gid
_TIME = b"00000000000\0"
_TYPE = b"0" + bytes(100) + b"ustar\x0000" + bytes(64 + 16 + 155 + 12)  # link, magic, names, device, prefix
_TYPE_SUM = sum(_TYPE)


def member_size(size_bytes: int) -> int:
    """Return the size of a member in the tar in bytes: header, payload and padding."""
    return BLOCK_BYTES + -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def header(name: str, size_bytes: int) -> bytes:
    """Return the 512 bytes before a payload of `size_bytes`.

    Raises ShardError for a name or a size that some reader does not accept.
    """
    if not name or name[0] == "." or len(name) > MAX_NAME_BYTES or not name.isascii() or " " in name:
        raise ShardError(
            f"{name!r} cannot be a tar member: the name needs 1 to {MAX_NAME_BYTES} ASCII characters, "
            "no space and no leading dot."
        )
    if size_bytes > MAX_MEMBER_BYTES:
        raise ShardError(
            f"{name} has {size_bytes} bytes; a tar member takes {MAX_MEMBER_BYTES}. Cut it into clips."
        )
    block = name.encode().ljust(100, b"\0") + b"%b%011o\0%b" % (_OWNER, size_bytes, _TIME)
    total = sum(block) + 8 * ord(" ") + _TYPE_SUM  # the checksum counts as spaces
    return block + b"%06o\0 " % total + _TYPE


@dataclass(frozen=True, slots=True)
class Mark:
    """Position in a tar being written, to which `TarWriter.roll_back` can return."""

    position: int
    digest: Any


class TarWriter:
    """Writer of one tar to an open file, with the position and the digest of all bytes so far.

    `file` is a binary file opened for writing at its start, `digest` a hash object as in hashlib (default:
    SHA-256). Raises the file's OSError; never closes the file or flushes it to disk.
    """

    def __init__(self, file: BinaryIO, digest: Any = None) -> None:
        self._file = file
        self._digest = hashlib.sha256() if digest is None else digest
        self.position = 0

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)
        self.position += len(data)

    def _pad(self) -> None:
        self._write(bytes(-self.position % BLOCK_BYTES))

    def add(self, name: str, payload: bytes) -> int:
        """Write a member and return the offset of its payload. Raises ShardError as `header` does."""
        self._write(header(name, len(payload)))
        offset = self.position
        self._write(payload)
        self._pad()
        return offset

    def add_chunks(self, name: str, size_bytes: int, chunks: Iterable[bytes]) -> tuple[int, int]:
        """Write a member in chunks; return the offset of its payload and the payload's CRC-32C.

        Raises ShardError when the chunks do not add up to `size_bytes`, and whatever `chunks` raises; the
        tar then ends in the middle of the member, and the caller must call `roll_back`.
        """
        self._write(header(name, size_bytes))
        offset, crc = self.position, 0
        for chunk in chunks:
            crc = crc32c(chunk, crc)
            self._write(chunk)
        if self.position - offset != size_bytes:
            raise ShardError(f"{name}: expected {size_bytes} bytes, got {self.position - offset}.")
        self._pad()
        return offset, crc

    def mark(self) -> Mark:
        """Return the current position."""
        return Mark(self.position, self._digest.copy())

    def roll_back(self, mark: Mark) -> None:
        """Remove everything written since `mark`."""
        self._file.seek(mark.position)
        self._file.truncate()
        self._digest = mark.digest.copy()
        self.position = mark.position

    def finish(self) -> str:
        """Write the end of the tar and return the digest of the file, as hex."""
        self._write(bytes(END_BYTES))
        return str(self._digest.hexdigest())
