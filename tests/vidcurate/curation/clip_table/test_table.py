from pathlib import Path

import polars as pl
import pytest

from vidcurate.curation.clip_table import table
from vidcurate.errors import InputError, StageError, StorageError, TableError


def origin(stage: str = "ingest", **inputs: str) -> table.Provenance:
    return table.Provenance(stage=stage, settings={"a": 1}, inputs=inputs)


def clips(*ids: str) -> pl.DataFrame:
    return pl.DataFrame({"clip_id": list(ids), "height": [240] * len(ids)})


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    table.write(clips("a", "b"), tmp_path / "1.parquet", origin())
    table.write(clips("a", "b").lazy(), tmp_path / "2.parquet", origin())

    assert table.digest(tmp_path / "1.parquet") == table.digest(tmp_path / "2.parquet")


def test_a_table_says_where_it_comes_from_and_what_its_columns_mean(tmp_path: Path) -> None:
    path = tmp_path / "ingest.parquet"

    table.write(clips("a"), path, origin())

    assert table.provenance(path) == origin()
    assert '"unit": "px"' in pl.read_parquet_metadata(path)["columns"]
    assert table.is_up_to_date(path, origin())
    assert not table.is_up_to_date(path, origin(other="x"))


def test_a_failed_write_leaves_the_old_table(tmp_path: Path) -> None:
    path = tmp_path / "ingest.parquet"
    table.write(clips("a"), path, origin())
    before = path.read_bytes()

    with pytest.raises(pl.exceptions.PolarsError):
        table.write(clips("b").lazy().with_columns(pl.col("clip_id").cast(pl.Int32)), path, origin())

    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["ingest.parquet"]


def test_a_table_written_beside_other_files_comes_last(tmp_path: Path) -> None:
    path, other = tmp_path / "ingest.parquet", tmp_path / "other.parquet"
    table.write(clips("a"), path, origin())
    before = path.read_bytes()

    with table.writing(clips("a", "b"), path, origin()):
        table.write(clips("c"), other, origin())
        assert path.read_bytes() == before
    table.write(clips("a", "b"), other, origin())

    assert path.read_bytes() == other.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ingest.parquet", "other.parquet"]


def test_a_block_that_fails_beside_a_write_leaves_the_old_table(tmp_path: Path) -> None:
    path = tmp_path / "ingest.parquet"
    table.write(clips("a"), path, origin())
    before = path.read_bytes()

    with pytest.raises(OSError, match="of another file"), table.writing(clips("b", "c"), path, origin()):
        raise OSError(5, "of another file")

    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["ingest.parquet"]


def test_a_write_that_fails_beside_a_block_leaves_the_old_table(tmp_path: Path) -> None:
    path = tmp_path / "ingest.parquet"
    table.write(clips("a"), path, origin())
    before = path.read_bytes()
    wrong = clips("b").lazy().with_columns(pl.col("clip_id").cast(pl.Int32))

    with pytest.raises(pl.exceptions.PolarsError), table.writing(wrong, path, origin()):
        pass

    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["ingest.parquet"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match=r"file/x\.parquet: cannot be written"):
        table.write(clips("a"), tmp_path / "file" / "x.parquet", origin())
    with (
        pytest.raises(StorageError, match=r"file/x\.parquet: cannot be written"),
        table.writing(clips("a"), tmp_path / "file" / "x.parquet", origin()),
    ):
        raise AssertionError("the block ran")


def test_a_stage_reads_the_nearest_earlier_one(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no such run folder"):
        table.previous_stage(tmp_path / "none", "filter")
    with pytest.raises(StageError, match="Run `vidcurate ingest` first"):
        table.previous_stage(tmp_path, "filter")
    table.write(clips("a"), tmp_path / "ingest.parquet", origin())
    digest = table.digest(tmp_path / "ingest.parquet")
    table.write(clips("a"), tmp_path / "score.parquet", origin("score", ingest=digest))

    assert table.previous_stage(tmp_path, "filter") == "score"
    assert table.previous_stage(tmp_path, "score") == "ingest"
    assert table.newest_stage(tmp_path) == "score"


def test_a_stage_refuses_a_table_made_from_an_older_one(tmp_path: Path) -> None:
    table.write(clips("a"), tmp_path / "ingest.parquet", origin())
    digest = table.digest(tmp_path / "ingest.parquet")
    table.write(clips("a"), tmp_path / "score.parquet", origin("score", ingest=digest))
    table.write(clips("a", "b"), tmp_path / "ingest.parquet", origin())

    with pytest.raises(
        StageError, match=r"score\.parquet: made from an older ingest\.parquet\. Run `vidcurate score`"
    ):
        table.previous_stage(tmp_path, "filter")
    (tmp_path / "ingest.parquet").unlink()
    with pytest.raises(StageError, match=r"ingest\.parquet: missing"):
        table.previous_stage(tmp_path, "filter")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"text, not Parquet", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "probe.parquet"
    path.write_bytes(content)

    with pytest.raises(TableError, match=r"probe\.parquet: not a table written by vidcurate"):
        table.scan(tmp_path, "probe")
    assert not table.is_up_to_date(path, origin())


def test_someone_elses_parquet_is_not_taken(tmp_path: Path) -> None:
    clips("a").write_parquet(tmp_path / "probe.parquet")

    with pytest.raises(TableError, match="not a table written by vidcurate"):
        table.scan(tmp_path, "probe")
    with pytest.raises(StageError, match="Run `vidcurate split-by-difficulty` first"):
        table.scan(tmp_path, "split")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_with_lists_is_exported_in_every_format(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame(
        {
            "clip_id": ["a", "b", "c"],
            "cuts": pl.Series([[0.5, 2.0], [], None], dtype=pl.List(pl.Float64)),
            "hashes": pl.Series([[2**64 - 1], None, [1, 2]], dtype=pl.List(pl.UInt64)),
        }
    )
    path = tmp_path / f"clips{suffix}"

    table.export(frame.lazy(), path)

    if suffix == ".csv":
        written = pl.read_csv(path)
        assert written["cuts"].to_list() == ["[0.5,2.0]", "[]", None]
        assert written["hashes"].to_list() == [f"[{2**64 - 1}]", None, "[1,2]"]
    else:
        read = pl.read_ndjson if suffix == ".jsonl" else pl.read_parquet
        assert read(path)["cuts"].to_list() == [[0.5, 2.0], [], None]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_export_takes_the_place_of_a_file_and_never_of_a_stages_table(
    tmp_path: Path, is_damaged: bool
) -> None:
    exported, own = tmp_path / "clips.parquet", tmp_path / "ingest.parquet"
    table.write(clips("a", "b"), own, origin())
    whole = own.read_bytes()
    if is_damaged:
        own.write_bytes(whole.replace(b"PAR1", b"PAR0", 1))

    for _ in range(2):
        table.export(table.scan(tmp_path, "ingest") if not is_damaged else clips("a").lazy(), exported)
    with pytest.raises(InputError, match=f"^{own}: is a file of a stage"):
        table.export(clips("c").lazy(), own)

    assert len(own.read_bytes()) == len(whole)


@pytest.mark.parametrize("name", ["captions.jsonl", "costs.jsonl", "reviews.jsonl"])
def test_an_export_never_takes_the_place_of_what_a_run_has_written_down(tmp_path: Path, name: str) -> None:
    table.export(clips("a").lazy(), tmp_path / name)  # no run is here
    table.write(clips("a", "b"), tmp_path / "ingest.parquet", origin())
    before = (tmp_path / name).read_bytes()

    with pytest.raises(InputError, match=rf"{name}: is a file of a stage, which a run needs"):
        table.export(clips("c").lazy(), tmp_path / name)

    assert (tmp_path / name).read_bytes() == before
