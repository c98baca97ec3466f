"""`verify` finds nothing wrong with what we write, and names every way in which a set can be wrong."""

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from tests.shard_runs import build, build_for_readers, contents, make_run, rows
from vidcurate.cli import main as cli_main
from vidcurate.errors import InputError, StorageError
from vidcurate.shards import index, index_file, tar_write
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.verify import verify
from vidcurate.shards.verify_shard import LEVELS, Level
from vidcurate.storage.checksum import crc32c


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_for_readers(tmp_path_factory.mktemp("built"))


@pytest.fixture
def shards(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "shards")
    return tmp_path / "shards"


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Return a set of two real videos, one shard each."""
    folder = tmp_path_factory.mktemp("videos")
    (folder / "videos").mkdir()
    table_rows = rows(2)
    for row, num_frames in zip(table_rows, (12, 20), strict=True):
        path = folder / "videos" / row["video_path"]
        path.parent.mkdir()
        shutil.copy(make_video("clip.mp4", num_frames=num_frames), path)
        row["num_frames"] = num_frames
    make_run(folder, table_rows)
    build(folder, ShardSpec(max_clips=1))
    return folder / "shards"


def reported(folder: Path, level: Level = "bytes", workers: int = 1) -> list[str]:
    return [str(problem) for problem in verify(folder, level, num_workers=workers).problems]


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for info in archive:
            file = archive.extractfile(info)
            assert file is not None
            yield info.name, file.read()


def rewrite(path: Path, every: list[tuple[str, bytes]]) -> None:
    with path.open("wb") as file:
        writer = tar_write.TarWriter(file)
        for name, payload in every:
            writer.add(name, payload)
        writer.finish()


def sign(folder: Path, change: Callable[[dict[str, Any]], None] = lambda manifest: None) -> None:
    """Write a manifest that fits the files, as one who alters data would."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in [*manifest["shards"], manifest["index"]]:
        data = (folder / entry["name"]).read_bytes()
        entry |= {"bytes": len(data), "blake3": blake3(data).hexdigest()}
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.tar"))[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_we_write_is_sound_and_is_not_touched(built: Path, workers: int) -> None:
    before = contents(built)
    seen: list[tuple[int, int, str]] = []
    verdict = verify(built, num_workers=workers, progress=lambda *step: seen.append(step))
    assert verdict.problems == ()
    assert (verdict.clips, verdict.members) == (36, 108)
    assert verdict.bytes_read == sum(
        len(payload) for path in built.glob("*.tar") for _, payload in members(path)
    )
    assert seen == [(0, 1, "MiB"), *[(1, 1, "MiB")] * verdict.shards]  # the set has less than one
    assert contents(built) == before


def test_levels_read_what_they_say(built: Path, videos: Path) -> None:
    assert verify(built, "index").bytes_read == 0
    assert reported(built, "index") == []
    assert reported(videos, "decode", workers=2) == []
    undecodable = reported(built, "decode")
    assert len(undecodable) == 36
    assert all("cannot be decoded" in line for line in undecodable)


def test_one_flipped_bit_anywhere_is_named_with_shard_and_member(shards: Path) -> None:
    path = first_shard(shards)
    whole = path.read_bytes()
    opened = index.read_index(shards)
    places = index_file.read_columns(shards, ["text_offset"]).column("text_offset").to_pylist()
    key = opened.word("sample_key", 1)
    for offset, name in (
        (opened.numbers("json_offset")[1], "json"),
        (places[1], "txt"),
        (opened.video_offset[1] + 9, "."),
    ):
        data = bytearray(whole)
        data[offset] ^= 4
        path.write_bytes(data)
        said = reported(shards)
        assert len(said) == 2
        assert said[0].startswith(f"{path.name}: {key}.")
        assert name in said[0]
        assert "has CRC-32C" in said[0]
        assert said[1].startswith(f"{path.name}: has BLAKE3")
        assert reported(shards, "index") == []


def test_a_shard_that_is_gone_short_or_long_is_named(shards: Path) -> None:
    gone, short, long = sorted(shards.glob("*.tar"))[:3]
    gone.unlink()
    short.write_bytes(short.read_bytes()[:-700])
    long.write_bytes(long.read_bytes() + bytes(9))
    said = "\n".join(reported(shards))
    assert (
        f"{gone.name}: is not there. Copy this file again, or delete it and run `vidcurate build-shards`"
        in said
    )
    assert f"{short.name}: ends at byte" in said
    assert f"{short.name}: has {short.stat().st_size:,} bytes, the manifest says" in said
    assert f"{long.name}: has 9 bytes behind its end" in said


def test_samples_that_readers_would_tear_apart_are_named(shards: Path) -> None:
    path = first_shard(shards)
    every = list(members(path))
    rewrite(path, [every[0], every[3], *every[1:3], *every[4:]])
    said = "\n".join(reported(shards, "index"))
    assert f"{every[1][0]}: lies apart from the rest of its sample" in said
    rewrite(path, [every[1], every[0], *every[2:-1]])
    said = "\n".join(reported(shards, "index"))
    key, last = every[0][0].partition(".")[0], every[-1][0].partition(".")[0]
    assert f"{key}: its sample has {every[1][0].partition('.')[2]}, json, txt; each sample is" in said
    assert f"{last}: its sample has json, " in said
    assert f"{every[-1][0]}: is not there; the index has it at byte" in said


def test_members_that_the_index_does_not_know_or_has_elsewhere_are_named(shards: Path) -> None:
    path = first_shard(shards)
    every = list(members(path))
    new = [(f"new.{name}", b"1") for name in ("json", "mp4", "txt")]
    rewrite(path, [(every[0][0], b"{}" * 400), *every[1:], *new])
    sign(shards)
    said = reported(shards, "index")
    assert f"{path.name}: new.mp4: is not in the index" in said
    assert any(
        line.startswith(f"{path.name}: {every[0][0]}: has 800 bytes at byte 512, the index") for line in said
    )


def test_a_key_in_two_shards_is_named_with_both(shards: Path) -> None:
    one, two = sorted(shards.glob("*.tar"))[:2]
    rewrite(two, [*members(two), *list(members(one))[:3]])
    key = next(iter(members(one)))[0].partition(".")[0]
    assert f"{two.name}: {key}: is also in {one.name}; keys must be unique over all shards" in reported(
        shards
    )
    for name in ("index.parquet", "manifest.json"):  # as shards from elsewhere come
        (shards / name).unlink()
    said = reported(shards)
    assert any(line.startswith("manifest.json: is not there") for line in said)
    assert any(line.startswith("index.parquet: is not there") for line in said)
    assert f"{two.name}: {key}: is also in {one.name}; keys must be unique over all shards" in said


def change_index(folder: Path, column: str, row: int, value: Any) -> None:
    table = pq.read_table(folder / "index.parquet")
    values = table.column(column).to_pylist()
    values[row] = value
    place = table.schema.get_field_index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(place, field, pa.array(values, field.type)), folder / "index.parquet")


def test_an_index_that_was_altered_is_named_with_the_row(shards: Path) -> None:
    clip_id = index.read_index(shards).word("clip_id", 5)
    change_index(shards, "caption", 5, "another")
    sign(shards)
    assert any(f"the row of clip {clip_id!r}" in line and "was changed" in line for line in reported(shards))


def test_ids_that_occur_twice_in_the_index_are_named_with_their_shards(shards: Path) -> None:
    other = index.read_index(shards)
    change_index(shards, "sample_key", 30, other.word("sample_key", 0))
    sign(shards)
    where = f"{other.word('shard', 0)} and {other.word('shard', 30)}"
    assert any(f"occurs 2 times, in {where}; it must be unique" in line for line in reported(shards))


def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(shards: Path) -> None:
    for name in (first_shard(shards).name, "index.parquet", "manifest.json"):
        kept = (shards / name).read_bytes()
        (shards / name).unlink()
        os.mkfifo(shards / name)
        try:
            said = reported(shards, "bytes")
        except StorageError as error:
            said = [str(error)]
        assert any(name in line and "it is no regular file" in line for line in said), said
        (shards / name).unlink()
        (shards / name).write_bytes(kept)


@pytest.mark.parametrize("column", ["text_size", "text_crc32c"])
def test_a_place_in_the_index_without_size_or_checksum_is_named(shards: Path, column: str) -> None:
    path = shards / "index.parquet"
    table = pq.read_table(path)
    values = pa.array([None, *table[column].to_pylist()[1:]], table.schema.field(column).type)
    table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), values)
    pq.write_table(table, path)

    for level in LEVELS:
        assert f"index.parquet: has a text_offset without a {column}, or the other way round" in reported(
            shards, level
        )


def test_text_that_is_not_what_the_index_says_is_named_though_every_checksum_fits(shards: Path) -> None:
    path = first_shard(shards)
    every = list(members(path))
    facts = json.loads(every[0][1])
    size = len(every[0][1])
    facts["clip_id"] = "x" * len(facts["clip_id"].encode())
    data = json.dumps(facts, sort_keys=True, ensure_ascii=False).encode().ljust(size)
    rewrite(path, [(every[0][0], data), every[1], (every[2][0], every[2][1].upper()), *every[3:]])
    change_index(shards, "json_crc32c", 0, crc32c(data))
    change_index(shards, "text_crc32c", 0, crc32c(every[2][1].upper()))
    sign(shards)
    said = "\n".join(reported(shards))
    assert f"{path.name}: {every[0][0]}: has the clip_id '{facts['clip_id']}', the index says" in said
    assert f"{path.name}: {every[2][0]}: is not the caption that the index has of clip" in said


def test_a_frame_map_that_is_not_that_of_the_video_is_named(videos: Path, tmp_path: Path) -> None:
    shutil.copytree(videos, tmp_path / "shards")
    maps = index.read_index(tmp_path / "shards").words("frame_map").to_pylist()
    change_index(tmp_path / "shards", "frame_map", 0, maps[1])
    sign(tmp_path / "shards")
    assert reported(tmp_path / "shards") == []
    said = reported(tmp_path / "shards", "decode")
    assert len(said) == 1
    assert ": its packets give another frame map than the index has" in said[0]


def test_files_that_nobody_named_and_unfinished_sets_are_named(shards: Path) -> None:
    (shards / "notes.txt").write_text("mine")
    (shards / "other.tar").write_bytes(bytes(1024))
    (shards / ".build").mkdir()
    said = reported(shards, "index")
    assert "notes.txt: is a file that the manifest does not name" in said
    assert "other.tar: is a file that the manifest does not name" in said
    assert ".build: the set is unfinished; run `vidcurate build-shards` again" in said


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder of shards"):
        verify(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds no shards: no \*\.tar, no manifest\.json"):
        verify(tmp_path)


def test_a_set_of_an_earlier_format_is_named(shards: Path) -> None:
    sign(shards, lambda manifest: manifest.update(format="vidcurate-shards-1"))
    assert any(
        "its format is 'vidcurate-shards-1', this version reads" in line for line in reported(shards, "index")
    )


def test_the_command_prints_a_line_for_each_problem_and_ends_with_1(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli_says = ["verify", str(shards), "--level", "index", "--workers", "1"]
    with pytest.raises(SystemExit) as leaves:
        cli_main.main(cli_says)
    assert leaves.value.code == 0
    capsys.readouterr()
    gone = first_shard(shards)
    gone.unlink()
    (shards / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as leaves:
        cli_main.main(cli_says)
    assert leaves.value.code == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == [
        "notes.txt: is a file that the manifest does not name",
        f"{gone.name}: is not there. Copy this file again, or delete it and run "
        "`vidcurate build-shards` again.",
    ]
    assert err.splitlines()[-1].startswith(f"error: {shards}: 2 problems in 2 files; first: notes.txt: is")
    with pytest.raises(SystemExit):
        cli_main.main([*cli_says, "--json"])
    whole = json.loads(capsys.readouterr().out)
    assert [problem["file"] for problem in whole["problems"]] == ["notes.txt", gone.name]
    with pytest.raises(SystemExit) as leaves:
        cli_main.main(["verify", str(shards), "--level", "deep"])
    assert leaves.value.code == 2
