"""A plan of byte ranges and what is fetched by it, from disk and over http."""

import json
import struct
import time
import zipfile
import zlib
from email.utils import formatdate
from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.fetch.made import (
    NAMES,
    WANTED,
    Handler,
    content,
    fetched,
    places,
    split,
    write_zip,
)
from vidcurate.curation.clip_table import table
from vidcurate.curation.fetch import plan as fetch_plan
from vidcurate.curation.fetch import stage as fetch_stage
from vidcurate.curation.fetch import zips
from vidcurate.errors import InputError, StorageError
from vidcurate.storage import ranges


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

    first = fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")
    assert fetched(tmp_path / "videos") == WANTED
    (tmp_path / "videos" / "clip03.mp4").unlink()
    again = fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    assert (first.files_fetched, first.files_there, first.files_failed) == (9, 0, 0)
    assert (again.files_fetched, again.files_there) == (1, 8)
    assert fetched(tmp_path / "videos") == WANTED


def test_the_same_plan_is_made_and_fetched_over_http(
    run: Path, parts: Path, tmp_path: Path, server: tuple[str, type[Handler]]
) -> None:
    address, handler = server
    fetch_plan.run_fetch_plan(run, [str(parts)], tmp_path / "local.csv")
    (tmp_path / "parts.txt").write_text("# the parts\n" + "\n".join(places(address, parts)) + "\n")

    summary = fetch_plan.run_fetch_plan(run, [str(tmp_path / "parts.txt")], tmp_path / "plan.csv")
    asked = len(handler.asked)
    result = fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    local, remote = (pl.read_csv(tmp_path / name).drop("place") for name in ("local.csv", "plan.csv"))
    assert remote.equals(local)
    assert asked == 4 + 4  # the size of each piece, and the tail of each part: one is in two pieces
    assert result.files_fetched == summary.files_planned
    assert fetched(tmp_path / "videos") == WANTED
    before = len(handler.asked)
    fetch_plan.run_fetch_plan(run, places(address, parts), tmp_path / "plan.csv")
    assert len(handler.asked) == before + 4  # the directories are kept in RUN/parts.parquet


def test_a_connection_that_breaks_is_taken_up_again(
    run: Path, parts: Path, tmp_path: Path, server: tuple[str, type[Handler]]
) -> None:
    address, handler = server
    fetch_plan.run_fetch_plan(run, places(address, parts), tmp_path / "plan.csv")
    broken: dict[str, int] = {}

    def breaks(request: Handler) -> bool:
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

    handler.problem = staticmethod(breaks)
    result = fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    assert result.files_failed == 0
    assert fetched(tmp_path / "videos") == WANTED


def test_a_server_that_stays_down_is_named_and_what_was_fetched_stays(
    run: Path, parts: Path, tmp_path: Path, server: tuple[str, type[Handler]]
) -> None:
    address, handler = server
    fetch_plan.run_fetch_plan(run, places(address, parts), tmp_path / "plan.csv")

    def down(request: Handler) -> bool:
        if "part10" in request.path and request.headers["Range"] != "bytes=0-0":
            request.send_error(503)
            return True
        return False

    handler.problem = staticmethod(down)
    with pytest.raises(
        StorageError, match=r"OpenVid_part10.zip: failed 5 times, at last with: the server answers 503"
    ):
        fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "videos", num_workers=1)
    handler.problem = staticmethod(lambda _: False)
    result = fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "videos")

    assert result.files_there > 0
    assert fetched(tmp_path / "videos") == WANTED


@pytest.mark.parametrize(
    ("answer", "message"),
    [(404, "the server answers 404"), (200, "ignores byte ranges"), (0, "does not tell the file's size")],
)
def test_a_server_that_cannot_serve_ranges_is_refused(
    parts: Path, server: tuple[str, type[Handler]], answer: int, message: str
) -> None:
    address, handler = server

    def odd(request: Handler) -> bool:
        if answer == 404:
            request.send_error(404)
        else:
            request.send_response(answer or 206)
            request.send_header("Content-Length", "0")
            request.end_headers()
        return True

    handler.problem = staticmethod(odd)
    with pytest.raises(InputError, match=message):
        zips.find_parts([f"{address}/OpenVid_part0.zip"])


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
    fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "out")

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


@pytest.mark.parametrize("form", ["7", "date"])
def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(
    run: Path,
    parts: Path,
    tmp_path: Path,
    server: tuple[str, type[Handler]],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    address, handler = server
    fetch_plan.run_fetch_plan(run, places(address, parts), tmp_path / "plan.csv")
    waited: list[float] = []
    monkeypatch.setattr(ranges.time, "sleep", waited.append)
    asked = 7.0

    def busy_once(request: Handler) -> bool:
        handler.problem = staticmethod(lambda _: False)  # type: ignore[assignment]
        request.send_response(429)
        wait = formatdate(time.time() + asked + 0.5, usegmt=True) if form == "date" else f"{asked:.0f}"
        request.send_header("Retry-After", wait)
        request.send_header("Content-Length", "0")
        request.end_headers()
        return True

    handler.problem = staticmethod(busy_once)  # type: ignore[assignment]
    summary = fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "out", num_workers=1)
    assert summary.files_failed == 0
    assert len(waited) == 1
    assert 5.5 < waited[0] < 8.5

    asked = 86_400.0
    handler.problem = staticmethod(busy_once)  # type: ignore[assignment]
    with pytest.raises(StorageError, match=r"answers 429 and asks for 86,\d+ s without a request\. Run"):
        fetch_stage.run_fetch(tmp_path / "plan.csv", tmp_path / "other", num_workers=1)
