"""The shards are read back by webdataset, Energon and wids, and by a reader of DALI's index written here."""

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
import yaml

from tests.shard_runs import build, build_for_readers, contents, make_run, rows
from vidcurate.errors import InputError
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.reader_indexes import export as reader_indexes_export
from vidcurate.shards.verify import verify

Samples = dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_for_readers(tmp_path_factory.mktemp("built"))


@pytest.fixture
def shards(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "shards")
    return tmp_path / "shards"


@pytest.fixture(scope="module")
def expected(built: Path) -> Samples:
    """Return every sample as Python's tarfile has it: key -> extension -> bytes."""
    found: Samples = {}
    for path in sorted(built.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                key, _, extension = info.name.partition(".")
                file = archive.extractfile(info)
                assert file is not None
                found.setdefault(key, {})[extension] = file.read()
    assert len(found) == 36
    return found


@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")  # webdataset leaves shards open
def test_webdataset_reads_every_sample(built: Path, expected: Samples) -> None:
    urls = [str(path) for path in sorted(built.glob("*.tar"))]
    read = {
        sample["__key__"]: {name: data for name, data in sample.items() if not name.startswith("__")}
        for sample in webdataset.WebDataset(urls, shardshuffle=False)
    }
    assert read == expected


def test_a_reader_of_dalis_index_reads_every_sample(built: Path, expected: Samples) -> None:
    """The format is that of DALI's tools/wds2idx.py, read as its C++ does: words between spaces."""
    read: Samples = {}
    for path in sorted(built.glob("*.tar")):
        data = path.read_bytes()
        first, *lines = (built / f"{path.stem}.idx").read_text(encoding="ascii").splitlines()
        version, count = first.split()
        assert (version, int(count)) == ("v1.2", len(lines))
        for line in lines:
            words = line.split(" ")
            assert len(words) % 4 == 0
            for extension, offset, size, name in zip(*(iter(words),) * 4, strict=True):
                assert int(offset) % 512 == 0
                assert data[int(offset) - 512 :][: len(name)] == name.encode()
                key, _, found = name.partition(".")
                assert found == extension
                read.setdefault(key, {})[extension] = data[int(offset) : int(offset) + int(size)]
    assert read == expected


def test_energons_index_files_say_where_every_sample_and_part_lies(built: Path, expected: Samples) -> None:
    """The layout is that of `energon prepare` 7.4.1, read without it."""
    meta = built / ".nv-meta"
    info = json.loads((meta / ".info.json").read_text())
    names = list(info["shard_counts"])
    assert names == sorted(path.name for path in built.glob("*.tar"))
    splits = yaml.safe_load((meta / "split.yaml").read_text())
    assert set(splits["split_parts"]) == {"train", "val"}
    assert sorted(name for split in splits["split_parts"].values() for name in split) == names
    assert all(name.startswith("train") for name in splits["split_parts"]["train"])
    loader = yaml.safe_load((meta / "dataset.yaml").read_text())
    assert loader == {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    database = sqlite3.connect(meta / "index.sqlite")
    samples = database.execute("SELECT * FROM samples ORDER BY tar_file_id, sample_index").fetchall()
    parts = database.execute("SELECT * FROM sample_parts").fetchall()
    database.close()
    assert {key for _, key, *_ in samples} == set(expected)
    read: Samples = {}
    for number, name in enumerate(names):
        data = (built / name).read_bytes()
        offsets = np.fromfile(built / f"{name}.idx", dtype="<u8").tolist()
        here = [row for row in samples if row[0] == number]
        assert len(here) == info["shard_counts"][name] == len(offsets) - 1
        assert not any(data[offsets[-1] :])  # the end of the last sample is where the end of the tar begins
        assert len(data) - offsets[-1] == 1024
        for (_, key, place, begin, size), first, end in zip(here, offsets, offsets[1:], strict=False):
            assert (begin, begin + size) == (first, end)
            assert data[first:].startswith(f"{key}.json".encode())
            read[key] = {
                part: data[offset : offset + length]
                for tar, sample, part, offset, length in parts
                if (tar, sample) == (number, place)
            }
    assert read == expected


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore:.pin_memory. argument is set")  # Energon asks for it without a GPU
def test_energons_own_reader_reads_every_sample(built: Path, expected: Samples) -> None:
    energon = pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")

    @energon.edataclass
    class Clip(energon.Sample):  # type: ignore[name-defined,misc]
        parts: dict[str, bytes]

    @energon.stateless  # type: ignore[untyped-decorator]
    def cook(sample: dict[str, Any]) -> Clip:
        parts = {name: data for name, data in sample.items() if not name.startswith("__")}
        return Clip(**energon.basic_sample_keys(sample), parts=parts)

    class Encoder(energon.DefaultTaskEncoder):  # type: ignore[name-defined,misc]
        cookers = [energon.Cooker(cook)]  # noqa: RUF012 - as its documentation has it
        decoder = None

    read: Samples = {}
    for split in ("train", "val"):
        dataset = energon.get_val_dataset(
            str(built),
            split_part=split,
            worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=None,
            task_encoder=Encoder(),
        )
        for sample in energon.get_loader(dataset):
            read[sample.__key__] = sample.parts
    assert read == expected


def test_wids_index_says_what_lies_in_every_shard(built: Path) -> None:
    whole = json.loads((built / "index.json").read_text())
    assert (whole["__kind__"], whole["wids_version"]) == ("wids-shard-index-v1", 1)
    for entry, path in zip(whole["shardlist"], sorted(built.glob("*.tar")), strict=True):
        data = path.read_bytes()
        assert (entry["url"], entry["filesize"]) == (path.name, len(data))
        assert entry["md5sum"] == hashlib.md5(data).hexdigest()
        with tarfile.open(path) as archive:
            assert entry["nsamples"] == len(archive.getnames()) / 3


@pytest.mark.engine
def test_wids_own_reader_reads_every_sample(built: Path, expected: Samples, tmp_path: Path) -> None:
    wids = pytest.importorskip("wids", reason="wids is not installed: webdataset has it below 1.0")
    dataset = wids.ShardListDataset(str(built / "index.json"), transformations=[], cache_dir=str(tmp_path))
    read = {}
    for number in range(len(dataset)):
        sample = dataset[number]
        read[sample["__key__"]] = {
            name[1:]: data.read() for name, data in sample.items() if not name.startswith("__")
        }
    assert read == expected


# ── whole or absent ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_there_and_fits_is_kept_and_what_is_damaged_is_written_again(shards: Path) -> None:
    before = contents(shards)
    times = {path: path.stat().st_mtime_ns for path in shards.rglob("*")}
    again = reader_indexes_export.export(shards, reader_indexes_export.READERS, num_workers=2)
    assert (again.files_written, again.files_kept) == (0, 2 * again.shards + 2)
    assert {path: path.stat().st_mtime_ns for path in shards.rglob("*") if path in times} == times
    next(iter(sorted(shards.glob("*.tar.idx")))).write_bytes(b"")
    (shards / ".nv-meta" / "split.yaml").unlink()
    (shards / "index.json").write_text("{")
    (shards / ".index.json.partial.jsonl").write_text('{"url": "half')
    assert len(verify(shards, "index").problems) == 4
    assert reader_indexes_export.export(shards, reader_indexes_export.READERS).files_written == 3
    assert contents(shards) == before
    assert verify(shards).problems == ()


@pytest.mark.parametrize("name", ["index.json", ".index.json.partial.jsonl"])
@pytest.mark.parametrize(
    "content",
    [None, b"[]", b'{"url": [1], "blake3": "x", "md5sum": "y"}', b'{"shardlist": [5]}', b"\xff", b"[" * 5000],
    ids=["pipe", "list", "no_name", "no_entry", "no_text", "nested"],
)
def test_a_forged_wids_index_is_written_again(shards: Path, name: str, content: bytes | None) -> None:
    right = (shards / "index.json").read_bytes()
    (shards / name).unlink(missing_ok=True)
    os.mkfifo(shards / name) if content is None else (shards / name).write_bytes(content)
    reader_indexes_export.export(shards, ("wids",))
    assert (shards / "index.json").read_bytes() == right
    assert not (shards / ".index.json.partial.jsonl").exists()


def test_the_progress_of_a_wids_index_is_written_through_no_link(shards: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (shards / "index.json").unlink()
    (shards / ".index.json.partial.jsonl").symlink_to(mine)
    reader_indexes_export.export(shards, ("wids",))
    assert mine.read_text() == "mine"


def test_an_index_file_that_names_other_places_is_named(shards: Path) -> None:
    idx = sorted(shards.glob("*.tar.idx"))[0]
    idx.write_bytes(idx.read_bytes()[:-8])
    text = sorted(shards.glob("*.idx"))[2]
    text.unlink()
    database = sqlite3.connect(shards / ".nv-meta" / "index.sqlite")
    database.execute("UPDATE sample_parts SET content_byte_offset = 512 WHERE sample_index = 2")
    database.commit()
    database.close()
    said = "\n".join(str(problem) for problem in verify(shards, "index").problems)
    assert f"{idx.name}: is not what the index gives; run `vidcurate export-index` again" in said
    assert f"{text.name}: is not there, and those of other shards are" in said
    assert ".nv-meta/index.sqlite: has other samples than the index for shard 0" in said


def test_shards_that_are_built_anew_have_no_index_files_of_the_old_ones(tmp_path: Path) -> None:
    make_run(tmp_path, rows(20))
    build(tmp_path, ShardSpec(max_clips=4))
    reader_indexes_export.export(tmp_path / "shards", reader_indexes_export.READERS)
    assert build(tmp_path, ShardSpec(max_clips=4)).up_to_date
    assert (tmp_path / "shards" / ".nv-meta").exists()
    build(tmp_path, ShardSpec(max_clips=9), overwrite=True)
    left = {path.name for path in (tmp_path / "shards").iterdir()}
    assert {name for name in left if not name.endswith(".tar")} == {"index.parquet", "manifest.json"}
    assert verify(tmp_path / "shards").problems == ()


def test_a_reader_that_nobody_has_and_an_unfinished_set_are_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mosaic: there are index files for energon, dali, wids"):
        reader_indexes_export.readers_of("dali,mosaic")
    assert reader_indexes_export.readers_of("wids, dali") == ("wids", "dali")
    with pytest.raises(InputError, match="no finished set of shards"):
        reader_indexes_export.export(tmp_path / "nowhere", ["dali"])
    (shards / ".build").mkdir()
    with pytest.raises(InputError, match="no finished set of shards"):
        reader_indexes_export.export(shards, ["dali"])
