"""The index gives back what was written, reads any clip at its offset, and its fingerprints tell changes."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from tests.call_count import calls_of
from vidcurate.errors import MissingError, ShardError, StorageError
from vidcurate.shards import index, index_file
from vidcurate.shards.read_clip import read_clip_bytes, read_clip_facts
from vidcurate.storage.checksum import crc32c

SHARD = "train-level1-{:06d}.tar"


def columns(num_clips: int = 12, per_shard: int = 5, **changed: Any) -> dict[str, Any]:
    """Return the columns of an index whose clip i is 10 + i bytes at 1000 · (its place in the shard)."""
    numbers = range(num_clips)
    ids = [f"clip_{i:07d}" for i in numbers]
    rows: dict[str, Any] = {
        "sample_key": ids,
        "clip_id": ids,
        "source_id": [f"source_{i // 2}" for i in numbers],
        "source_dataset": ["openvid"] * num_clips,
        "fold": ["train"] * num_clips,
        "level": [1] * num_clips,
        "caption": [f"caption {i}, ünï ☂" for i in numbers],
        "shard": [SHARD.format(i // per_shard) for i in numbers],
        "json_offset": [1000 * (i % per_shard) for i in numbers],
        "json_size": [2] * num_clips,
        "video_offset": [1000 * (i % per_shard) + 100 for i in numbers],
        "video_size": [10 + i for i in numbers],
        "video_extension": ["mp4"] * num_clips,
        "video_crc32c": [crc32c(bytes([i % 256]) * (10 + i)) for i in numbers],
        "json_crc32c": [crc32c(b"{}")] * num_clips,
        "width": [640] * num_clips,
        "height": [360] * num_clips,
        "fps": [29.97] * num_clips,
        "num_frames": [100 + i for i in numbers],
        "duration_seconds": [3.5] * num_clips,
        "noun_count": list(numbers),
    }
    return rows | changed


def write_shards(folder: Path, rows: dict[str, Any]) -> None:
    for shard in sorted(set(rows["shard"])):
        data = bytearray(8000)
        for i, name in enumerate(rows["shard"]):
            if name == shard:
                data[rows["json_offset"][i] : rows["json_offset"][i] + 2] = b"{}"
                at = rows["video_offset"][i]
                data[at : at + 10 + i] = bytes([i % 256]) * (10 + i)
        (folder / shard).write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = columns()
    write_shards(tmp_path, rows)
    index_file.write_index(tmp_path, rows)
    return tmp_path


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


def test_other_bytes_under_a_clip_are_an_error_that_names_shard_and_clip(folder: Path) -> None:
    path = folder / SHARD.format(1)
    data = bytearray(path.read_bytes())
    data[105] ^= 1
    path.write_bytes(data)
    opened = index.read_index(folder)
    with pytest.raises(
        ShardError, match=r"train-level1-000001\.tar: clip 'clip_0000005' has 15 bytes of video with CRC-32C"
    ):
        read_clip_bytes(opened, 5)
    assert read_clip_bytes(opened, 6)
    data[0:2] = b"}{"
    path.write_bytes(data)
    with pytest.raises(ShardError, match=r"clip 'clip_0000005' has 2 bytes of json with CRC-32C"):
        read_clip_facts(opened, 5)


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


def fingerprints(tmp_path: Path, rows: dict[str, Any]) -> tuple[index.Index, dict[str, tuple[str, str]]]:
    tmp_path.mkdir(exist_ok=True)
    index_file.write_index(tmp_path, rows)
    opened = index.read_index(tmp_path, check_files=False)
    return opened, index.shard_fingerprints(opened)


def test_the_same_clips_in_other_shards_keep_their_fingerprints(tmp_path: Path) -> None:
    old, _ = fingerprints(tmp_path / "a", columns(per_shard=5))
    new, _ = fingerprints(tmp_path / "b", columns(per_shard=3))
    assert old.structure_fingerprint == new.structure_fingerprint
    assert old.content_fingerprint == new.content_fingerprint


@pytest.mark.parametrize(
    ("column", "value", "differs"),
    [
        ("caption", "another", "content"),
        ("video_crc32c", 7, "content"),
        ("video_size", 7, "content"),
        ("level", 2, "structure"),
        ("fold", "validation", "structure"),
        ("num_frames", 7, "structure"),
        ("width", 7, "structure"),
        ("height", 7, "structure"),
        ("fps", 7.0, "structure"),
        ("noun_count", 7, None),
        ("source_id", "elsewhere", None),
    ],
)
def test_a_change_moves_the_fingerprint_of_its_kind_and_names_its_shard(
    tmp_path: Path, column: str, value: object, differs: str | None
) -> None:
    old, old_shards = fingerprints(tmp_path / "a", columns())
    values = list(columns()[column])
    values[7] = value
    new, new_shards = fingerprints(tmp_path / "b", columns(12, 5, **{column: values}))
    assert (old.structure_fingerprint != new.structure_fingerprint) == (differs == "structure")
    assert (old.content_fingerprint != new.content_fingerprint) == (differs == "content")
    moved = {
        (name, kind)
        for name, prints in old_shards.items()
        for kind, before, after in zip(("structure", "content"), prints, new_shards[name], strict=True)
        if before != after
    }
    assert moved == (set() if differs is None else {(SHARD.format(1), differs)})


def test_swapped_captions_and_other_sets_of_clips_are_noticed(tmp_path: Path) -> None:
    old, old_shards = fingerprints(tmp_path / "a", columns())
    captions = columns()["caption"]
    swapped, _ = fingerprints(tmp_path / "b", columns(caption=[captions[1], captions[0], *captions[2:]]))
    assert swapped.structure_fingerprint == old.structure_fingerprint
    assert swapped.content_fingerprint != old.content_fingerprint
    fewer, fewer_shards = fingerprints(tmp_path / "c", columns(10))
    assert fewer.structure_fingerprint != old.structure_fingerprint
    assert {name: old_shards[name] for name in fewer_shards} == fewer_shards
    assert old_shards.keys() - fewer_shards.keys() == {SHARD.format(2)}


def test_rows_taken_out_by_another_program_are_noticed(folder: Path) -> None:
    before = index.read_index(folder)
    table = pq.read_table(folder / "index.parquet")
    pq.write_table(table.slice(0, 11), folder / "index.parquet")
    after = index.read_index(folder)
    assert after.structure_fingerprint != before.structure_fingerprint
    index.check_index(after)


def test_a_row_changed_by_another_program_is_named(folder: Path) -> None:
    table = pq.read_table(folder / "index.parquet")
    levels = table.column("level").to_pylist()
    levels[6] = 9
    place = table.schema.get_field_index("level")
    changed = table.set_column(place, table.schema.field("level"), pa.array(levels, pa.int32()))
    pq.write_table(changed, folder / "index.parquet")
    with pytest.raises(
        ShardError, match=r"the row of clip 'clip_0000006' in train-level1-000001\.tar was changed"
    ):
        index.check_index(index.read_index(folder))
    pq.write_table(table.take(list(range(11, -1, -1))), folder / "index.parquet")
    with pytest.raises(ShardError, match="not sorted by shard and offset"):
        index.read_index(folder)
    pq.write_table(table.drop_columns(["fps"]), folder / "index.parquet")
    with pytest.raises(ShardError, match="the column fps is missing"):
        index.read_index(folder)


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


@pytest.mark.parametrize("value", [-1, 0, 1 << 30])
@pytest.mark.parametrize("name", ["width", "height"])
def test_a_size_that_no_clip_has_is_refused_by_clip(tmp_path: Path, name: str, value: int) -> None:
    index_file.write_index(tmp_path, columns(3, **{name: [640, value, 640]}))

    with pytest.raises(ShardError, match=rf"clip 'clip_0000001' has {name} {value}; it must lie in 1 to"):
        index.read_index(tmp_path, check_files=False)


@pytest.mark.parametrize("value", [-1.0, 0.0, 1e30, float("inf"), float("-inf"), float("nan")])
def test_a_frame_rate_that_no_clip_has_is_refused_by_clip(tmp_path: Path, value: float) -> None:
    index_file.write_index(tmp_path, columns(3, fps=[25.0, 25.0, value]))

    with pytest.raises(ShardError, match="clip 'clip_0000002' has fps"):
        index.read_index(tmp_path, check_files=False)


@pytest.mark.parametrize("value", [-1, 0, 1 << 40])
def test_a_number_of_frames_that_no_clip_has_is_refused_by_clip(tmp_path: Path, value: int) -> None:
    index_file.write_index(tmp_path, columns(3, num_frames=[value, 5, 5]))

    with pytest.raises(ShardError, match=rf"clip 'clip_0000000' has num_frames {value}"):
        index.read_index(tmp_path, check_files=False)


def test_an_index_that_the_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    rows = columns()
    write_shards(tmp_path, rows)
    index_file.write_index(tmp_path, rows)
    named = blake3((tmp_path / "index.parquet").read_bytes()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps({"index": {"blake3": named}}))
    assert len(index.read_index(tmp_path)) == 12

    index_file.write_index(tmp_path, columns(level=[2] * 12))
    with pytest.raises(ShardError, match=r"index\.parquet: is not the file that manifest\.json names"):
        index.read_index(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"index": 3}'])
def test_a_manifest_that_names_no_digest_is_refused(tmp_path: Path, text: str) -> None:
    rows = columns()
    write_shards(tmp_path, rows)
    index_file.write_index(tmp_path, rows)
    (tmp_path / "manifest.json").write_text(text)

    with pytest.raises(ShardError, match=r"manifest\.json: names no digest"):
        index.read_index(tmp_path)


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
