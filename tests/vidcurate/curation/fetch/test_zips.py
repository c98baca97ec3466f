"""What a zip may say of itself that nobody can read."""

import zipfile
from pathlib import Path

import pytest

from vidcurate.curation.fetch import zips
from vidcurate.errors import InputError


def test_a_zip_of_a_later_version_than_is_known_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "later.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("clip.mp4", b"video")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 99  # "version needed to extract", APPNOTE 4.4.3
    path.write_bytes(data)

    (part,) = zips.find_parts([str(path)])
    with pytest.raises(InputError, match=r"later\.zip.*not a complete zip .*zip file version 9\.9"):
        zips.members(part)


@pytest.mark.parametrize("is_large", [False, True])
def test_whatever_is_damaged_in_a_directory_the_zip_is_refused_or_read(
    tmp_path: Path, is_large: bool
) -> None:
    path = tmp_path / "damaged.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a.mp4", "folder/b.mp4", "ü.txt"):
            with archive.open(name, "w", force_zip64=is_large) as file:
                file.write(b"video")
        archive.comment = b"as it was made"
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    damaged = [whole[:end] for end in range(directory, len(whole))]
    for at in range(directory, len(whole)):
        damaged += [whole[:at] + bytes([value]) + whole[at + 1 :] for value in (0, 1, 0x7F, 0x80, 0xFF)]

    refused = 0
    for data in damaged:
        path.write_bytes(data)
        for part in zips.find_parts([str(path)]):
            try:
                assert all(member.size_bytes >= 0 for member in zips.members(part))
            except InputError as error:
                assert "not a complete zip" in str(error) or "multi-disk zip" in str(error)  # noqa: PT017
                refused += 1

    assert 0 < refused < len(damaged)
