"""A zip archive that would hold more than its own bytes is refused before an entry is read."""

import io
import zipfile
from pathlib import Path

import pytest

from vidcurate.storage.stored_zip import Slice, require_stored, require_stored_file


def archive(*entries: tuple[str, bytes, int]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        for name, content, method in entries:
            made.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return data.getvalue()


STORED = archive(
    ("a/data.pkl", b"x" * 100, zipfile.ZIP_STORED), ("a/data/0", bytes(5000), zipfile.ZIP_STORED)
)
SIZES = len(bytes(5000)).to_bytes(4, "little") * 2  # compressed and full, in each header


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (archive(("a", bytes(1 << 20), zipfile.ZIP_DEFLATED)), "is compressed"),
        (archive(("a", bytes(1 << 20), zipfile.ZIP_BZIP2)), "is compressed"),
        (STORED.replace(SIZES, b"\xff\xff\xff\x7f" * 2), "its entries hold 2,147,483,747 bytes, and it has"),
        (STORED[:-10], "damaged zip archive"),
        (STORED[:50], "damaged zip archive"),
        (b"PK", "damaged zip archive"),
    ],
)
def test_an_archive_that_would_unfold_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "w.pth").write_bytes(data)
    with pytest.raises(ValueError, match=reason):
        require_stored_file(tmp_path / "w.pth")
    with pytest.raises(ValueError, match=reason):
        require_stored(Slice(io.BytesIO(b"before" + data + b"behind"), 6, len(data)), len(data))


@pytest.mark.parametrize("data", [STORED, b"", b"\x80\x02}q\x00.", b"P"])
def test_stored_archives_and_other_files_pass(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w.pth").write_bytes(data)
    require_stored_file(tmp_path / "w.pth")


def test_a_slice_reads_and_seeks_as_a_file_of_its_bytes() -> None:
    part = Slice(io.BytesIO(bytes(range(100))), 10, 20)
    assert part.read() == bytes(range(10, 30))
    assert part.read(1) == b""
    assert part.seek(-5, io.SEEK_END) == 15
    assert part.read(2) == b"\x19\x1a"
    assert part.seek(1, io.SEEK_CUR) == 18
    assert io.BufferedReader(part).read() == b"\x1c\x1d"
    assert part.seek(99) == part.seek(0, io.SEEK_END) == 20
