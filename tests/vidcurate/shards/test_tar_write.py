"""The tars are the same bytes every time, and any reader takes them."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vidcurate.errors import ShardError
from vidcurate.shards import tar_write
from vidcurate.storage.checksum import crc32c


def written(members: dict[str, bytes]) -> tuple[bytes, str, dict[str, int]]:
    file = io.BytesIO()
    writer = tar_write.TarWriter(file)
    offsets = {name: writer.add(name, payload) for name, payload in members.items()}
    digest = writer.finish()
    return file.getvalue(), digest, offsets


def test_python_and_we_agree_on_every_member() -> None:
    members = {"a.json": b"{}", "a.mp4": bytes(range(256)) * 9, "a.txt": b"", "b.mp4": b"x" * 512}
    data, digest, offsets = written(members)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        infos = archive.getmembers()
        assert [info.name for info in infos] == list(members)
        for info in infos:
            file = archive.extractfile(info)
            assert file is not None
            assert file.read() == members[info.name]
            assert (info.mtime, info.uid, info.gid, info.uname, info.gname) == (0, 0, 0, "", "")
            assert info.mode == 0o644
            assert info.isreg()
            assert info.offset_data == offsets[info.name]
    assert digest == hashlib.sha256(data).hexdigest()
    assert len(data) == sum(tar_write.member_size(len(p)) for p in members.values()) + tar_write.END_BYTES


def test_there_are_no_extended_headers() -> None:
    data, _, _ = written({"k" * 95 + ".mp4": b"1"})
    assert data[257:265] == b"ustar\x0000"
    assert len(data) == 512 + 512 + tar_write.END_BYTES


@pytest.mark.parametrize("name", ["", ".a.mp4", "a b.mp4", "ключ.mp4", "k" * 96 + ".mp4"])
def test_a_name_that_some_reader_refuses_is_refused(name: str) -> None:
    with pytest.raises(ShardError, match="cannot be a tar member"):
        tar_write.header(name, 1)


def test_a_member_above_eight_gibibytes_is_refused_by_name() -> None:
    assert len(tar_write.header("a.mp4", tar_write.MAX_MEMBER_BYTES)) == 512
    with pytest.raises(ShardError, match=r"a\.mp4 has 8589934592 bytes"):
        tar_write.header("a.mp4", tar_write.MAX_MEMBER_BYTES + 1)


def test_what_is_taken_back_leaves_no_trace(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("the source broke")

    with (tmp_path / "a.tar").open("wb") as file:
        writer = tar_write.TarWriter(file)
        writer.add("a.json", b"{}")
        mark = writer.mark()
        writer.add("b.json", b"{}" * 4000)
        with pytest.raises(RuntimeError):
            writer.add_chunks("b.mp4", 900, broken())
        writer.roll_back(mark)
        writer.add("c.json", b"[]")
        digest = writer.finish()
    data, expected, _ = written({"a.json": b"{}", "c.json": b"[]"})
    assert (tmp_path / "a.tar").read_bytes() == data
    assert digest == expected


def test_chunks_and_whole_payloads_give_the_same_bytes_and_the_crc() -> None:
    payload = bytes(range(256)) * 31
    file = io.BytesIO()
    writer = tar_write.TarWriter(file)
    offset, crc = writer.add_chunks(
        "a.mp4", len(payload), (payload[i : i + 1000] for i in range(0, 8000, 1000))
    )
    writer.finish()
    assert (offset, crc) == (512, crc32c(payload))
    assert file.getvalue() == written({"a.mp4": payload})[0]


def test_a_payload_of_another_length_than_announced_is_refused() -> None:
    writer = tar_write.TarWriter(io.BytesIO())
    with pytest.raises(ShardError, match="expected 10 bytes, got 4"):
        writer.add_chunks("a.mp4", 10, [b"four"])


def test_the_checksum_is_that_of_the_standard_and_resumes_piece_by_piece() -> None:
    # RFC 3720, appendix B.4
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789") == 0xE3069283


def test_a_header_is_that_of_pythons_ustar() -> None:
    for name, size in (
        ("a.json", 0),
        ("k" * 95 + ".mp4", 511),
        ("a-_9.webm", 512),
        ("a.mp4", tar_write.MAX_MEMBER_BYTES),
    ):
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o644
        assert tar_write.header(name, size) == info.tobuf(format=tarfile.USTAR_FORMAT, encoding="ascii")
