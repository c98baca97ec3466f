"""Panda-70M: a row is a list of clips, and a cell that is no list is a bad value."""

from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.ingest.metadata_tables import PANDA, PANDA_ROWS, ingest, row_of, write_csv


def test_panda_rows_are_exploded_and_a_bad_row_is_named_not_fatal(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "panda.csv", PANDA, PANDA_ROWS)
    summary, frame, report = ingest(tmp_path / "run", table)
    assert (summary.schema, summary.rows_in, summary.rows_kept) == ("panda70m", 5, 2)
    first, second = frame.row(0, named=True), frame.row(1, named=True)
    assert (first["clip_id"], first["source_id"]) == ("--xyz_00000", "--xyz")
    assert (first["video_path"], second["video_path"]) == ("--xyz.mp4", "--xyz.mp4")
    assert (first["caption"], second["caption"]) == ('It\'s a "cat"', "a dog, running")
    assert (second["start_seconds"], second["end_seconds"], second["duration_seconds"]) == (4.0, 60.0, 56.0)
    assert (second["matching_score"], second["desirable_filtering"]) == (0.25, "2_tiny_camera_movement")
    assert frame["clip_id"].to_list()[2:] == ["uneven", "notalist", "badspan_00000"]
    said = {bad["clip_id"]: bad["value"] for bad in report["bad_values"]["listed"]}
    assert said["uneven"] == "lists of unequal length (1, but caption 2)"
    assert said["notalist"] == "os.getcwd()"

    _, frame, _ = ingest(tmp_path / "run2", table, files="clips")
    second = row_of(frame, "--xyz_00001")
    assert (second["video_path"], second["start_seconds"]) == ("--xyz_00001.mp4", None)
    assert second["duration_seconds"] == 56.0


@pytest.mark.parametrize(
    "cell",
    [
        "[" * 100_000,
        "-" * 200_000 + "1",
        "[" * 199 + "]" * 199,
        "a" + "[0]" * 100_000,
        "not " * 100_000 + "1",
        f"[0x{'f' * 20_000}]",
        f"[[0x{'f' * 20_000}]]",
        r"['\ud800']",
        r"[['\ud800', '1']]",
    ],
    ids=[
        "brackets",
        "minus",
        "nested",
        "index",
        "not",
        "long",
        "long inside",
        "surrogate",
        "surrogate inside",
    ],
)
@pytest.mark.parametrize("column", [2, 3, 4])
def test_a_hostile_panda_cell_is_a_bad_value(tmp_path: Path, cell: str, column: int) -> None:
    row = ["hostile", "u", "[['0:00:01', '0:00:03']]", "['one']", "[0.1]", "['desirable']", "[[]]"]
    row[column] = cell
    table = write_csv(tmp_path / "panda.csv", PANDA, [PANDA_ROWS[0], row])

    summary, frame, _ = ingest(tmp_path / "run", table)

    assert summary.rows_in == 3
    assert frame["ingest_problem"].to_list()[:2] == [None, None]
    if "[[" not in cell or column == 2:
        assert frame["ingest_problem"].to_list()[2] is not None


def test_panda_lists_in_parquet_need_no_parsing(tmp_path: Path) -> None:
    path = tmp_path / "panda.parquet"
    pl.DataFrame(
        {
            "videoID": ["v"],
            "timestamp": [[["0:00:01.000", "0:00:03.500"], ["0:00:04.000", "0:00:06.000"]]],
            "caption": [["one", "two"]],
            "matching_score": [[0.5, 0.75]],
        }
    ).write_parquet(path)
    _, frame, _ = ingest(tmp_path / "run", path)
    assert frame["caption"].to_list() == ["one", "two"]
    assert frame["matching_score"].to_list() == [0.5, 0.75]
    assert frame["start_seconds"].to_list() == [1.0, 4.0]
