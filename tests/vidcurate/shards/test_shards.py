"""Every kept clip is in one shard with the bytes of its file; nothing is written twice or taken over."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
import webdataset
from blake3 import blake3

from tests.shard_runs import SMALL, build, contents, make_run, rows, write_table
from vidcurate.curation.clip_table import table
from vidcurate.errors import InputError, MediaError, ShardError, StageError, TableError
from vidcurate.media import headers, packets
from vidcurate.shards import index, verify
from vidcurate.shards import layout as shards_layout
from vidcurate.shards import manifest as shards_manifest
from vidcurate.shards.build import run_build_shards
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.read_clip import read_clip_bytes, read_clip_facts


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    make_run(folder, rows())
    build(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path, rows())
    return tmp_path


def test_no_row_is_lost(built: Path) -> None:
    manifest = shards_manifest.read_manifest(built / "shards")
    assert manifest is not None
    assert manifest["totals"] == {
        "rows_in": 40,
        "rows_rejected": 4,
        "rows_kept": 36,
        "rows_written": 36,
        "rows_failed": 0,
        "shards": len(manifest["shards"]),
        "bytes": sum(path.stat().st_size for path in (built / "shards").glob("*.tar")),
    }
    opened = index.read_index(built / "shards")
    assert sorted(opened.words("clip_id").to_pylist()) == sorted(r["clip_id"] for r in rows() if r["is_kept"])


def test_the_bytes_of_a_set_without_own_columns_are_those_of_its_format(built: Path) -> None:
    whole = hashlib.sha256()
    for path in sorted((built / "shards").glob("*.tar")):
        whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    assert shards_layout.LAYOUT == "vidcurate-shards-3"  # another format has other bytes here
    assert whole.hexdigest() == "64bdff3cd117ffe400278029a8b502fe1dbb1bb3f8f229960d2edebe6a8a59d1"


@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")  # webdataset leaves shards open
def test_plain_webdataset_reads_every_sample_and_the_bytes_are_those_of_the_files(built: Path) -> None:
    by_key = {row["sample_key"]: row for row in rows() if row["is_kept"]}
    urls = [str(path) for path in sorted((built / "shards").glob("*.tar"))]
    seen = []
    for sample in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False):
        row = by_key[sample["__key__"]]
        seen.append(row["clip_id"])
        extension = row["video_path"].rsplit(".", 1)[1].lower()
        assert {name for name in sample if not name.startswith("__")} == {"json", extension, "txt"}
        assert sample[extension] == (built / "videos" / row["video_path"]).read_bytes()
        assert sample["txt"].decode() == row["caption"]
        facts = json.loads(sample["json"])
        assert facts["clip_id"] == row["clip_id"]
        assert facts["caption"] == row["caption"]
        assert (facts["fold"], facts["level"]) == (row["fold"], row["level"])
        assert facts["codec"] == "h264"
        assert list(facts) == sorted(facts)
        assert not {"is_kept", "width_from_metadata", "sample_key", "_size"} & facts.keys()
        assert (facts["aesthetic_score"] is None) == (row["clip_id"] == "日本")  # NaN is no JSON
    assert sorted(seen) == sorted(row["clip_id"] for row in by_key.values())


def test_the_index_reads_any_clip_at_its_offset(built: Path) -> None:
    by_id = {row["clip_id"]: row for row in rows()}
    opened = index.read_index(built / "shards")
    index.check_index(opened)
    for row in range(len(opened)):
        expected = by_id[opened.word("clip_id", row)]
        assert read_clip_bytes(opened, row) == (built / "videos" / expected["video_path"]).read_bytes()
        assert read_clip_facts(opened, row)["clip_id"] == expected["clip_id"]
        assert opened.word("caption", row) == expected["caption"]
        assert opened.level[row] == expected["level"]
        assert opened.num_frames[row] == expected["num_frames"]
        assert opened.word("shard", row).startswith(f"{expected['fold']}-level{expected['level']}-")


def test_samples_are_json_video_caption_and_the_tars_are_as_large_as_planned(built: Path) -> None:
    plan = shards_layout.make_plan(built / "run", "split", SMALL, videos=built / "videos")
    for shard in plan.shards:
        path = built / "shards" / shard.name
        assert path.stat().st_size == shard.num_bytes
        with tarfile.open(path) as archive:
            names = archive.getnames()
        assert [name.split(".")[1] for name in names[::3]] == ["json"] * (len(names) // 3)
        assert [name.split(".")[1] for name in names[2::3]] == ["txt"] * (len(names) // 3)
        assert len({name.split(".")[0] for name in names}) == len(names) // 3 <= SMALL.max_clips


def test_the_manifest_tells_the_truth_about_every_file(built: Path) -> None:
    manifest = shards_manifest.read_manifest(built / "shards")
    assert manifest is not None
    out = built / "shards"
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["index.parquet", "manifest.json", *(shard["name"] for shard in manifest["shards"])]
    )
    for entry in [*manifest["shards"], manifest["index"]]:
        data = (out / entry["name"]).read_bytes()
        assert (len(data), blake3(data).hexdigest()) == (entry["bytes"], entry["blake3"])
    opened = index.read_index(out)
    assert manifest["structure_fingerprint"] == opened.structure_fingerprint
    assert manifest["inputs"] == {"split": table.digest(built / "run" / "split.parquet")}
    prints = {s["name"]: (s["structure_fingerprint"], s["content_fingerprint"]) for s in manifest["shards"]}
    assert prints == index.shard_fingerprints(opened)


def test_clips_are_mixed_by_the_seed_and_only_by_it(built: Path) -> None:
    def order(seed: int) -> list[str]:
        spec = ShardSpec(max_clips=100, seed=seed)
        plan = shards_layout.make_plan(built / "run", "split", spec, videos=built / "videos")
        return [plan.clips["clip_id"][int(row)] for shard in plan.shards for row in shard.rows]

    assert order(0) == order(0) != order(1)
    assert sorted(order(0)) == sorted(order(1))


@pytest.mark.parametrize(
    ("name", "extension"),
    [
        ("a.MP4", "mp4"),
        ("a.b.WebM", "webm"),
        ("a", "bin"),
        ("a.json", "bin"),
        ("a.txt", "bin"),
        ("a.m p", "bin"),
    ],
)
def test_extensions_are_lower_case_and_never_those_of_the_other_parts(name: str, extension: str) -> None:
    assert shards_layout.extension_of(f"folder.d/{name}") == extension


def test_without_a_split_all_is_train_and_level_0(tmp_path: Path) -> None:
    plain = [
        {
            name: value
            for name, value in row.items()
            if name not in ("level", "fold", "is_kept", "reject_rule")
        }
        | {
            "probe_status": "truncated" if i == 0 else "ok",
            "ingest_problem": "empty_caption" if i == 1 else None,
        }
        for i, row in enumerate(rows(12))
    ]
    make_run(tmp_path, plain)
    (tmp_path / "run" / "split.parquet").unlink()
    write_table(tmp_path / "run", plain, "probe")
    summary = build(tmp_path)
    assert (summary.rows_in, summary.rows_rejected, summary.rows_written) == (12, 2, 10)
    assert sorted(path.name for path in (tmp_path / "shards").glob("*.tar"))[0] == "train-000000.tar"
    opened = index.read_index(tmp_path / "shards")
    assert set(opened.level.tolist()) == {0}
    assert set(opened.words("fold").to_pylist()) == {"train"}


def test_real_clips_of_many_containers_keep_their_bytes(shared: Path, tmp_path: Path) -> None:
    paths = sorted(path for path in (shared / "data" / "clips").iterdir() if path.stat().st_size < 600_000)
    table_rows = []
    for path in paths:
        try:
            header, found = headers.read_header_and_index(path)
        except MediaError:
            continue
        table_rows.append(
            {"clip_id": path.name, "video_path": path.name, "caption": path.name, "width": header.width,
             "height": header.height, "fps": header.fps, "num_frames": found.num_frames, "fold": "train",
             "level": 1, "is_kept": True, "file_size_bytes": path.stat().st_size}
        )  # fmt: skip
    assert len(table_rows) > 20
    write_table(tmp_path / "run", table_rows)
    run_build_shards(
        tmp_path / "run",
        ShardSpec(mode="copy"),
        is_unprobed_allowed=True,
        videos=shared / "data" / "clips",
        out=tmp_path / "shards",
    )
    opened = index.read_index(tmp_path / "shards")
    assert len(opened) == len(table_rows)
    for row in range(len(opened)):
        source = shared / "data" / "clips" / opened.word("clip_id", row)
        assert read_clip_bytes(opened, row) == source.read_bytes()
        assert opened.word("video_extension", row) == source.suffix[1:]
        known = packets.frame_map_of(source)
        assert opened.words("frame_map")[row].as_py() == (known.to_bytes() if known else None)
    assert opened.words("frame_map").null_count < len(opened) / 4


def test_one_and_four_workers_give_the_same_bytes(built: Path, folder: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    summary = build(folder, workers=4, progress=lambda *step: seen.append(step))
    assert contents(folder / "shards") == contents(built / "shards")
    assert seen[0] == (0, 36, "clips")
    assert seen[-1] == (36, 36, "clips")
    assert len(seen) == summary.num_shards + 1


def test_threads_that_copy_large_clips_give_the_bytes_of_one(tmp_path: Path) -> None:
    make_run(tmp_path, rows(9), lambda i: 1_500_000 + 100_000 * i)
    spec = ShardSpec(max_bytes=4_000_000)
    (tmp_path / "videos" / rows(9)[4]["video_path"]).unlink()
    one = build(tmp_path, spec)
    many = build(tmp_path, spec, workers=3, out="other")
    assert (one.rows_failed, one.num_shards) == (many.rows_failed, many.num_shards)
    assert one.num_shards > 3
    assert contents(tmp_path / "shards") == contents(tmp_path / "other")


def test_run_again_it_is_up_to_date_and_touches_nothing(folder: Path) -> None:
    first = build(folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "shards").rglob("*")}
    again = build(folder, workers=4)
    assert not first.up_to_date
    assert again.up_to_date
    assert (again.num_shards, again.num_shards_written) == (first.num_shards, 0)
    assert (again.rows_written, again.size_bytes) == (first.rows_written, first.size_bytes)
    assert {path: path.stat().st_mtime_ns for path in (folder / "shards").rglob("*")} == before


def test_a_shard_that_is_gone_or_short_is_written_again_and_only_that_one(folder: Path) -> None:
    build(folder)
    before = contents(folder / "shards")
    names = [name for name in before if name.endswith(".tar")]
    (folder / "shards" / names[1]).unlink()
    (folder / "shards" / names[3]).write_bytes(b"short")
    kept = (folder / "shards" / names[0]).stat().st_mtime_ns
    summary = build(folder)
    assert summary.num_shards_written == 2
    assert contents(folder / "shards") == before
    assert (folder / "shards" / names[0]).stat().st_mtime_ns == kept


def test_a_table_written_anew_with_the_same_clips_rewrites_no_shard(folder: Path) -> None:
    build(folder)
    before = contents(folder / "shards")
    table_rows = [row | {"reject_value": "7"} for row in rows()]
    make_run(folder, table_rows)
    summary = build(folder)
    after = contents(folder / "shards")
    assert (summary.up_to_date, summary.num_shards_written) == (False, 0)
    assert {name for name in before if before[name] != after[name]} == {"manifest.json"}
    assert build(folder).up_to_date


def test_another_request_is_refused_and_nothing_is_lost(folder: Path) -> None:
    build(folder)
    before = contents(folder / "shards")
    with pytest.raises(StageError, match=r"max_clips is 5, was 7.*another folder.*--overwrite"):
        build(folder, ShardSpec(max_clips=5, max_bytes=60_000))
    make_run(folder, rows(38))
    with pytest.raises(StageError, match=r"split\.parquet has other clips or facts"):
        build(folder)
    assert contents(folder / "shards") == before


def test_overwrite_leaves_exactly_the_new_set(folder: Path, tmp_path: Path) -> None:
    build(folder)
    other = ShardSpec(max_clips=3, max_bytes=60_000, seed=5)
    build(folder, other, overwrite=True)
    build(folder, other, out="fresh")
    assert contents(folder / "shards") == contents(folder / "fresh")
    build(folder, SMALL, overwrite=True)
    assert build(folder).up_to_date


def test_files_of_others_are_never_taken_over(folder: Path) -> None:
    out = folder / "shards"
    out.mkdir()
    (out / "mine.tar").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"holds mine\.tar, which build-shards did not write"):
        build(folder, SMALL, overwrite=True)
    assert contents(out) == {"mine.tar": hashlib.sha256(b"mine").hexdigest()}
    (out / "mine.tar").rename(out / "index.parquet")
    with pytest.raises(InputError, match=r"holds index\.parquet"):
        build(folder)
    (out / "index.parquet").rename(out / "manifest.json")
    with pytest.raises(ShardError, match=r"manifest\.json: cannot be read as JSON"):
        build(folder)


def test_two_builds_in_one_folder_are_refused(folder: Path) -> None:
    def while_writing(done: int, total: int, unit: str) -> None:
        if done == 0:
            with pytest.raises(StageError, match="another build-shards is writing here"):
                build(folder)

    build(folder, progress=while_writing)


def test_clips_that_were_never_probed_are_refused_and_written_only_when_asked_for(tmp_path: Path) -> None:
    known = [{**row, "probe_status": None, "integrity_level": None} for row in rows(8)]
    run = make_run(tmp_path, known)
    words = {"videos": tmp_path / "videos", "out": tmp_path / "shards"}

    with pytest.raises(StageError, match=r"8 of 8 kept clips were never probed \(first: .*--unprobed"):
        run_build_shards(run, ShardSpec(), **words)
    assert not (tmp_path / "shards").exists()

    run_build_shards(run, ShardSpec(), is_unprobed_allowed=True, **words)
    manifest = shards_manifest.read_manifest(tmp_path / "shards")
    assert manifest is not None
    assert manifest["integrity_levels"] == {"none": 8}
    assert verify.verify(tmp_path / "shards").integrity_levels == {"none": 8}


@pytest.mark.parametrize("key", ["../../x", "/x", "..", "", "-x", "a\n", "a.b", "x" * 81, None])
def test_a_forged_key_that_no_member_may_have_is_refused_with_its_table(
    tmp_path: Path, key: str | None
) -> None:
    forged = rows(3)
    forged[1]["sample_key"] = key
    make_run(tmp_path, forged)

    with pytest.raises(TableError, match=rf"^{tmp_path / 'run' / 'split.parquet'}: the sample key "):
        build(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "videos"]
