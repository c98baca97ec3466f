"""A folder of videos and a set of shards are sources too: captions lie beside the videos."""

import io
import os
import socket
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.vidcurate.curation.ingest.metadata_tables import ingest
from vidcurate.curation.clip_table.schema import sample_key
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.errors import InputError, ShardError


def test_a_folder_takes_the_captions_beside_the_videos(tmp_path: Path) -> None:
    root = tmp_path / "clips"
    (root / "sub dir").mkdir(parents=True)
    for name in ("a.mp4", "b.webm", "sub dir/ü c.mp4", "naked.mp4", "broken.mp4"):
        (root / name).write_bytes(b"video")
    (root / "a.txt").write_text("\ufeffA red ball\n")
    (root / "b.json").write_text('{"text": "A blue ball", "clip_id": 12.10, "fps": 25, "tags": ["x"]}')
    (root / "b.txt").write_text("not this one")
    (root / "sub dir/ü c.json").write_text('{"caption": "", "width": "wide"}')
    (root / "sub dir/ü c.txt").write_text("A ball from the text")
    (root / "broken.json").write_text("{not json")
    (root / "alone.txt").write_text("no video here")
    summary, frame, report = ingest(tmp_path / "run", root)
    assert (summary.schema, summary.reason) == ("folder", "the folder holds video files")
    assert summary.rows_in == 5
    by_path = {row["video_path"]: row for row in frame.to_dicts()}
    assert by_path["a.mp4"]["caption"] == "A red ball"
    assert by_path["b.webm"]["caption"] == "A blue ball"
    assert (by_path["b.webm"]["clip_id"], by_path["b.webm"]["fps"]) == ("12.10", 25.0)
    assert by_path["sub dir/ü c.mp4"]["caption"] == "A ball from the text"
    assert by_path["sub dir/ü c.mp4"]["ingest_problem"] == "bad_value"
    assert by_path["sub dir/ü c.mp4"]["sample_key"] == sample_key("sub dir/ü c")
    assert by_path["naked.mp4"]["ingest_problem"] == "empty_caption"
    assert by_path["broken.mp4"]["ingest_problem"] == "bad_value"
    assert by_path["a.mp4"]["file_size_bytes"] == 5
    assert report["captions_without_a_video"] == {"count": 1, "listed": ["alone.txt"]}
    assert summary.own_columns == ("tags",)
    assert run_ingest(tmp_path / "run", IngestSpec(metadata=root)).up_to_date
    (root / "a.txt").write_text("\ufeffA red bull\n")  # the same size: only the content tells
    assert not run_ingest(tmp_path / "run", IngestSpec(metadata=root)).up_to_date


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            archive.addfile(info, io.BytesIO(payload))
    return path


SHARD_MEMBERS = [
    ("000000001.mp4", b"first video"),
    ("000000001.json", b'{"video": "x.mp4", "caption": "One", "aesthetic score": 5.5, "frame": 10}'),
    ("000000002.mp4", b"second video"),
    ("000000002.txt", b"Two"),
    ("000000003.txt", b"A caption without a video"),
    ("../out.mp4", b"third video"),
    ("../out.jpg", b"picture"),
]


def test_a_folder_of_pipes_sockets_dead_links_and_odd_names_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in (
        "good",
        "new\nline",
        "back\rtab\t",
        "-dash",
        "*",
        "$(x)",
        "esc\x1b[31m",
        "x" * 240,
        "\u2028",
    ):
        (videos / f"{name}.mp4").write_bytes(b"v")
        (videos / f"{name}.txt").write_text("A ball.")
    os.mkfifo(videos / "pipe.mp4")
    os.mkfifo(videos / "with_pipe.txt")
    (videos / "with_pipe.mp4").write_bytes(b"v")
    (videos / "dead.mp4").symlink_to("nowhere.mp4")
    (videos / "with_dead.txt").symlink_to("nowhere.txt")
    (videos / "with_dead.mp4").write_bytes(b"v")
    for suffix in (b".mp4", b".txt"):
        Path(os.fsdecode(os.fsencode(videos) + b"/odd\xff\xfe" + suffix)).write_bytes(b"A ball.")
    with socket.socket(socket.AF_UNIX) as held:
        monkeypatch.chdir(videos)  # a socket's path may have 107 bytes
        held.bind("socket.mp4")
        monkeypatch.undo()

        _, frame, _ = ingest(tmp_path / "run", videos)

    named = dict(frame.select("video_path", "ingest_problem").iter_rows())
    for name in ("pipe.mp4", "dead.mp4", "socket.mp4"):
        assert named.pop(name) == "missing_file"
    for name in ("with_pipe.mp4", "with_dead.mp4"):
        assert named.pop(name) == "empty_caption"
    assert {named.pop(name) for name in list(named) if "xff" in name} == {"missing_file", "extra_file"}
    assert len(named) == 9
    assert set(named.values()) == {None}


def test_shards_are_unpacked_whole_and_once(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    write_tar(shards / "train-000000.tar", SHARD_MEMBERS)
    write_tar(
        shards / "train-000001.tar", [("k.mp4", b"v"), ("k.json", b'{"clip_id": "12.10", "text": "K"}')]
    )
    run = tmp_path / "run"
    summary, frame, report = ingest(run, shards)
    assert summary.schema == "webdataset"
    assert summary.videos == str(run / "videos")
    assert summary.problems == {"missing_file": 1, "empty_caption": 1}
    rows = {row["clip_id"]: row for row in frame.to_dicts()}
    assert (rows["000000001"]["caption"], rows["000000001"]["aesthetic_score"]) == ("One", 5.5)
    assert rows["000000001"]["num_frames"] == 10
    assert rows["000000002"]["caption"] == "Two"
    assert rows["12.10"]["caption"] == "K"
    assert rows["000000003"]["ingest_problem"] == "missing_file"
    assert rows["../out"]["ingest_problem"] == "empty_caption"
    for clip_id, payload in (("000000001", b"first video"), ("../out", b"third video"), ("12.10", b"v")):
        path = run / "videos" / rows[clip_id]["video_path"]
        assert path.read_bytes() == payload
        assert path.resolve().is_relative_to((run / "videos").resolve())
        assert rows[clip_id]["file_size_bytes"] == len(payload)
    assert report["other_files"] == 1
    assert run_ingest(run, IngestSpec(metadata=shards)).up_to_date
    times = {path: path.stat().st_mtime_ns for path in (run / "videos").rglob("*.mp4")}
    (run / "ingest.parquet").unlink()
    again, frame_again, _ = ingest(run, shards)
    assert not again.up_to_date
    assert frame_again.equals(frame)
    assert times == {path: path.stat().st_mtime_ns for path in (run / "videos").rglob("*.mp4")}


EIGHT = [(f"{number}.{kind}", b"x" * 700) for number in range(8) for kind in ("mp4", "txt")]


def header_of(data: bytes, name: str) -> int:
    return data.index(name.encode().ljust(100, b"\0"))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: flipped(data, header_of(data, "5.mp4") + 2), "has the checksum"),
        (lambda data: flipped(data, header_of(data, "5.mp4") + 130), "has the checksum"),  # its size
        (lambda data: flipped(data, header_of(data, "5.txt") + 150), "has the checksum"),  # the checksum
        (lambda data: data[: header_of(data, "5.mp4")], "it was cut"),
        (lambda data: data[: header_of(data, "5.mp4") + 200], "ends inside the header"),
        (lambda data: data[: header_of(data, "5.mp4") + 900], "unexpected end of data"),
        (
            lambda data: (
                data[: header_of(data, "5.mp4")] + bytes(512) + data[header_of(data, "5.mp4") + 512 :]
            ),
            "has data at byte",
        ),
        (lambda data: data + data, "has data at byte"),
    ],
)
def test_a_damaged_tar_is_an_error_and_loses_no_row_silently(
    tmp_path: Path, damage: Callable[[bytes], bytes], reason: str
) -> None:
    shard = write_tar(tmp_path / "s.tar", EIGHT)
    shard.write_bytes(damage(shard.read_bytes()))

    with pytest.raises(ShardError, match=rf"s\.tar: the tar is damaged \(.*{reason}"):
        ingest(tmp_path / "run", shard)
    assert not (tmp_path / "run" / "ingest.parquet").exists()


def test_a_tar_with_pax_headers_is_read_whole_and_refused_when_it_is_cut_before_one(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "s.tar", [(f"é{name}", payload) for name, payload in EIGHT])
    assert len(ingest(tmp_path / "whole", shard)[1]) == 8
    data = shard.read_bytes()

    shard.write_bytes(data[: data.index("é5.mp4".encode()) // 512 * 512 - 512])
    with pytest.raises(ShardError, match="it was cut"):
        ingest(tmp_path / "run", shard)


def test_a_cut_off_tar_is_an_error_and_leaves_no_unpacked_folder(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "s.tar", [("a.mp4", b"x" * 5000), ("b.mp4", b"y" * 5000)])
    whole.write_bytes(whole.read_bytes()[:9000])
    run = tmp_path / "run"
    with pytest.raises(ShardError, match=r"s\.tar: the tar is damaged"):
        ingest(run, whole)
    assert not (run / "ingest.parquet").exists()
    assert [path.name for path in (run / "videos").iterdir() if not path.name.startswith(".")] == []
    write_tar(tmp_path / "s.tar", [("a.mp4", b"x" * 5000), ("b.mp4", b"y" * 5000)])
    summary, _, _ = ingest(run, whole)
    assert summary.problems == {"empty_caption": 2}


def test_an_extension_that_is_there_twice_begins_a_sample_of_its_own(tmp_path: Path) -> None:
    pairs = [("a.mp4", b"first"), ("a.txt", b"A cat."), ("a.mp4", b"second"), ("a.txt", b"A dog.")]
    run = tmp_path / "run"
    summary, frame, _ = ingest(run, write_tar(tmp_path / "s.tar", pairs))

    assert summary.problems == {"duplicate_id": 1}
    found = [
        (row["clip_id"], row["caption"], (run / "videos" / row["video_path"]).read_bytes())
        for row in frame.to_dicts()
    ]
    assert found == [("a", "A cat.", b"first"), ("a#2", "A dog.", b"second")]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_tar_with_a_link_or_a_device_is_refused_by_its_name(tmp_path: Path, kind: bytes) -> None:
    shard = write_tar(tmp_path / "s.tar", [("a.mp4", b"v"), ("a.txt", b"A cat.")])
    link = tarfile.TarInfo("b.mp4")
    link.type, link.linkname = kind, "a.mp4"
    with tarfile.open(shard, "a") as archive:
        archive.addfile(link)

    with pytest.raises(ShardError, match=r"s\.tar: b\.mp4 is a link or a device.*--hard-dereference"):
        ingest(tmp_path / "run", shard)
    assert not (tmp_path / "run" / "ingest.parquet").exists()


def test_hidden_members_of_a_tar_are_passed_over(tmp_path: Path) -> None:
    members = [("./._a.mp4", b"mac"), ("./a.mp4", b"v"), ("./._a.txt", b"mac"), ("./a.txt", b"A cat.")]
    shard = write_tar(tmp_path / "s.tar", [*members, (".DS_Store", b"mac")])
    with tarfile.open(shard, "a") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)

    summary, frame, _ = ingest(tmp_path / "run", shard)
    assert not summary.problems
    assert frame.select("clip_id", "caption").rows() == [("a", "A cat.")]


@pytest.mark.parametrize("sparse", [{"map": "x,y"}, {"major": "1", "minor": "0", "realsize": "9"}])
def test_a_tar_with_a_damaged_map_of_a_sparse_file_is_an_error(
    tmp_path: Path, sparse: dict[str, str]
) -> None:
    info = tarfile.TarInfo("a.mp4")
    info.size = 512
    info.pax_headers = {f"GNU.sparse.{name}": value for name, value in sparse.items()}
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"zz\n" * 200))

    with pytest.raises(ShardError, match=r"s\.tar: the tar is damaged"):
        ingest(tmp_path / "run", tmp_path / "s.tar")


def test_a_tar_of_two_thousand_names_for_one_member_is_an_error(tmp_path: Path) -> None:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 6
    header = name.tobuf(tarfile.GNU_FORMAT) + b"a.mp4\0".ljust(512, b"\0")
    shard = write_tar(tmp_path / "s.tar", [("a.mp4", b"v")])
    shard.write_bytes(header * 2000 + shard.read_bytes())

    with pytest.raises(ShardError, match=r"s\.tar: the tar is damaged"):
        ingest(tmp_path / "run", shard)


def test_tars_are_known_by_any_case_and_a_compressed_one_among_them_is_refused(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for name in ("one.tar", "two.TAR"):
        write_tar(shards / name, [(f"{name[:3]}.mp4", b"v"), (f"{name[:3]}.txt", b"A cat.")])
    summary, frame, _ = ingest(tmp_path / "run", shards)
    assert summary.reason == "the folder holds .tar files (2)"
    assert sorted(frame["clip_id"]) == ["one", "two"]

    (shards / "three.tar.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"three\.tar\.gz is a compressed tar.*among 2 that are"):
        ingest(tmp_path / "again", shards)


def test_a_members_name_that_is_not_utf_8_is_shown_by_its_bytes(tmp_path: Path) -> None:
    shard = tmp_path / "s.tar"
    with tarfile.open(shard, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for suffix, payload in (("mp4", b"v"), ("txt", b"A cat."), ("json", b"{")):
            info = tarfile.TarInfo(f"\xff.{suffix}")
            info.size = len(payload)
            archive.addfile(info, io.BytesIO(payload))

    _, frame, report = ingest(tmp_path / "run", shard)

    assert frame.select("clip_id", "caption").rows() == [("\\xff", "A cat.")]
    assert "\\xff.json" in str(report["bad_values"])
