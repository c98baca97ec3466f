"""What a zip may say of itself that nobody can read."""

import zipfile
from pathlib import Path

import pytest

from vidcurate import zips
from vidcurate.errors import InputError


def test_a_zip_of_a_later_version_than_is_known_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "later.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("clip.mp4", b"video")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 99  # "version needed to extract", APPNOTE 4.4.3
    path.write_bytes(data)

    (part,) = zips.find_parts([str(path)])
    with pytest.raises(InputError, match=r"later\.zip.*no whole zip .*zip file version 9\.9"):
        zips.members(part)
