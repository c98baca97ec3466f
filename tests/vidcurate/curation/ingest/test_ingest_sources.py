"""Each source's own table, with its own header and its own traps, becomes the same columns."""

from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.ingest.metadata_tables import (
    KOALA,
    KOALA_DERIVED,
    MIRADATA_V0,
    MIRADATA_V1,
    OPENSORA,
    OPENVID,
    PANDA,
    PANDA_ROWS,
    ingest,
    row_of,
    write_csv,
)
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.ingest.detect import SCHEMAS
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.errors import ColumnError, InputError, RecipeError
from vidcurate.recipe.recipe import parse


def test_openvid_keeps_every_column_and_finds_the_source_of_a_clip(tmp_path: Path) -> None:
    table = write_csv(
        tmp_path / "OpenVid-1M.csv",
        OPENVID,
        [
            ("FEbAwyrF1NM_0_0to112.mp4", " A cat, asleep. ", 5.1, "", 0.99, "static", 112, 29.97, 3.737),
            ("FEbAwyrF1NM_12_30to90.mp4", "A dog", 4.5, 2.5, 0.98, "pan_left", 60, 30, 2.0),
            ("celebv_FEbAwyrF1NM_0.mp4", "A face", 4.5, 2.5, 0.98, "", 60, 30, 2.0),
            ("random_clip_3.webm", "A street", 4.5, 2.5, 0.98, "zoom_in", 60.0, 30, 2.0),
        ],
    )
    summary, frame, _ = ingest(tmp_path / "run", table)
    assert (summary.schema, summary.rows_kept, summary.own_columns) == ("openvid", 4, ())
    assert "aesthetic score" in summary.reason
    assert frame.columns == [name for name, column in COLUMNS.items() if column.stage == "ingest"]
    assert dict(frame.schema) == {name: COLUMNS[name].dtype for name in frame.columns}
    first = row_of(frame, "FEbAwyrF1NM_0_0to112")
    assert first["caption"] == "A cat, asleep."
    assert (first["aesthetic_score"], first["motion_score"], first["num_frames"]) == (5.1, None, 112)
    assert (first["fps_from_metadata"], first["duration_seconds"]) == (29.97, 3.737)
    assert (first["width"], first["file_size_bytes"], first["ingest_problem"]) == (None, None, None)
    assert frame["source_id"].to_list() == ["FEbAwyrF1NM"] * 3 + ["random_clip_3.webm"]
    assert frame["source_dataset"].unique().to_list() == ["openvid"]


def test_miradata_v0_with_its_unnamed_columns_counts_frames_and_offers_six_captions(tmp_path: Path) -> None:
    cells = ("object", "background", "style", "camera", "short", "dense")
    name = "000000008783_AJp_ANXoGoM-000114"
    table = write_csv(
        tmp_path / "miradata_v0.csv",
        MIRADATA_V0,
        [
            (name, "AJp_ANXoGoM", 163272, 166872, *cells, 30, "1:30:42", "1:32:42", "", ""),
            ("000000000001_abc-000001", "abc", "x", 50, *cells, 25, "0:00:00", "0:00:02", "", ""),
        ],
    )
    summary, frame, report = ingest(tmp_path / "run", table)
    assert summary.schema == "miradata-v0"
    assert summary.own_columns == ("start_frame", "end_frame", "start_timestep", "end_timestep")
    names = ["dense", "main_object", "background", "style", "camera", "short"]
    assert [caption["name"] for caption in row_of(frame, name)["captions"]] == names
    assert row_of(frame, name)["caption_name"] == "dense"
    row = row_of(frame, name)
    assert (row["caption"], row["source_id"]) == ("dense", "AJp_ANXoGoM")
    assert (row["num_frames"], row["duration_seconds"]) == (3600, 120.0)
    assert (row["video_path"], row["start_seconds"]) == (f"{name}.mp4", None)
    assert frame["ingest_problem"].to_list() == [None, "bad_value"]
    assert report["bad_values"]["listed"][0]["column"] == "start_frame"

    _, frame, _ = ingest(tmp_path / "run2", table, files="sources", caption_column="short caption")
    row = row_of(frame, name)
    assert (row["caption"], row["video_path"]) == ("short", "000000008783_AJp_ANXoGoM.mp4")
    assert (row["start_seconds"], row["end_seconds"]) == (163272 / 30, 166872 / 30)


def test_miradata_v1_ids_are_text_and_timestamps_are_never_run(tmp_path: Path) -> None:
    span = "['00:00:01.500', '00:01:02.000']"
    captions = ("short", "dense", "background", "object", "style", "camera")

    def row(clip_id: str, timestamp: str, file_path: str) -> tuple[object, ...]:
        begin = (clip_id, "youtube", "u", "YouTubeId01", 1280, 720, 30.0, 60.5, timestamp, 1815, "[1, 2]")
        return (*begin, file_path, *captions)

    evil = "__import__('os').system('touch /tmp/never')"
    table = write_csv(
        tmp_path / "miradata_v1.csv",
        MIRADATA_V1,
        [
            row("12.1", span, "video/a.mp4"),
            row("12.10", span, "video/b.mp4"),
            row("12.2", evil, ""),
        ],
    )
    _, frame, report = ingest(tmp_path / "run", table)
    assert frame["clip_id"].to_list() == ["12.1", "12.10", "12.2"]
    assert frame["sample_key"].n_unique() == 3
    assert frame["ingest_problem"].to_list() == [None, None, "bad_value"]
    assert report["bad_values"]["listed"] == [
        {"row": 3, "clip_id": "12.2", "column": "timestamp", "value": evil}
    ]
    assert frame["video_path"].to_list() == ["video/a.mp4", "video/b.mp4", "12.2.mp4"]
    first = row_of(frame, "12.1")
    assert (first["caption"], first["width"], first["num_frames"]) == ("dense", 1280, 1815)
    assert (first["start_seconds"], first["duration_seconds"]) == (None, 60.5)

    _, frame, _ = ingest(tmp_path / "run2", table, files="sources", caption_column="short_caption")
    row_ = row_of(frame, "12.10")
    assert (row_["video_path"], row_["caption"]) == ("000000000012.mp4", "short")
    assert (row_["start_seconds"], row_["end_seconds"]) == (1.5, 62.0)


def test_koala_is_known_by_either_spelling_of_its_columns(tmp_path: Path) -> None:
    span = "['0:00:02.100', '0:00:07.100']"
    published = write_csv(
        tmp_path / "Koala_36M_1.csv", KOALA, [("0OUM4Yn-8cU_26", "u", span, "A koala", 0.9, 4.5, 6.0, -0.02)]
    )
    derived = write_csv(
        tmp_path / "derived.csv",
        KOALA_DERIVED,
        [("0OUM4Yn-8cU_26", 1920, 1080, 5.0, 25, "u", span, "A koala", 4.5, 0.9, 6.0, -0.02)],
    )
    for number, path in enumerate((published, derived)):
        summary, frame, _ = ingest(tmp_path / f"run{number}", path)
        assert (summary.schema, summary.rows_kept) == ("koala36m", 1)
        row = frame.row(0, named=True)
        assert (row["clip_id"], row["source_id"]) == ("0OUM4Yn-8cU_26", "0OUM4Yn-8cU")
        assert (row["clarity_score"], row["suitability_score"], row["motion_score"]) == (0.9, -0.02, 6.0)
        assert row["duration_seconds"] == pytest.approx(5.0)
        assert row["video_path"] == "0OUM4Yn-8cU_26.mp4"
    _, frame, _ = ingest(tmp_path / "sources", published, files="sources")
    row = frame.row(0, named=True)
    assert (row["video_path"], row["start_seconds"], row["end_seconds"]) == ("0OUM4Yn-8cU.mp4", 2.1, 7.1)


def test_opensora_aspect_ratio_is_height_over_width_and_a_turned_one_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "videos"
    (root / "part").mkdir(parents=True)
    for name in ("part/a.mp4", "b.mp4", "c.mp4", "d.mp4"):
        (root / name).write_bytes(b"x" * 10)
    table = write_csv(
        tmp_path / "train.csv",
        OPENSORA,
        [
            (root / "part/a.mp4", "right", 51, 720, 1280, 0.5625, 24, 921600, 10),
            (root / "b.mp4", "turned", 51, 720, 1280, 1.7778, 24, 921600, 10),
            (root / "c.mp4", "wrong area", 51, 720, 1280, 0.5625, 24, 1280, 10),
            (root / "d.mp4", "not opened", 0, 0, 0, 0, 0, 0, 10),
        ],
    )
    summary, frame, report = ingest(tmp_path / "run", table, videos=root)
    assert (summary.schema, summary.rows_kept) == ("opensora", 4)
    assert summary.own_columns == ("own_aspect_ratio", "resolution", "file_size")
    assert frame["clip_id"].to_list() == ["part/a", "b", "c", "d"]
    assert frame["video_path"].to_list() == ["part/a.mp4", "b.mp4", "c.mp4", "d.mp4"]
    assert frame["duration_seconds"][0] == 51 / 24
    assert report["disagreements"]["count"] == 2
    reported = [entry["what"] for entry in report["disagreements"]["listed"]]
    assert reported == [
        "aspect_ratio 1.7778 is width / height, not height / width",
        "resolution 1280 is not height x width",
    ]
    zero = row_of(frame, "d")
    assert (zero["width_from_metadata"], zero["width"]) == (0, None)
    assert (zero["num_frames_from_metadata"], zero["num_frames"]) == (0, None)


def test_a_table_is_read_by_a_column_map_in_any_format(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {
            "name of file": ["x/one.mp4", "two.mov"],
            "words": ["A red ball", "A blue ball"],
            "w": ["64", "32"],
            "begin": ["0:00:01.5", "2"],
            "stop": ["0:00:03", "4.5"],
            "junk": ["1", "2"],
        }
    )
    rows.write_csv(tmp_path / "t.csv")
    rows.write_csv(tmp_path / "t.tsv", separator="\t")
    rows.with_columns(pl.col("w").cast(pl.Int16)).write_parquet(tmp_path / "t.parquet")
    rows.with_columns(pl.col("w").cast(pl.Int16)).write_ndjson(tmp_path / "t.jsonl")
    column_map = {
        "video_path": "name of file",
        "caption": "words",
        "width_from_metadata": "w",
        "start_seconds": "begin",
        "end_seconds": "stop",
    }
    tables = []
    for path in sorted(tmp_path.glob("t.*")):
        summary, frame, _ = ingest(tmp_path / "run" / path.suffix[1:], path, map=column_map)
        assert (summary.schema, summary.reason) == ("table", "a column map was given")
        assert summary.own_columns == ("junk",)
        assert frame["junk"].cast(pl.String).to_list() == ["1", "2"]  # a number in a CSV, text elsewhere
        tables.append(frame.drop("junk"))
    assert len(tables) == 4
    for frame in tables:
        assert frame.equals(tables[0])
    assert tables[0]["clip_id"].to_list() == ["x/one", "two.mov"]
    assert tables[0]["width"].to_list() == [64, 32]
    assert tables[0]["start_seconds"].to_list() == [1.5, 2.0]
    assert tables[0]["duration_seconds"].to_list() == [1.5, 2.5]


def test_a_table_with_usual_names_needs_no_map(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "m.csv", "path,text,fps,frames", [("a.mp4", "A ball", 24, 48)])
    summary, frame, _ = ingest(tmp_path / "run", path, dataset="mine")
    assert (summary.schema, summary.reason) == ("table", "path names the clip and text is a caption")
    row = frame.row(0, named=True)
    assert (row["source_dataset"], row["source_id"], row["num_frames"]) == ("mine", "a", 48)


def test_json_lines_keep_an_id_that_is_text_and_refuse_one_that_lost_its_zero(tmp_path: Path) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text('{"clip_id": "12.10", "caption": "a"}\n{"clip_id": "12.1", "caption": "b", "fps": 24}\n')
    _, frame, _ = ingest(tmp_path / "run", good)
    assert frame["clip_id"].to_list() == ["12.10", "12.1"]
    assert frame["fps"].to_list() == [None, 24.0]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"clip_id": 12.10, "caption": "a"}\n{"clip_id": 12.1, "caption": "b"}\n')
    with pytest.raises(ColumnError, match=r"'clip_id' are floating numbers"):
        ingest(tmp_path / "run2", bad)


def test_auto_names_the_columns_it_saw_when_nothing_or_two_things_fit(tmp_path: Path) -> None:
    unknown = write_csv(tmp_path / "u.csv", "foo,bar", [("1", "2")])
    with pytest.raises(
        InputError, match=r"no known schema has these columns \(foo, bar\)\. Known: auto, openvid"
    ):
        ingest(tmp_path / "run", unknown)
    both = write_csv(tmp_path / "b.csv", PANDA + ",vtss", [(*PANDA_ROWS[0], 1)])
    with pytest.raises(InputError, match="the columns fit panda70m and koala36m; say which"):
        ingest(tmp_path / "run", both)
    summary, _, _ = ingest(tmp_path / "run", both, schema="panda70m")
    assert summary.reason == "asked for"


def test_an_unknown_schema_in_a_recipe_is_one_line_that_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        parse("metadata: a.csv\nschema: openvidd\n", IngestSpec, where="r.yaml")
    assert "r.yaml:2" in str(caught.value)
    assert "openvid" in str(caught.value)
    assert "\n" not in str(caught.value)
    for name in SCHEMAS:
        parse(f"metadata: a.csv\nschema: {name}\n", IngestSpec, where="r.yaml")
