"""Rows against files: each row by its name, and no file outside the folder is opened."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.ingest.metadata_tables import OPENVID, ingest, openvid_row, row_of, write_csv
from vidcurate.curation.probe.stage import ProbeSpec, run_probe


def test_rows_and_files_are_reconciled_by_name(tmp_path: Path, videos: Path) -> None:
    table = write_csv(
        tmp_path / "t.csv",
        OPENVID,
        [
            openvid_row("a.mp4"),
            openvid_row("b.mp4"),  # lies below the root, once
            openvid_row("c.mp4"),  # lies below the root, twice
            openvid_row("gone.mp4", ""),
            openvid_row("a.mp4"),
            openvid_row("a.mp4"),
        ],
    )
    summary, frame, report = ingest(tmp_path / "run", table, videos=videos)
    assert summary.problems == {"extra_file": 3, "duplicate_id": 2, "missing_file": 2}
    assert (summary.metadata_rows, summary.rows_in, summary.rows_kept) == (6, 9, 2)
    assert frame["clip_id"].to_list() == [
        *("a", "b", "c", "gone", "a#2", "a#3"),
        *("extra.MP4", "other/c", "part/c"),
    ]
    assert frame["video_path"].to_list()[:2] == ["a.mp4", "part/b.mp4"]
    assert row_of(frame, "a#2")["source_id"] == "a.mp4"[:1]
    assert row_of(frame, "part/c")["ingest_problem"] == "extra_file"
    assert row_of(frame, "part/c")["caption"] is None
    assert row_of(frame, "b")["file_size_bytes"] == 1
    assert report["found_by_name"]["listed"] == [
        {"row": 2, "clip_id": "b", "path": "b.mp4", "found": "part/b.mp4"}
    ]
    assert report["ambiguous_names"]["listed"] == [{"row": 3, "clip_id": "c", "path": "c.mp4"}]
    assert report["missing_files"]["count"] == 2
    assert report["empty_captions"]["listed"] == [{"row": 4, "clip_id": "gone"}]
    assert report["duplicate_ids"]["listed"][1] == {"row": 6, "clip_id": "a#3", "id": "a", "first_row": 1}
    assert report["other_files"] == 1
    assert frame["sample_key"].n_unique() == frame.height


def test_a_file_that_another_row_names_is_never_taken_for_a_missing_one(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    for name in ("0002.mp4", "setB/0001.mp4", "setC/0003.mp4"):
        (videos / name).parent.mkdir(parents=True, exist_ok=True)
        (videos / name).write_bytes(b"x")
    names = ("0001.mp4", "0002.mp4", "setB/0001.mp4", "0003.mp4")
    openvid = write_csv(
        tmp_path / "t.csv", OPENVID, [openvid_row(name, f"caption of {name}") for name in names]
    )
    summary, frame, report = ingest(tmp_path / "run", openvid, videos=videos)

    rows = {row["video_path"]: row for row in frame.to_dicts() if not row["ingest_problem"]}
    assert {path: row["caption"] for path, row in rows.items()} == {
        "0002.mp4": "caption of 0002.mp4",
        "setB/0001.mp4": "caption of setB/0001.mp4",
        "setC/0003.mp4": "caption of 0003.mp4",
    }
    assert summary.problems == {"missing_file": 1}
    assert [row["path"] for row in report["found_by_name"]["listed"]] == ["0003.mp4"]


@pytest.mark.parametrize("has_videos", [False, True])
def test_a_path_with_a_nul_byte_is_never_opened(tmp_path: Path, videos: Path, has_videos: bool) -> None:
    table = tmp_path / "t.jsonl"
    rows = [
        {"clip_id": str(n), "video": path, "caption": "A ball"} for n, path in enumerate(("a.mp4", "a\0.mp4"))
    ]
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    ingest(tmp_path / "run", table, schema="table", videos=videos if has_videos else None)
    run_probe(tmp_path / "run", ProbeSpec(videos=videos))

    found = pl.read_parquet(tmp_path / "run/ingest.parquet", columns=["clip_id", "ingest_problem"])
    assert dict(found.iter_rows())["1"] == "path_outside_root"
    probed = pl.read_parquet(tmp_path / "run/probe.parquet", columns=["clip_id", "probe_status"])
    assert dict(probed.iter_rows())["1"] == "not_probed"


def test_a_table_of_ones_own_says_where_its_files_lie_and_no_name_is_looked_for(tmp_path: Path) -> None:
    videos = tmp_path / "videos" / "setC"
    videos.mkdir(parents=True)
    (videos / "0003.mp4").write_bytes(b"x")
    (tmp_path / "t.csv").write_text("path,caption\n0003.mp4,A dog runs\n")

    summary, _, report = ingest(
        tmp_path / "run", tmp_path / "t.csv", videos=tmp_path / "videos", schema="table"
    )

    assert summary.problems == {"missing_file": 1, "extra_file": 1}
    assert report["found_by_name"]["count"] == 0


def test_a_missing_file_and_one_of_nearly_its_name_are_named_together(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in (" a.mp4", "b\\c.mp4", "D.MP4", "e\u0301.mp4", "f .mp4", "g.mp4", "h.mp4", "H.mp4", "i.mp4"):
        (videos / name).write_bytes(b"x")
    names = [" a.mp4", "b\\c.mp4", "d.mp4", "\u00e9.mp4", "g.mp4", "G.mp4", "x/h.mp4", "I.mp4", "i.MP4"]
    (tmp_path / "t.csv").write_text("path,caption\n" + "".join(f'"{name}",A dog runs\n' for name in names))

    summary, frame, report = ingest(tmp_path / "run", tmp_path / "t.csv", videos=videos)

    assert [row["clip_id"] for row in frame.to_dicts() if row["ingest_problem"] is None] == ["g"]
    assert summary.problems == {"extra_file": 8, "missing_file": 8}
    assert {entry["row"]: entry["what"] for entry in report["disagreements"]["listed"]} == {
        1: "names 'a.mp4'; the file is ' a.mp4', with other blanks",
        2: "names 'b\\c.mp4'; the file is 'b\\c.mp4', and a table's \\ is a /",
        3: "names 'd.mp4'; the file is 'D.MP4', in other letter case",
        4: "names 'é.mp4'; the file is 'e\u0301.mp4', in another Unicode normal form",
        8: "names 'I.mp4'; the file is 'i.mp4', in other letter case",
        9: "names 'i.MP4'; the file is 'i.mp4', in other letter case",
    }


def test_links_that_run_in_a_circle_are_no_files_and_stop_nothing(tmp_path: Path, videos: Path) -> None:
    (videos / "loop.mp4").symlink_to("loop.mp4")
    (videos / "one.mp4").symlink_to("two.mp4")
    (videos / "two.mp4").symlink_to("one.mp4")
    (videos / "folder").symlink_to(".")
    table = write_csv(tmp_path / "t.csv", OPENVID, [openvid_row("a.mp4"), openvid_row("loop.mp4")])

    _, frame, _ = ingest(tmp_path / "run", table, videos=videos)

    assert row_of(frame, "a")["ingest_problem"] is None
    assert row_of(frame, "loop")["ingest_problem"] == "missing_file"


def test_a_loop_below_a_linked_folder_is_a_missing_file(tmp_path: Path, videos: Path) -> None:
    (videos / "part" / "loop.mp4").symlink_to("loop.mp4")
    (videos / "link").symlink_to("part")
    names = ["a.mp4", "link/b.mp4", "link/loop.mp4", "link/loop.mp4/x.mp4"]
    table = write_csv(tmp_path / "t.csv", OPENVID, [openvid_row(name) for name in names])

    _, frame, _ = ingest(tmp_path / "run", table, videos=videos)

    assert frame["ingest_problem"].to_list()[:4] == [None, None, "missing_file", "missing_file"]
    assert frame["video_path"].to_list()[1] == "part/b.mp4"


@pytest.mark.parametrize("folder", ["part", ".hidden"])
def test_a_file_named_through_a_linked_folder_is_found_for_no_other_row(
    tmp_path: Path, videos: Path, folder: str
) -> None:
    (videos / folder).mkdir(exist_ok=True)
    (videos / folder / "only.mp4").write_bytes(b"x")
    (videos / "link").symlink_to(folder)
    rows = [openvid_row("only.mp4"), openvid_row("link/only.mp4")]
    table = write_csv(tmp_path / "t.csv", OPENVID, rows)

    _, frame, _ = ingest(tmp_path / "run", table, videos=videos)

    assert frame["ingest_problem"].to_list()[:2] == ["missing_file", None]
    assert frame["video_path"].to_list()[:2] == ["only.mp4", f"{folder}/only.mp4"]


def test_no_path_that_leaves_the_folder_is_ever_opened(tmp_path: Path, videos: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "d.mp4").write_bytes(b"secret")
    (videos / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (videos / "inside.mp4").symlink_to(videos / "a.mp4")
    (videos / "dangling.mp4").symlink_to(videos / "nothing.mp4")
    (videos / "linked").symlink_to(outside)
    (videos / "again").symlink_to(videos / "part")
    names = {
        "../secret.mp4": "path_outside_root",
        "part/../../secret.mp4": "path_outside_root",
        "..\\secret.mp4": "path_outside_root",
        str(tmp_path / "secret.mp4"): "path_outside_root",
        "link.mp4": "path_outside_root",
        "linked/d.mp4": "path_outside_root",
        "dangling.mp4": "missing_file",
        "..": "path_outside_root",
        "http://host/a.mp4": "missing_file",
        "again/b.mp4": None,
        "inside.mp4": None,
        "part//./c.mp4": None,
        str(videos / "other/c.mp4"): None,
        "./part/../a.mp4": None,
    }
    table = write_csv(tmp_path / "t.csv", OPENVID, [openvid_row(name) for name in names])
    _, frame, report = ingest(tmp_path / "run", table, videos=videos)
    rows = frame.head(len(names))
    assert dict(zip(names, rows["ingest_problem"], strict=True)) == names
    assert rows["video_path"].to_list()[-5:] == [
        "part/b.mp4",
        "inside.mp4",
        "part/c.mp4",
        "other/c.mp4",
        "a.mp4",
    ]
    assert rows.filter(pl.col("ingest_problem") == "path_outside_root")["file_size_bytes"].null_count() == 7
    assert report["paths_outside_root"]["count"] == 7


def test_an_absolute_path_is_checked_against_the_folder_of_this_run(tmp_path: Path, videos: Path) -> None:
    table = write_csv(tmp_path / "t.csv", OPENVID, [openvid_row(str(videos / "a.mp4"))])
    run = tmp_path / "run"
    _, frame, _ = ingest(run, table)  # without a folder there is no outside
    assert (frame["video_path"][0], frame["ingest_problem"][0]) == (str(videos / "a.mp4"), None)
    _, frame, _ = ingest(run, table, videos=videos)
    assert frame["ingest_problem"][0] is None
    moved = tmp_path / "moved"
    videos.rename(moved)
    summary, frame, _ = ingest(run, table, videos=moved)  # the same listing under another name
    assert not summary.up_to_date
    assert frame["ingest_problem"][0] == "path_outside_root"


def test_a_renamed_video_folder_is_up_to_date_and_known_by_its_new_name(tmp_path: Path, videos: Path) -> None:
    table = write_csv(tmp_path / "t.csv", OPENVID, [openvid_row("a.mp4")])
    _, _, report = ingest(tmp_path / "run", table, videos=videos)
    assert report["videos"] == str(videos)
    moved = videos.rename(tmp_path / "moved")
    summary, _, report = ingest(tmp_path / "run", table, videos=moved)
    assert summary.up_to_date
    assert report["videos"] == summary.videos == str(moved)


def test_the_real_captions_are_reconciled_as_their_readme_says(tmp_path: Path, shared: Path) -> None:
    data = shared / "data"
    summary, frame, report = ingest(tmp_path / "run", data / "captions_openvid.csv", videos=data / "clips")
    assert summary.problems == {"extra_file": 2, "duplicate_id": 1, "missing_file": 2, "empty_caption": 2}
    assert [entry["path"] for entry in report["missing_files"]["listed"]] == [
        "missing_1.mp4",
        "missing_2.mp4",
    ]
    assert [entry["path"] for entry in report["extra_files"]["listed"]] == ["empty.mp4", "not_a_video.mp4"]
    assert [entry["id"] for entry in report["duplicate_ids"]["listed"]] == ["ft_hiker"]
    assert [entry["clip_id"] for entry in report["empty_captions"]["listed"]] == [
        "dn_uuid540",
        "tc_h265_10bit",
    ]
    manifest = pl.read_csv(data / "manifest.csv", infer_schema=False)["file"]
    assert set(manifest) <= set(frame["video_path"])
