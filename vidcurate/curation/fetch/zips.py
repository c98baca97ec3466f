"""Zip parts of a data set: members and byte ranges from their central directories.

A part in several pieces is read as one file (`ranges.Joined`). The standard library reads the directory,
zip64 included. Members are untrusted: names that leave the folder, encryption, impossible sizes, and ranges
that overlap or leave the file are refused by name; a member's bytes must match the directory's CRC-32.
"""

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vidcurate.errors import InputError, MediaError
from vidcurate.storage import stored_zip
from vidcurate.storage.ranges import Joined, Piece, is_url, piece

MAX_DIRECTORY_BYTES = 1 << 30
_HEADER_BYTES = 30
_LARGEST_RATIO = 1032  # largest expansion of deflate
_PIECE = re.compile(r"(?P<stem>.+?)(?:\.zip)?(?:_part(?P<letters>[a-z]{2})|(?:\.zip)?\.(?P<digits>\d{3}))$")
_UNSAFE = re.compile(r"[\x00-\x1f\\:]|^/|(?:^|/)\.\.(?:/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipPart:
    """Zip part, in one piece or in several consecutive pieces."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Member of a part: `range_bytes` from `offset` on are its local header and data.

    `problem`: why it is refused (None: it can be fetched): unsafe_name, encrypted, unknown_method,
    not_a_file, impossible_size, overlap.
    """

    name: str
    offset: int
    range_bytes: int
    compressed_bytes: int
    size_bytes: int
    crc32: int
    method: int
    problem: str | None


def _places(given: Sequence[str]) -> list[str]:
    """Return files and URLs: the zips of a folder, the lines of a list, or the given place itself."""
    found: list[str] = []
    for place in given:
        path = Path(place)
        if is_url(place):
            found.append(place)
        elif path.is_dir():
            names = sorted(str(one) for one in path.iterdir() if one.is_file() and _is_part(one.name))
            if not names:
                raise InputError(f"{place}: no zip in this folder (.zip, _partaa, .001).")
            found += names
        elif path.suffix in (".txt", ".lst"):
            try:
                lines = path.read_text(encoding="utf-8").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{place}: the list of parts cannot be read ({error}).") from error
            found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        else:
            found.append(place)
    return found


def _is_part(name: str) -> bool:
    return name.lower().endswith(".zip") or _PIECE.match(name) is not None


def _base(place: str) -> str:
    return place.split("?")[0].rstrip("/").rsplit("/", 1)[-1] if is_url(place) else Path(place).name


def find_parts(given: Sequence[str]) -> list[ZipPart]:
    """Return the parts among folders of zips, zips, URLs and lists of them (.txt), sorted by name.

    `X_partaa`, `X_partab` (and `X.zip.001`, …) are one part X.zip. Raises InputError for a missing piece, for
    two parts of one name and for what cannot be reached.
    """
    whole: dict[str, str] = {}
    pieces: dict[str, dict[int, str]] = {}
    for place in _places(given):
        found = _PIECE.match(_base(place))
        name = f"{found['stem']}.zip" if found else _base(place)
        if found is None:
            if name in whole:
                raise InputError(
                    f"{place}: another part has the name {name}: {whole[name]}. Remove one of them."
                )
            whole[name] = place
            continue
        letters = found["letters"]
        number = (ord(letters[0]) - 97) * 26 + ord(letters[1]) - 97 if letters else int(found["digits"]) - 1
        if pieces.setdefault(name, {}).setdefault(number, place) != place:
            raise InputError(
                f"{place}: piece of {name} given twice, also as {pieces[name][number]}. Remove one of them."
            )
    for name, numbered in pieces.items():
        if name in whole:
            raise InputError(f"{whole[name]}: given whole and in pieces. Remove one of them.")
        gaps = sorted(set(range(max(numbered) + 1)) - set(numbered))
        if gaps:
            raise InputError(
                f"{name}: piece {gaps[0] + 1} of {max(numbered) + 1} is missing. Found: "
                f"{', '.join(numbered.values())}."
            )
    parts = {name: [place] for name, place in whole.items()}
    parts |= {name: [place for _, place in sorted(numbered.items())] for name, numbered in pieces.items()}
    if not parts:
        raise InputError("--parts is empty. Give a folder of zips, a zip, a URL, or a list of them.")
    return [
        ZipPart(name=name, pieces=tuple(piece(place) for place in parts[name]))
        for name in sorted(parts, key=_natural)
    ]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts part2 before part10."""
    return [
        (0, int(word), "") if word.isdigit() else (1, 0, word) for word in re.split(r"(\d+)", name) if word
    ]


def members(part: ZipPart) -> list[Member]:
    """Return the members of a part in byte order. Raises InputError for a damaged zip."""
    where = f"{part.name} ({part.pieces[0].place})"
    try:
        with (
            Joined(part.pieces, max_read_bytes=MAX_DIRECTORY_BYTES) as file,
            zipfile.ZipFile(file) as archive,
        ):
            infos, end = archive.infolist(), archive.start_dir
    except stored_zip.ZIP_ERRORS as error:
        raise InputError(
            f"{where}: {part.size_bytes:,} bytes are not a complete zip ({error}). Fetch the part again, or "
            "leave it out."
        ) from error
    if any(info.volume for info in infos):
        raise InputError(f"{where}: is one disk of a multi-disk zip. Join the disks with `zip -s 0` first.")
    infos.sort(key=lambda info: (info.header_offset, info.filename))
    found = []
    for number, info in enumerate(infos):
        following = infos[number + 1].header_offset if number + 1 < len(infos) else end
        before = number > 0 and infos[number - 1].header_offset == info.header_offset
        if not info.filename.endswith("/"):  # `is_dir` fails for an empty name
            found.append(_member(info, following, end, shares_header=before))
    return found


def _member(info: zipfile.ZipInfo, following: int, end: int, *, shares_header: bool) -> Member:
    span = following - info.header_offset
    least = _HEADER_BYTES + len(info.orig_filename.encode("utf-8", "replace")) + info.compress_size
    kind = stat.S_IFMT(info.external_attr >> 16)
    problem = None
    if is_unsafe(info.filename) or is_unsafe(info.orig_filename):
        problem = "unsafe_name"
    elif info.flag_bits & 0x41:
        problem = "encrypted"
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        problem = "unknown_method"
    elif kind not in (0, stat.S_IFREG):
        problem = "not_a_file"
    elif (
        info.file_size != info.compress_size
        if info.compress_type == zipfile.ZIP_STORED
        else info.file_size > _LARGEST_RATIO * info.compress_size + 64
    ):
        problem = "impossible_size"
    elif shares_header or info.header_offset < 0 or following > end or span < least:
        problem = "overlap"
    return Member(
        name=info.filename,
        offset=info.header_offset,
        range_bytes=max(span, 0),
        compressed_bytes=info.compress_size,
        size_bytes=info.file_size,
        crc32=info.CRC,
        method=info.compress_type,
        problem=problem,
    )


def is_unsafe(name: str) -> bool:
    """Return whether a name is empty or could leave its target folder."""
    return not name or _UNSAFE.search(name) is not None or not name.isprintable()


class Stream:
    """Byte stream that arrives in chunks; `place` is the offset of the next byte."""

    def __init__(self, source: Iterator[bytes], place: int) -> None:
        self._source, self._left, self.place = source, b"", place

    def take(self, count: int) -> Iterator[bytes]:
        """Yield the next `count` bytes, in chunks. Raises OSError when the source ends."""
        while count:
            if not self._left:
                self._left = next(self._source, b"")
                if not self._left:
                    raise OSError("the bytes ended early")
            data, self._left = self._left[:count], self._left[count:]
            count -= len(data)
            self.place += len(data)
            yield data


def extract(stream: Stream, member: Member) -> Iterator[bytes]:
    """Yield the content of `member`, whose local header is next in `stream`.

    Raises MediaError when the header belongs to another member, or when size or CRC-32 of the data differ
    from the directory (known after the last byte). OSError when the stream ends early.
    """
    name = member.name
    header = b"".join(stream.take(_HEADER_BYTES))
    if header[:4] != b"PK\x03\x04":
        at = stream.place - _HEADER_BYTES
        raise MediaError(f"{name}: no local header at byte {at}.", kind="bad_header")
    flags, method = struct.unpack_from("<HH", header, 6)
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    if _HEADER_BYTES + name_bytes + extra_bytes + member.compressed_bytes > member.range_bytes:
        raise MediaError(f"{name}: its local header reaches into the next member.", kind="bad_header")
    reported = b"".join(stream.take(name_bytes)).decode("utf-8" if flags & 0x800 else "cp437", "replace")
    for _ in stream.take(extra_bytes):
        pass
    if reported != name or method != member.method:
        raise MediaError(f"{name}: the local header is that of {reported!r}.", kind="bad_header")
    found, check = 0, 0
    try:
        for part in _content(stream, member):
            found += len(part)
            if found > member.size_bytes:
                raise MediaError(f"{name}: holds more than its {member.size_bytes:,} bytes.", kind="bad_size")
            check = zlib.crc32(part, check)
            yield part
    except zlib.error as error:
        raise MediaError(f"{name}: does not inflate ({error}).", kind="bad_data") from error
    if found != member.size_bytes:
        raise MediaError(f"{name}: holds {found:,} of its {member.size_bytes:,} bytes.", kind="bad_size")
    if check != member.crc32:
        raise MediaError(
            f"{name}: its CRC-32 is {check:08x}, the directory says {member.crc32:08x}.", kind="bad_crc"
        )


def _content(stream: Stream, member: Member) -> Iterator[bytes]:
    """Yield the member's bytes, inflated if deflated, at most 1 MiB at once."""
    if member.method == zipfile.ZIP_STORED:
        yield from stream.take(member.compressed_bytes)
        return
    inflate = zlib.decompressobj(-15)
    for data in stream.take(member.compressed_bytes):
        waiting = data
        while waiting and not inflate.eof:
            yield inflate.decompress(waiting, 1 << 20)
            waiting = inflate.unconsumed_tail
    while not inflate.eof and (more := inflate.decompress(b"", 1 << 20)):
        yield more
