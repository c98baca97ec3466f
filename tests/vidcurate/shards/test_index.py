"""The index gives back what was written, reads any clip at its offset, and its fingerprints tell changes."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.call_count import calls_of
from tests.vidcurate.shards.index_rows import SHARD, columns, write_shards
from vidcurate.errors import MissingError, ShardError, StorageError
from vidcurate.shards import index, index_file
from vidcurate.shards.read_clip import read_clip_bytes, read_clip_facts
from vidcurate.storage.checksum import crc32c


def test_every_value_comes_back_exactly(folder: Path) -> None:
    rows, opened = columns(), index.read_index(folder)
    assert len(opened) == 12
    for name in (
        "sample_key",
        "clip_id",
        "source_id",
        "source_dataset",
        "fold",
        "video_extension",
        "caption",
    ):
        assert opened.words(name).to_pylist() == rows[name]
    for name in ("level", "video_offset", "video_size", "width", "fps", "num_frames"):
        assert getattr(opened, name).tolist() == rows[name]
    for name in ("json_offset", "json_size", "json_crc32c", "video_crc32c", "noun_count", "duration_seconds"):
        assert opened.numbers(name).tolist() == rows[name]
    assert [opened.shards[number] for number in opened.shard_number] == rows["shard"]
    assert pl.read_parquet(folder / "index.parquet")["caption"].to_list() == rows["caption"]


def test_where_a_clip_lies_is_read_by_row_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "_ROWS_PER_GROUP", 5)
    rows = columns(frame_map=[b"", None, *(bytes([number]) for number in range(10))])
    index_file.write_index(folder, rows)
    opened = index.read_index(folder)
    read = []
    real = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, number: int, **given: Any) -> pa.Table:
        read.append(number)
        return real(file, number, **given)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    assert [opened.at("frame_map", row) for row in (11, 7, 8, 10)] == [b"\x09", b"\x05", b"\x06", b"\x08"]
    assert read == [2, 1]
    names = (
        "json_offset",
        "json_crc32c",
        "source_dataset",
        "frame_map",
        "clip_id",
        "level",
        "caption",
        "noun_count",
    )
    for name in names:
        assert [opened.at(name, row) for row in range(12)] == opened.words(name).to_pylist()
    assert read == [2, 1, 0]
    with pytest.raises(IndexError):
        index.read_index(folder).at("frame_map", 12)


def test_an_index_that_another_has_replaced_is_not_read_on(folder: Path) -> None:
    opened, late = index.read_index(folder), index.read_index(folder)
    assert opened.at("json_size", 0) == 2
    index_file.write_index(folder, columns(caption=["other words"] * 12))
    assert opened.at("json_crc32c", 11) == crc32c(b"{}")  # of the file that is open
    with pytest.raises(ShardError, match=r"index\.parquet: another index replaced this one while in use"):
        _ = opened.captions
    with pytest.raises(ShardError, match=r"index\.parquet: another index replaced this one while in use"):
        late.at("json_size", 0)
    (folder / "index.parquet").unlink()
    with pytest.raises(ShardError, match=r"index\.parquet: this index was removed while in use"):
        _ = opened.captions


def test_the_order_of_the_rows_given_does_not_matter(folder: Path, tmp_path: Path) -> None:
    rows = columns()
    shuffled = list(range(12))
    random.Random(0).shuffle(shuffled)
    (tmp_path / "other").mkdir()
    index_file.write_index(
        tmp_path / "other", {name: [values[i] for i in shuffled] for name, values in rows.items()}
    )
    assert (tmp_path / "other" / "index.parquet").read_bytes() == (folder / "index.parquet").read_bytes()


def test_any_clip_is_read_at_its_offset(folder: Path) -> None:
    opened = index.read_index(folder)
    for row in np.random.default_rng(0).permutation(12):
        assert read_clip_bytes(opened, int(row)) == bytes([row]) * (10 + row)
        assert read_clip_facts(opened, int(row)) == {}


def test_a_missing_or_short_shard_is_named_when_the_index_is_opened(folder: Path) -> None:
    path = folder / SHARD.format(1)
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ShardError, match=r"000001\.tar: has 4000 bytes and the index needs 4119"):
        index.read_index(folder)
    opened = index.read_index(folder, check_files=False)
    with pytest.raises(ShardError, match="has 0 bytes of video with CRC-32C"):
        read_clip_bytes(opened, 9)
    path.unlink()
    with pytest.raises(
        ShardError, match=r"000001\.tar: named by the index and cannot be read \(No such file"
    ):
        index.read_index(folder)
    with pytest.raises(ShardError, match=r"clip 'clip_0000009' cannot be read"):
        read_clip_bytes(opened, 9)


def test_no_index_and_a_damaged_one_are_reported_apart(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no such index\. Run `vidcurate build-shards`"):
        index.read_index(tmp_path / "nowhere")
    path = folder / "index.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(ShardError, match="damaged or not an index"):
        index.read_index(folder)
    middle = bytearray(whole)
    middle[200] ^= 255
    path.write_bytes(middle)
    with pytest.raises(ShardError, match=r"damaged or not an index|was changed"):
        index.check_index(index.read_index(folder))
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(
        ShardError, match=r"format is 'unknown', this version reads 'vidcurate-index-2'\. Run"
    ):
        index.read_index(folder)


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_an_index_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / index_file.INDEX_NAME)
    for read in (
        lambda: index_file.read_columns(tmp_path, ["clip_id"]),
        lambda: index_file.extra_columns(tmp_path),
        lambda: index_file.caption_names(tmp_path),
        lambda: index_file.RowGroups(tmp_path, ["clip_id"]),
        lambda: index.read_index(tmp_path),
    ):
        with pytest.raises(ShardError, match="no regular file"):
            read()


def test_an_index_without_clips_opens(tmp_path: Path) -> None:
    index_file.write_index(tmp_path, columns(0))
    opened = index.read_index(tmp_path)
    assert len(opened) == 0
    assert opened.shards == ()
    assert len(opened.captions) == 0
    assert index.shard_fingerprints(opened) == {}


def test_unknown_facts_are_zero_or_nan(tmp_path: Path) -> None:
    index_file.write_index(tmp_path, columns(2, width=[None, 3], fps=[None, 2.5], caption=[None, "b"]))
    opened = index.read_index(tmp_path, check_files=False)
    assert opened.width.tolist() == [0, 3]
    assert np.isnan(opened.fps[0])
    assert opened.fps[1] == 2.5
    assert opened.word("caption", 0) == ""


@pytest.mark.parametrize("name", ["clip_id", "sample_key"])
def test_an_id_that_occurs_twice_is_refused_by_name(tmp_path: Path, name: str) -> None:
    ids = columns()[name]
    with pytest.raises(ShardError, match=f"the {name} 'clip_0000003' occurs more than once"):
        index_file.write_index(tmp_path, columns(12, 5, **{name: [*ids[:-1], ids[3]]}))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere/index\.parquet: cannot be written"):
        index_file.write_index(tmp_path / "nowhere", columns())


def test_a_clip_is_found_by_its_id(folder: Path) -> None:
    opened = index.read_index(folder)
    assert index.find_clip(opened, "clip_0000007") == 7
    with pytest.raises(ShardError, match="no clip 'clip_7' among its 12"):
        index.find_clip(opened, "clip_7")


def test_an_open_index_cannot_be_changed_by_accident(folder: Path) -> None:
    opened = index.read_index(folder)
    with pytest.raises(ValueError, match="read-only"):
        opened.level[0] = 3


def test_a_hundred_thousand_clips_open_without_a_call_for_each(tmp_path: Path) -> None:
    """A fifth of a second; a loop over the clips would make it several, and minutes of a hundred million."""
    index_file.write_index(tmp_path, columns(100_000, per_shard=1000))
    opened, calls = calls_of(lambda: index.read_index(tmp_path, check_files=False))
    assert len(opened) == 100_000
    assert len(opened.shards) == 100
    assert calls < 20_000


def test_own_columns_and_captions_come_back_and_the_content_covers_every_caption(tmp_path: Path) -> None:
    own = {"tags": "tags", "own_level": "level", "score": "Score ☂"}
    captions = [[{"name": "short", "text": f"s{i}"}, {"name": "dense", "text": "d ☂"}] for i in range(6)]
    values = {
        "tags": pa.array([[f"ü{i}"] if i % 2 else None for i in range(6)], type=pa.list_(pa.string())),
        "own_level": pa.array([2**63 - 1, None, -1, 0, 1, 2], type=pa.int64()),
        "score": pa.array([0.1, None, 1e300, -0.0, 2.5, 3.0], type=pa.float64()),
    }
    rows = {**columns(6), **values, "captions": [*captions[:5], None], "caption_name": ["short"] * 5 + [None]}
    write_shards(tmp_path, rows)

    index_file.write_index(tmp_path, rows, own)
    opened = index.read_index(tmp_path)

    assert (opened.own_columns, opened.caption_names) == (own, ("dense", "short"))
    assert [opened.is_text(name) for name in own] == [False, False, False]
    assert {name: opened.words(name).to_pylist() for name in own} == {
        name: array.to_pylist() for name, array in values.items()
    }
    assert opened.words("captions").to_pylist() == [*captions[:5], None]
    assert opened.at("caption_name", 1) == "short"
    index.check_index(opened)
    before = opened.content_fingerprint, opened.structure_fingerprint
    captions[3][1] = {"name": "dense", "text": "another"}
    index_file.write_index(tmp_path, rows, own)
    changed = index.read_index(tmp_path)
    assert (changed.content_fingerprint != before[0], changed.structure_fingerprint) == (True, before[1])


def test_an_index_without_own_columns_has_none_and_names_a_column_that_is_missing(tmp_path: Path) -> None:
    rows = columns(3)
    write_shards(tmp_path, rows)
    index_file.write_index(tmp_path, rows)
    opened = index.read_index(tmp_path)

    assert (opened.own_columns, opened.caption_names) == ({}, ())
    assert pq.read_schema(tmp_path / index_file.INDEX_NAME).names == list(index_file.COLUMNS)
    with pytest.raises(ShardError, match="no column 'captions'; it has sample_key, "):
        opened.words("captions")
