"""A changed, forged or exchanged index is noticed: fingerprints, digests, bounds."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from tests.vidcurate.shards.index_rows import SHARD, columns, write_shards
from vidcurate.errors import ShardError
from vidcurate.shards import index, index_file
from vidcurate.shards.read_clip import read_clip_bytes, read_clip_facts


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


@pytest.mark.parametrize("column", ["clip_id", "fold", "level", "shard", "video_offset", "json_size"])
def test_a_clip_without_a_value_that_every_clip_has_is_refused(tmp_path: Path, column: str) -> None:
    index_file.write_index(tmp_path, columns())
    path = tmp_path / index_file.INDEX_NAME
    table = pq.read_table(path)
    kept = table.column(column).to_pylist()
    values = pa.array([*kept[:7], None, *kept[8:]], type=table.schema.field(column).type)
    place = table.schema.names.index(column)
    pq.write_table(table.set_column(place, table.schema.field(column), values), path)

    with pytest.raises(ShardError, match=f"a clip has no {column}"):
        index_file.read_columns(tmp_path, [column])
