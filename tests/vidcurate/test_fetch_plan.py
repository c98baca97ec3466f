"""Zip parts read by range, on disk and over HTTP on this machine; plans, fetching, and zips that lie."""

import functools
import hashlib
import http.server
import io
import json
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from vidcurate import fetch, fetch_plan, filter, ranges, table, zips
from vidcurate.errors import ColumnError, InputError, StageError, StorageError
from vidcurate.filter import FilterSpec


def content(name: str, size: int = 5000) -> bytes:
    """Return bytes that belong to the name; every other member can be compressed."""
    seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    return np.random.default_rng(seed).integers(0, 256 if seed % 2 else 4, size, dtype=np.uint8).tobytes()


def write_zip(path: Path, names: list[str], *, method: int = zipfile.ZIP_DEFLATED, prefix: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(prefix + name), content(name), method)
    return path


def split(path: Path, pieces: int, form: str) -> None:
    """Replace a zip by its pieces, named by `form`."""
    data = path.read_bytes()
    size = -(-len(data) // pieces)
    for number in range(pieces):
        name = form.format(stem=path.stem, letter="a" + chr(97 + number), number=number + 1)
        path.with_name(name).write_bytes(data[number * size : (number + 1) * size])
    path.unlink()


NAMES = [f"clip{n:02d}.mp4" for n in range(20)]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Three parts in OpenVid's form: whole, in two pieces, whole; one member twice, one that no row names."""
    folder = tmp_path / "parts"
    write_zip(folder / "OpenVid_part0.zip", NAMES[:6], method=zipfile.ZIP_STORED)
    write_zip(folder / "OpenVid_part2.zip", NAMES[6:14], prefix="video/")
    split(folder / "OpenVid_part2.zip", 2, "{stem}_part{letter}")
    write_zip(folder / "OpenVid_part10.zip", [*NAMES[14:18], NAMES[0], "nobody.mp4"])
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 20 clips whose odd ones are kept; clips 18 and 19 are in no part."""
    folder = tmp_path / "run"
    clips = pl.DataFrame(
        {
            "clip_id": [name[:-4] for name in NAMES],
            "video_path": NAMES,
            "file_size_bytes": pl.Series([None] * 20, dtype=pl.Int64),
            "ingest_problem": pl.Series([None] * 20, dtype=pl.String),
            "noun_count": [n % 2 for n in range(20)],
        }
    )
    table.write(clips, folder / "score.parquet", table.Provenance(stage="score", settings={}, inputs={}))
    filter.run_filter(folder, FilterSpec(min_noun_count=1))
    return folder


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves byte ranges; `trouble` may answer in another way."""

    trouble: Callable[["_Handler"], bool] = staticmethod(lambda _: False)
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        type(self).asked.append(f"{path.name} {self.headers['Range']}")
        if type(self).trouble(self):
            return
        data = path.read_bytes()
        first, last = (int(end) for end in self.headers["Range"].removeprefix("bytes=").split("-"))
        body = data[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", hashlib.md5(data).hexdigest())
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(parts: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[_Handler]]]:
    """Serve the parts; gives the address and the handler, whose `asked` lists the requests."""
    monkeypatch.setattr(ranges.time, "sleep", lambda _: None)

    class Handler(_Handler):
        asked: list[str] = []  # noqa: RUF012

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(parts))
    ) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", Handler
        httpd.shutdown()
        thread.join()


def places(address: str, parts: Path) -> list[str]:
    return [f"{address}/{path.name}" for path in sorted(parts.iterdir())]


def fetched(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WANTED = {name: content(name) for name in NAMES[:18] if int(name[4:6]) % 2}


def test_a_plan_lists_the_ranges_of_the_kept_clips(run: Path, parts: Path, tmp_path: Path) -> None:
    summary = fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")

    rows = pl.read_csv(tmp_path / "plan.csv")
    assert set(rows["video_path"]) == set(WANTED)
    assert (summary.files_wanted, summary.files_planned, summary.missing) == (10, 9, 1)
    assert (summary.parts, summary.parts_touched) == (3, 3)
    assert (summary.extra, summary.not_wanted) == (1, 10)  # nine rejected clips, one of them in two parts
    assert summary.bytes_to_fetch == rows.unique("video_path")["range_bytes"].sum()
    assert 0.3 < summary.share_of_bytes < 0.6
    report = json.loads((tmp_path / "plan.json").read_text())
    assert report["findings"]["missing"]["listed"] == [{"video_path": "clip19.mp4"}]
    assert report["findings"]["extra"]["listed"] == [{"part": "OpenVid_part10.zip", "name": "nobody.mp4"}]
    assert [part["part"] for part in report["by_part"]] == [
        "OpenVid_part0.zip", "OpenVid_part2.zip", "OpenVid_part10.zip",
    ]  # fmt: skip


def test_the_ranges_of_a_plan_hold_their_members(run: Path, parts: Path, tmp_path: Path) -> None:
    fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")

    rows = pl.read_csv(tmp_path / "plan.csv")
    straddling = set(rows.filter(pl.col("ranges") == 2)["video_path"])
    for path, group in rows.group_by("video_path", maintain_order=True):
        data = b""
        for row in group.sort("range").iter_rows(named=True):
            data += Path(row["place"]).read_bytes()[row["first_byte"] : row["last_byte"] + 1]
        name_bytes, extra_bytes = struct.unpack_from("<HH", data, 26)
        body = data[30 + name_bytes + extra_bytes :][: row["compressed_bytes"]]
        plain = body if row["method"] == 0 else zlib.decompress(body, -15)
        assert plain == content(str(path[0]))
    assert len(straddling) <= 1  # the cut between the two pieces meets one member at most


@pytest.mark.parametrize(
    "form", ["{stem}_part{letter}", "{stem}.zip_part{letter}", "{stem}.zip.{number:03d}"]
)
def test_pieces_are_read_as_one_part(tmp_path: Path, form: str) -> None:
    write_zip(tmp_path / "X_part7.zip", NAMES)
    whole = zips.members(zips.find_parts([str(tmp_path)])[0])
    split(tmp_path / "X_part7.zip", 3, form)

    (part,) = zips.find_parts([str(tmp_path)])

    assert part.name == "X_part7.zip"
    assert len(part.pieces) == 3
    assert zips.members(part) == whole


def test_the_subset_is_fetched_and_a_second_time_nothing_is(run: Path, parts: Path, tmp_path: Path) -> None:
    fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")

    first = fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")
    assert fetched(tmp_path / "videos") == WANTED
    (tmp_path / "videos" / "clip03.mp4").unlink()
    again = fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    assert (first.files_fetched, first.files_there, first.files_failed) == (9, 0, 0)
    assert (again.files_fetched, again.files_there) == (1, 8)
    assert fetched(tmp_path / "videos") == WANTED


def test_the_same_plan_is_made_and_fetched_over_http(
    run: Path, parts: Path, tmp_path: Path, server: tuple[str, type[_Handler]]
) -> None:
    address, handler = server
    fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "local.csv")
    (tmp_path / "parts.txt").write_text("# the parts\n" + "\n".join(places(address, parts)) + "\n")

    summary = fetch_plan.run_fetch_plan(run, [str(tmp_path / "parts.txt")], tmp_path / "plan.csv")
    asked = len(handler.asked)
    result = fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    local, remote = (pl.read_csv(tmp_path / name).drop("place") for name in ("local.csv", "plan.csv"))
    assert remote.equals(local)
    assert asked == 4 + 4  # the size of each piece, and the tail of each part: one is in two pieces
    assert result.files_fetched == summary.files_planned
    assert fetched(tmp_path / "videos") == WANTED
    before = len(handler.asked)
    fetch_plan.run_fetch_plan(run, places(address, parts), tmp_path / "plan.csv")
    assert len(handler.asked) == before + 4  # the directories are kept in RUN/parts.parquet


def test_a_connection_that_breaks_is_taken_up_again(
    run: Path, parts: Path, tmp_path: Path, server: tuple[str, type[_Handler]]
) -> None:
    address, handler = server
    fetch_plan.run_fetch_plan(run, places(address, parts), tmp_path / "plan.csv")
    broken: dict[str, int] = {}

    def breaks(request: _Handler) -> bool:
        """Answer every range once with 503 and once with half of what was asked for."""
        key = f"{request.path} {request.headers['Range']}"
        broken[key] = broken.get(key, 0) + 1
        if request.headers["Range"] == "bytes=0-0" or broken[key] > 2:
            return False
        if broken[key] == 1:
            request.send_error(503)
            return True
        data = Path(request.translate_path(request.path)).read_bytes()
        first, last = (int(end) for end in request.headers["Range"].removeprefix("bytes=").split("-"))
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        request.send_header("Content-Length", str(last - first + 1))
        request.end_headers()
        request.wfile.write(data[first : (first + last) // 2])
        return True

    handler.trouble = staticmethod(breaks)
    result = fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    assert result.files_failed == 0
    assert fetched(tmp_path / "videos") == WANTED


def test_a_server_that_stays_down_is_named_and_what_was_fetched_stays(
    run: Path, parts: Path, tmp_path: Path, server: tuple[str, type[_Handler]]
) -> None:
    address, handler = server
    fetch_plan.run_fetch_plan(run, places(address, parts), tmp_path / "plan.csv")

    def down(request: _Handler) -> bool:
        if "part10" in request.path and request.headers["Range"] != "bytes=0-0":
            request.send_error(503)
            return True
        return False

    handler.trouble = staticmethod(down)
    with pytest.raises(
        StorageError, match=r"OpenVid_part10.zip: failed 5 times, at last with: the server answers 503"
    ):
        fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "videos", num_workers=1)
    handler.trouble = staticmethod(lambda _: False)
    result = fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    assert result.files_there > 0
    assert fetched(tmp_path / "videos") == WANTED


@pytest.mark.parametrize(
    ("answer", "message"),
    [(404, "the server answers 404"), (200, "ignores byte ranges"), (0, "does not tell the file's size")],
)
def test_a_server_that_cannot_serve_ranges_is_refused(
    parts: Path, server: tuple[str, type[_Handler]], answer: int, message: str
) -> None:
    address, handler = server

    def odd(request: _Handler) -> bool:
        if answer == 404:
            request.send_error(404)
        else:
            request.send_response(answer or 206)
            request.send_header("Content-Length", "0")
            request.end_headers()
        return True

    handler.trouble = staticmethod(odd)
    with pytest.raises(InputError, match=message):
        zips.find_parts([f"{address}/OpenVid_part0.zip"])


# ── reconciliation ──────────────────────────────────────────────────────────────────────────────────


def test_a_member_with_two_contents_is_not_guessed(run: Path, parts: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(parts / "extra.zip", "w") as archive:
        archive.writestr("clip01.mp4", b"something else")
        archive.writestr("clip03.mp4", content("clip03.mp4"))

    summary = fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")

    assert (summary.conflicting, summary.duplicates) == (1, 1)
    assert "clip01.mp4" not in set(pl.read_csv(tmp_path / "plan.csv")["video_path"])
    assert (
        summary.files_wanted
        == summary.files_planned + summary.missing + summary.conflicting + summary.refused
    )
    report = json.loads((tmp_path / "plan.json").read_text())
    assert {row["part"] for row in report["findings"]["conflicting"]["listed"]} == {
        "OpenVid_part0.zip",
        "extra.zip",
    }


def test_a_path_with_folders_is_found_by_its_path(tmp_path: Path) -> None:
    run = tmp_path / "run"
    paths = ["a/one.mp4", "b/one.mp4"]
    clips = pl.DataFrame(
        {
            "clip_id": ["1", "2"],
            "video_path": paths,
            "file_size_bytes": [None, 7],
            "ingest_problem": pl.Series([None] * 2, dtype=pl.String),
        },
        schema_overrides={"file_size_bytes": pl.Int64},
    )
    table.write(clips, run / "ingest.parquet", table.Provenance(stage="ingest", settings={}, inputs={}))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("data/a/one.mp4", b"first")
        archive.writestr("data/b/one.mp4", b"second")

    summary = fetch_plan.run_fetch_plan(run, [str(tmp_path / "all.zip")], tmp_path / "plan.csv")
    fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "out")

    assert fetched(tmp_path / "out") == {"a/one.mp4": b"first", "b/one.mp4": b"second"}
    assert summary.wrong_size == 1  # the file that is there has 7 bytes, its member 6


def test_a_file_of_several_clips_is_fetched_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    clips = pl.DataFrame(
        {
            "clip_id": ["1", "2"],
            "video_path": ["long.mp4"] * 2,
            "file_size_bytes": pl.Series([None] * 2, dtype=pl.Int64),
            "ingest_problem": pl.Series([None] * 2, dtype=pl.String),
        }
    )
    table.write(clips, run / "ingest.parquet", table.Provenance(stage="ingest", settings={}, inputs={}))
    write_zip(tmp_path / "all.zip", ["long.mp4"])

    summary = fetch_plan.run_fetch_plan(run, [str(tmp_path / "all.zip")], tmp_path / "plan.csv")

    assert (summary.clips_wanted, summary.files_planned) == (2, 1)
    assert pl.read_csv(tmp_path / "plan.csv")["clips"].to_list() == [2]


# ── parts that are not what they should be ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["X_partaa", "X_partac"], "X.zip: piece 2 of 3 is missing"),
        (["X.zip", "X_partaa"], "is there whole and in pieces"),
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
    with pytest.raises(InputError, match=r"cut.zip .*no whole zip"):
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

    summary = fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "out")

    assert fetched(tmp_path / "out") == {"clip07.mp4": content("clip07.mp4")}
    assert [line.split(": ")[0] for line in summary.failed] == ["clip01.mp4", "clip03.mp4", "clip05.mp4"]
    assert "CRC-32" in summary.failed[0]
    assert "no local header" in summary.failed[1]
    assert "local header is that of 'Xlip05.mp4'" in summary.failed[2]


def test_a_part_that_changed_since_the_plan_is_refused(run: Path, parts: Path, tmp_path: Path) -> None:
    fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")
    write_zip(parts / "OpenVid_part0.zip", ["other.mp4"])

    with pytest.raises(InputError, match=r"OpenVid_part0.zip: has .* bytes, .*plan.csv was made of"):
        fetch.run_fetch(tmp_path / "plan.csv", tmp_path / "out")
    again = fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "plan.csv")
    assert again.missing == 4  # what the old part held, and clip 19


def test_a_plan_that_was_edited_to_leave_its_folder_is_refused(
    run: Path, parts: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.csv"
    fetch_plan.run_fetch_plan(run, [str(parts)], plan)
    plan.write_text(plan.read_text().replace("clip01.mp4", "../clip01.mp4", 1))
    with pytest.raises(InputError, match="is no path inside a folder"):
        fetch.run_fetch(plan, tmp_path / "out")
    plan.write_text("a,b\n1,2\n")
    with pytest.raises(ColumnError, match=r"column .* is missing.*fetch-plan"):
        fetch.run_fetch(plan, tmp_path / "out")


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
    with pytest.raises(StageError, match="Begin with `vidcurate ingest`"):
        fetch_plan.run_fetch_plan(tmp_path / "none", [str(parts)], tmp_path / "plan.csv")
