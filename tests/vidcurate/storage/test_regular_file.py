"""Regular files alone are read: nothing waits for a pipe."""

import os
from pathlib import Path

import pytest

from vidcurate.storage import checksum, regular_file


def test_a_regular_file_is_read_through_links_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")

    assert regular_file.read_bytes(tmp_path / "link") == b"abc"
    assert regular_file.read_text(tmp_path / "link") == "abc"
    with regular_file.opened(tmp_path / "file") as handle:
        assert (handle.read(2), handle.read()) == (b"ab", b"c")


def test_what_is_no_regular_file_is_an_error_that_names_it_and_leaves_no_descriptor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))

    for path in (tmp_path / "pipe", tmp_path / "folder", Path("/dev/zero")):
        for read in (
            regular_file.read_bytes,
            regular_file.read_text,
            checksum.sha256_file,
            checksum.blake3_file,
        ):
            with pytest.raises(OSError, match="it is no regular file") as raised:
                read(path)
            assert raised.value.filename == str(path)
    with pytest.raises(FileNotFoundError):
        regular_file.read_bytes(tmp_path / "gone")
    assert len(os.listdir("/proc/self/fd")) == before


def test_text_has_one_kind_of_line_end_and_the_encoding_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("für\r\nzwei\rdrei".encode("latin-1"))

    assert regular_file.read_text(tmp_path / "file", "latin-1") == "für\nzwei\ndrei"
    with pytest.raises(UnicodeDecodeError):
        regular_file.read_text(tmp_path / "file")
