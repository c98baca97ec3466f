"""Read an untrusted tar: compare every header with what `tar_write.header` writes.

A tar from elsewhere may name files outside the folder, contain links, claim wrong sizes, or hide members
behind extended headers; readers disagree on all of these. `members` yields the valid members and reports what
is wrong with the others. It extracts nothing and never holds more than a piece of a file in memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from vidcurate.errors import ShardError
from vidcurate.shards import tar_write
from vidcurate.storage.file_window import FileBytes

# POSIX.1-1988 (USTAR) type flags, and the extended ones of pax and GNU tar.
_TYPES = {
    b"\0": "an old-style file", b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device",
    b"4": "a block device", b"5": "a directory", b"6": "a named pipe", b"7": "a contiguous file",
    b"x": "a PAX header", b"g": "a global PAX header", b"L": "a GNU long name", b"K": "a GNU long link",
    b"S": "a GNU sparse file", b"M": "a GNU continuation", b"V": "a GNU volume label",
    b"D": "a GNU directory dump",
}  # fmt: skip
# Name, first byte and end of the fields that are the same in all our headers (POSIX ustar).
_FIELDS = [
    ("mode", 100, 108), ("uid", 108, 116), ("gid", 116, 124), ("mtime", 136, 148), ("link name", 157, 257),
    ("magic", 257, 265), ("user name", 265, 297), ("group name", 297, 329), ("device", 329, 345),
    ("name prefix", 345, 500), ("padding", 500, 512),
]  # fmt: skip
_TEMPLATE = tar_write.header("name.json", 0)

_CHUNK_BYTES = 1 << 20

Report = Callable[[str, str], None]  # (member or "", what is wrong)


@dataclass(frozen=True, slots=True)
class Member:
    """File in a tar: its header begins at `header_offset`, its `size` bytes at `offset`."""

    name: str
    header_offset: int
    offset: int
    size: int

    @property
    def key(self) -> str:
        return self.name.partition(".")[0]

    @property
    def extension(self) -> str:
        return self.name.partition(".")[2]

    @property
    def end(self) -> int:
        """First byte after the payload and its padding."""
        return self.header_offset + tar_write.member_size(self.size)


def _octal(field: bytes) -> int | None:
    text = field.rstrip(b"\0 ")
    return int(text, 8) if text and not text.strip(b"01234567") else None


def name_problem(name: str) -> str | None:
    """Return why a shard may not contain a member of this name; None for a valid name."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or name[1:2] == ":":
        return "is a path outside of the shard"
    if "/" in name:
        return "lies in a folder; readers disagree on what its key is"
    try:
        tar_write.header(name, 0)
    except ShardError:
        most = tar_write.MAX_NAME_BYTES
        return f"is no name for every reader (1 to {most} ASCII bytes, no space, no leading dot)"
    key, dot, extension = name.partition(".")
    if not dot or not extension or "." in extension:
        return "is not KEY.EXTENSION: readers split at the first dot"
    if extension != extension.lower():
        return "has an extension that is not in lower case"
    if key.startswith("__") and key.endswith("__"):
        return "is skipped by readers, which take __x__ for their own"
    return None


def _read_header(block: bytes, at: int, report: Report) -> tuple[str, int] | None:
    """Return name and size; None when the position of the next header is unknown."""
    name = block[:100].partition(b"\0")[0].decode("latin-1")
    shown = name if name.isascii() and name.isprintable() else ascii(name)
    stated, real = _octal(block[148:156]), sum(block) - sum(block[148:156]) + 8 * 32
    if stated != real:
        said = "no number" if stated is None else str(stated)
        report(shown, f"the header at byte {at:,} has the checksum {said}, its bytes sum up to {real}")
        return None
    size = _octal(block[124:136])
    if size is None or block[124] & 0x80:
        report(shown, f"the header at byte {at:,} gives its size in a form that is not 11 octal digits")
        return None
    kind = block[156:157]
    if kind != b"0":
        report(
            shown, f"is {_TYPES.get(kind, f'of the unknown type {kind!r}')}; a shard holds plain files alone"
        )
        return ("", size) if kind not in (b"1", b"2", b"3", b"4", b"5", b"6") else ("", 0)
    if block[:100] != name.encode("latin-1").ljust(100, b"\0"):
        report(shown, "has bytes behind the end of its name")
    for field, first, end in _FIELDS:
        if block[first:end] != _TEMPLATE[first:end]:
            report(shown, f"its {field} is {block[first:end].rstrip(bytes(1))!r}, a shard has "
                 f"{_TEMPLATE[first:end].rstrip(bytes(1))!r}")  # fmt: skip
    problem = name_problem(name)
    if problem:
        report(shown, problem)
    return name, size


def members(data: FileBytes, report: Report) -> Iterator[Member]:
    """Yield the plain, complete files of a tar in order; `report` receives what is wrong.

    Every report breaks a rule of docs/shards.md. The scan continues while it finds the next header.
    """
    at, seen = 0, set[str]()
    while True:
        block = data.read(at, tar_write.BLOCK_BYTES)
        if len(block) < tar_write.BLOCK_BYTES:
            report("", f"ends at byte {data.size:,} without the two zero blocks of a tar's end")
            return
        if not any(block):
            _check_end(data, at, report)
            return
        found = _read_header(block, at, report)
        if found is None:
            report("", f"cannot be read from byte {at:,} on")
            return
        member = Member(found[0], at, at + tar_write.BLOCK_BYTES, found[1])
        if member.end > data.size:
            report(member.name, f"claims {member.size:,} bytes and the shard ends after "
                 f"{max(0, data.size - member.offset):,}")  # fmt: skip
            return
        if any(data.read(member.offset + member.size, member.end - member.offset - member.size)):
            report(member.name, "has bytes other than zero in the padding behind it")
        if member.name in seen:
            report(member.name, "occurs more than once")
        elif member.name:
            seen.add(member.name)
            yield member
        at = member.end


def problem_at_end(data: FileBytes, at: int) -> str | None:
    """Return why the tar does not end at byte `at`, where a reader stopped; None when it does.

    For tars of any writer: `tarfile` stops silently at a damaged or truncated header after the first one. A
    tar ends with zero blocks (POSIX: two; one at the end of the file is accepted, as some writers do that).
    """
    block = data.read(at, tar_write.BLOCK_BYTES)
    if not block:
        return f"it ends at byte {data.size:,} without the zero blocks of a tar's end: it was cut"
    if len(block) < tar_write.BLOCK_BYTES:
        return f"it ends inside the header at byte {at:,}"
    if any(block):
        stated, real = _octal(block[148:156]), sum(block) - sum(block[148:156]) + 8 * 32
        said = "no number" if stated is None else str(stated)
        return f"the header at byte {at:,} has the checksum {said}, its bytes sum up to {real}"
    for start in range(at, data.size, _CHUNK_BYTES):
        chunk = data.read(start, _CHUNK_BYTES)
        if any(chunk):
            first = start + len(chunk) - len(chunk.lstrip(b"\0"))
            return f"it has data at byte {first:,} behind its end at byte {at:,}"
    return None


def _check_end(data: FileBytes, at: int, report: Report) -> None:
    extra = data.size - at - tar_write.END_BYTES
    if extra < 0:
        report("", f"ends at byte {data.size:,} with less than the two zero blocks of a tar's end")
    elif extra > 0 or any(data.read(at, tar_write.END_BYTES)):
        report("", f"has {extra or tar_write.BLOCK_BYTES:,} bytes behind its end at byte {at:,}")
