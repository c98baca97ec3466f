"""Tars made byte by byte: what is hostile, damaged or foreign is named; links and devices go to nobody."""

import io
import random
import re
import struct
import tarfile
from typing import Any

import pytest

from vidcurate.shards import tar_read, tar_write
from vidcurate.shards.tar_read import Member
from vidcurate.storage.file_window import FileBytes

END = bytes(1024)


def header(
    name: bytes = b"a.json", size: bytes = b"00000000002\0", kind: bytes = b"0", **fields: Any
) -> bytes:
    """Return a USTAR header written field by field (POSIX.1-1988), its checksum right unless it is given."""
    values = {
        "name": name.ljust(100, b"\0"), "mode": b"0000644\0", "uid": b"0000000\0", "gid": b"0000000\0",
        "size": size, "mtime": b"00000000000\0", "chksum": b"        ", "kind": kind, "link": bytes(100),
        "magic": b"ustar\x0000", "uname": bytes(32), "gname": bytes(32), "dev": bytes(16),
        "prefix": bytes(155), "pad": bytes(12),
    }  # fmt: skip
    block = b"".join({**values, **fields}.values())
    assert len(block) == 512
    if "chksum" not in fields:
        block = block[:148] + b"%06o\0 " % sum(block) + block[156:]
    return block


def padded(payload: bytes) -> bytes:
    return payload + bytes(-len(payload) % 512)


GOOD = header() + padded(b"{}") + header(b"a.mp4", b"00000000003\0") + padded(b"abc")


def read(data: bytes) -> tuple[list[Member], list[str]]:
    reported: list[str] = []
    file = FileBytes(io.BytesIO(data), len(data))
    return list(tar_read.members(file, lambda name, what: reported.append(f"{name}: {what}"))), reported


def test_what_we_write_is_read_without_a_word() -> None:
    file = io.BytesIO()
    writer = tar_write.TarWriter(file)
    offsets = [writer.add(name, payload) for name, payload in (("a.json", b"{}"), ("a.mp4", b"x" * 5000))]
    writer.finish()
    found, reported = read(file.getvalue())
    assert reported == []
    assert [(m.name, m.offset, m.size) for m in found] == [
        ("a.json", offsets[0], 2),
        ("a.mp4", offsets[1], 5000),
    ]
    assert (found[1].key, found[1].extension, found[1].end) == ("a", "mp4", writer.position - 1024)
    assert read(GOOD + END) == ([Member("a.json", 0, 512, 2), Member("a.mp4", 1024, 1536, 3)], [])


HOSTILE = {
    "an absolute path": (header(b"/etc/a.json") + padded(b"{}"), r"/etc/a\.json: is a path outside"),
    "a path upwards": (header(b"../../a.json") + padded(b"{}"), r"\.\./\.\./a\.json: is a path out"),
    "a path upwards inside": (header(b"x/../../a.json") + padded(b"{}"), "is a path outside of the shard"),
    "a path of Windows": (header(b"C:a.json") + padded(b"{}"), "is a path outside of the shard"),
    "a folder in the name": (header(b"x/a.json") + padded(b"{}"), "lies in a folder"),
    "a prefix": (header(prefix=b"folder".ljust(155, b"\0")) + padded(b"{}"), "its name prefix is b'folder'"),
    "a hard link": (header(size=b"00000000000\0", kind=b"1", link=b"b".ljust(100, b"\0")), "is a hard link"),
    "a symbolic link": (header(kind=b"2", link=b"/etc/passwd".ljust(100, b"\0")), "is a symbolic link"),
    "a character device": (header(kind=b"3"), "is a character device"),
    "a block device": (header(kind=b"4"), "is a block device"),
    "a directory": (header(b"a", b"00000000000\0", b"5"), "is a directory"),
    "a pipe": (header(kind=b"6"), "is a named pipe"),
    "a PAX header": (header(b"x", kind=b"x") + padded(b"{}"), "is a PAX header"),
    "a global PAX header": (header(b"x", kind=b"g") + padded(b"{}"), "is a global PAX header"),
    "a GNU long name": (header(b"././@LongLink", kind=b"L") + padded(b"ab"), "is a GNU long name"),
    "a GNU sparse file": (header(kind=b"S") + padded(b"{}"), "is a GNU sparse file"),
    "an old-style file": (header(kind=b"\0") + padded(b"{}"), "is an old-style file"),
    "an unknown type": (header(kind=b"Z") + padded(b"{}"), "is of the unknown type b'Z'"),
    "GNU's magic": (header(magic=b"ustar  \0") + padded(b"{}"), "its magic is b'ustar  '"),
    "no magic": (header(magic=bytes(8)) + padded(b"{}"), "its magic is b''"),
    "a time": (header(mtime=b"14000000000\0") + padded(b"{}"), "its mtime is b'14000000000'"),
    "an owner": (header(uid=b"0001750\0") + padded(b"{}"), "its uid is b'0001750'"),
    "a user's name": (header(uname=b"root".ljust(32, b"\0")) + padded(b"{}"), "its user name is b'root'"),
    "another mode": (header(mode=b"0000444\0") + padded(b"{}"), "its mode is b'0000444'"),
    "bytes behind the name": (header(b"a.json\0secret") + padded(b"{}"), "has bytes behind the end"),
    "bytes behind the header": (header(pad=b"secret" * 2) + padded(b"{}"), "its padding is"),
    "bytes behind the payload": (header() + b"{}" + b"x" * 510, "has bytes other than zero in the padding"),
    "no extension": (header(b"abc") + padded(b"{}"), r"is not KEY\.EXTENSION"),
    "two dots": (header(b"a.v1.json") + padded(b"{}"), r"is not KEY\.EXTENSION"),
    "a leading dot": (header(b".json") + padded(b"{}"), "is no name for every reader"),
    "a space": (header(b"a b.json") + padded(b"{}"), "is no name for every reader"),
    "no ASCII": (header("ä.json".encode()) + padded(b"{}"), "is no name for every reader"),
    "no name": (header(b"") + padded(b"{}"), "is no name for every reader"),
    "100 bytes of name": (header(b"k" * 95 + b".json") + padded(b"{}"), "is no name for every reader"),
    "upper case": (header(b"a.JSON") + padded(b"{}"), "has an extension that is not in lower case"),
    "a reader's own name": (header(b"__key__.json") + padded(b"{}"), "is skipped by readers"),
    "a member twice": ((header() + padded(b"{}")) * 2, r"a\.json: occurs more than once"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_member_is_named_and_what_follows_is_still_read(what: str) -> None:
    first, said = HOSTILE[what]
    last = header(b"z.json", b"00000000001\0") + padded(b"z")
    found, reported = read(first + last + END)
    assert found[-1] == Member("z.json", len(first), len(first) + 512, 1)
    assert any(re.search(said, line) for line in reported), reported
    if "is a" in said and "path" not in said:
        assert len(found) == 1  # what is no plain file is handed to nobody


LYING = {
    "a size that is not there": (header(size=b"00000005000\0"), "claims 2,560 bytes and the"),
    "eight gibibytes": (header(size=b"77777777777\0") + padded(b"{}"), "claims 8,589,934,591 bytes and"),
    "a size beyond octal": (
        header(size=b"\x80" + struct.pack(">Q", 1 << 40).rjust(11, b"\0")) + padded(b"{}"),
        "gives its size in a form that is not 11 octal digits",
    ),
    "a negative size": (header(size=b"\xff" * 12) + padded(b"{}"), "not 11 octal digits"),
    "a size of letters": (header(size=b"many".ljust(12, b"\0")) + padded(b"{}"), "not 11 octal digits"),
    "a wrong checksum": (header(chksum=b"000000\0 ") + padded(b"{}"), "has the checksum 0, its"),
    "no checksum": (header(chksum=b"x" * 8) + padded(b"{}"), "has the checksum no number"),
    "garbage": (random.Random(0).randbytes(1024), "has the checksum"),
}  # fmt: skip


@pytest.mark.parametrize("what", LYING)
def test_where_the_next_header_cannot_be_known_nothing_more_is_read(what: str) -> None:
    data, said = LYING[what]
    found, reported = read(GOOD + data + END)
    assert [member.name for member in found] == ["a.json", "a.mp4"]
    assert len(reported) >= 1
    assert re.search(said, " ".join(reported)), reported


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (b"", ": ends at byte 2,048 without the two zero blocks of a tar's end"),
        (bytes(512), ": ends at byte 2,560 with less than the two zero blocks of a tar's end"),
        (bytes(700), ": ends at byte 2,748 with less than the two zero blocks of a tar's end"),
        (bytes(10240), ": has 9,216 bytes behind its end at byte 2,048"),
        (END + b"secret", ": has 6 bytes behind its end at byte 2,048"),
        (bytes(512) + header() , ": has 512 bytes behind its end at byte 2,048"),
        (b"x" * 100, ": ends at byte 2,148 without the two zero blocks of a tar's end"),
    ],
)  # fmt: skip
def test_the_end_of_a_tar_is_two_zero_blocks_and_nothing_behind_them(end: bytes, said: str) -> None:
    found, reported = read(GOOD + end)
    assert len(found) == 2
    assert reported == [said]


def test_tars_of_other_programs_are_read_and_their_habits_named() -> None:
    """What Python and GNU tar write: other times and padding, but the same places."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, payload in (("a.json", b"{}"), ("a.mp4", b"x" * 700)):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(payload), 1_700_000_000
            archive.addfile(info, io.BytesIO(payload))
    found, reported = read(file.getvalue())
    with tarfile.open(fileobj=io.BytesIO(file.getvalue())) as archive:
        assert [(m.name, m.offset, m.size) for m in found] == [
            (i.name, i.offset_data, i.size) for i in archive
        ]
    assert any("its magic is b'ustar  '" in line for line in reported)
    assert any("its mtime is" in line for line in reported)


def test_every_flipped_bit_of_a_header_and_every_shorter_tar_is_noticed() -> None:
    whole = GOOD + END
    for bit in range(0, 512 * 8, 7):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        assert read(bytes(data))[1], f"bit {bit} of the first header"
    for size in range(0, len(whole), 129):
        assert read(whole[:size])[1], f"cut to {size} bytes"
