"""Parts that are not what they should be are refused by name."""

import io
import struct
import zipfile
from pathlib import Path

import pytest

from tests.vidcurate.curation.fetch.made import NAMES, content, fetched, split, write_zip
from vidcurate.curation.fetch import plan as fetch_plan
from vidcurate.curation.fetch import stage as fetch_stage
from vidcurate.curation.fetch import zips
from vidcurate.errors import ColumnError, InputError, StageError


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["X_partaa", "X_partac"], "X.zip: piece 2 of 3 is missing"),
        (["X.zip", "X_partaa"], "given whole and in pieces"),
        ([], "no zip in this folder"),
    ],
)
def test_a_set_of_pieces_with_a_gap_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match=message):
        zips.find_parts([str(tmp_path)])


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_a_part_cut_short_is_refused_by_name(tmp_path: Path, keep: float) -> None:
    path = write_zip(tmp_path / "cut.zip", NAMES)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep >= 1 or keep == 0 else keep * len(data))])
    with pytest.raises(InputError, match=r"cut.zip .*not a complete zip"):
        zips.members(zips.find_parts([str(path)])[0])


def problems(path: Path) -> dict[str, str | None]:
    return {member.name: member.problem for member in zips.members(zips.find_parts([str(path)])[0])}


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a\\b.mp4", "C:\\x.mp4", "a/../b.mp4", "a\nb.mp4"]
)
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("good.mp4", b"good")
        archive.writestr(zipfile.ZipInfo("_" * len(name)), b"bad")
    data = (tmp_path / "x.zip").read_bytes().replace(b"_" * len(name), name.encode())
    (tmp_path / "x.zip").write_bytes(data)

    assert sorted(problems(tmp_path / "x.zip").values(), key=str) == [None, "unsafe_name"]


def test_what_is_no_plain_file_or_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.mp4", b"good" * 100)
        link = zipfile.ZipInfo("link.mp4")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "good.mp4")
        archive.writestr("xz.mp4", b"x" * 100, zipfile.ZIP_LZMA)
        archive.writestr("locked.mp4", b"x" * 100)
        archive.writestr("bomb.mp4", b"x" * 100, zipfile.ZIP_DEFLATED)
        archive.writestr("again.mp4", b"again")
        archive.mkdir("folder")
    data = bytearray(path.read_bytes())
    entry = _central(data, b"locked.mp4")
    data[entry + 8] |= 1
    struct.pack_into("<I", data, _central(data, b"bomb.mp4") + 24, 1 << 30)
    struct.pack_into("<I", data, _central(data, b"again.mp4") + 42, 0)  # another's bytes
    path.write_bytes(data)

    assert problems(path) == {
        "good.mp4": problems(path)["good.mp4"],
        "link.mp4": "not_a_file",
        "xz.mp4": "unknown_method",
        "locked.mp4": "encrypted",
        "bomb.mp4": "impossible_size",
        "again.mp4": problems(path)["again.mp4"],
    }
    assert "overlap" in (problems(path)["good.mp4"], problems(path)["again.mp4"])


def _central(data: bytes | bytearray, name: bytes) -> int:
    """Return the offset of a member's entry in the central directory."""
    return bytes(data).rindex(name) - 46


def test_a_member_that_is_not_what_the_directory_says_is_not_written(run: Path, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", NAMES[:8], method=zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    members = {member.name: member for member in zips.members(zips.find_parts([str(path)])[0])}
    data[members["clip01.mp4"].offset + 100] ^= 1  # a flipped bit in the data
    data[members["clip03.mp4"].offset] = 0  # no local header
    data[members["clip05.mp4"].offset + 30] = ord("X")  # another name in the local header
    path.write_bytes(data)
    fetch_plan.run_fetch_plan(run, [str(path)], tmp_path / "plan.csv")

    summary = fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "out")

    assert fetched(tmp_path / "out") == {"clip07.mp4": content("clip07.mp4")}
    assert [line.split(": ")[0] for line in summary.failed] == ["clip01.mp4", "clip03.mp4", "clip05.mp4"]
    assert "CRC-32" in summary.failed[0]
    assert "no local header" in summary.failed[1]
    assert "local header is that of 'Xlip05.mp4'" in summary.failed[2]


def test_a_part_that_changed_since_the_plan_is_refused(run: Path, parts: Path, tmp_path: Path) -> None:
    fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")
    write_zip(parts / "OpenVid_part0.zip", ["other.mp4"])

    with pytest.raises(InputError, match=r"OpenVid_part0.zip: has .* bytes, but .* in .*plan.csv"):
        fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "out")
    again = fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")
    assert again.missing == 4  # what the old part held, and clip 19


def test_a_plan_that_was_edited_to_leave_its_folder_is_refused(
    run: Path, parts: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.csv"
    fetch_plan.run_fetch_plan(run, [str(parts)], plan)
    plan.write_text(plan.read_text().replace("clip01.mp4", "../clip01.mp4", 1))
    with pytest.raises(InputError, match="leaves the target folder"):
        fetch_stage.run_fetch(plan, tmp_path / "out")
    plan.write_text("a,b\n1,2\n")
    with pytest.raises(ColumnError, match=r"column .* is missing.*fetch-plan"):
        fetch_stage.run_fetch(plan, tmp_path / "out")


def test_a_large_directory_entry_in_zip64_is_read(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, archive.open("a.mp4", "w", force_zip64=True) as member:
        member.write(b"zip64")
    (tmp_path / "a.zip").write_bytes(buffer.getvalue())

    (member_,) = zips.members(zips.find_parts([str(tmp_path / "a.zip")])[0])

    stream = zips.Stream(iter([buffer.getvalue()[member_.offset :]]), member_.offset)
    assert b"".join(zips.extract(stream, member_)) == b"zip64"


def test_a_directory_in_zip64_is_read_from_two_pieces(tmp_path: Path) -> None:
    whole = write_zip(tmp_path / "big.zip", NAMES)
    expected = zips.members(zips.find_parts([str(whole)])[0])
    data = whole.read_bytes()
    count, size, offset = struct.unpack_from("<HII", data, len(data) - 22 + 10)
    end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(data) - 22, 1)
    last = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)
    whole.write_bytes(data[:-22] + end + locator + last)
    split(whole, 2, "{stem}_part{letter}")

    assert zips.members(zips.find_parts([str(tmp_path)])[0]) == expected


def test_a_plan_of_no_run_is_refused(tmp_path: Path, parts: Path) -> None:
    with pytest.raises(StageError, match="Run `vidcurate ingest` first"):
        fetch_plan.run_fetch_plan(tmp_path / "none", [str(parts)], tmp_path / "plan.csv")
