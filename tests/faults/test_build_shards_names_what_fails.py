"""Clips that cannot be read and disks that refuse are named, and the next run finishes the work."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fault_corpus.no_codec import WITHOUT_X264
from tests.shard_runs import SMALL, build, contents, make_run, rows, write_table
from vidcurate.errors import StorageError
from vidcurate.shards import index
from vidcurate.shards import manifest as shards_manifest
from vidcurate.shards.build import run_build_shards

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.fixture
def unwell(folder: Path) -> Path:
    """Return a folder in which the files of clip10, clip11 and clip12 are gone, longer and no file."""
    videos = folder / "videos"
    by_id = {row["clip_id"]: videos / row["video_path"] for row in rows()}
    by_id["clip10"].unlink()
    by_id["clip11"].write_bytes(by_id["clip11"].read_bytes() + b"more")
    by_id["clip12"].unlink()
    by_id["clip12"].mkdir()
    return folder


def test_clips_that_cannot_be_read_are_named_with_the_reason(unwell: Path, built: Path) -> None:
    summary = build(unwell, workers=2)
    assert (summary.rows_kept, summary.rows_written, summary.rows_failed) == (36, 33, 3)
    manifest = shards_manifest.read_manifest(unwell / "shards")
    assert manifest is not None
    failed = {clip["clip_id"]: clip for clip in manifest["failed"]}
    assert {clip_id: clip["kind"] for clip_id, clip in failed.items()} == {
        "clip10": "missing",
        "clip11": "size_changed",
        "clip12": "unreadable",
    }
    assert "no such file" in failed["clip10"]["reason"]
    assert "it had 1847 when it was probed" in failed["clip11"]["reason"]
    assert sorted(summary.failed) == [f"{name}: {failed[name]['reason']}" for name in sorted(failed)]
    # The plan is the same with and without them: every other clip is where it would have been.
    well = index.read_index(built / "shards")
    where = {well.word("clip_id", row): well.word("shard", row) for row in range(len(well))}
    opened = index.read_index(unwell / "shards")
    assert {opened.word("clip_id", row): opened.word("shard", row) for row in range(len(opened))} == {
        clip_id: shard for clip_id, shard in where.items() if clip_id not in failed
    }
    assert build(unwell).up_to_date


def test_once_the_files_are_back_the_same_command_heals_the_set(unwell: Path, built: Path) -> None:
    build(unwell)
    (unwell / "videos" / rows()[12]["video_path"]).rmdir()
    for row in rows():
        if row["clip_id"] in ("clip10", "clip11", "clip12"):
            (unwell / "videos" / row["video_path"]).write_bytes(
                (built / "videos" / row["video_path"]).read_bytes()
            )
    summary = build(unwell)
    assert (summary.rows_failed, summary.up_to_date) == (0, False)
    assert summary.num_shards_written < summary.num_shards
    assert contents(unwell / "shards") == contents(built / "shards")


def test_a_shard_without_a_readable_clip_is_not_written(folder: Path) -> None:
    for row in rows():
        if row["fold"] == "validation" and row["level"] == 1:
            (folder / "videos" / row["video_path"]).unlink()
    summary = build(folder)
    assert not list((folder / "shards").glob("validation-level1-*"))
    assert summary.rows_failed > 0
    assert summary.rows_in == summary.rows_rejected + summary.rows_written + summary.rows_failed
    index.read_index(folder / "shards")


def test_when_no_clip_can_be_read_the_set_is_empty_and_says_so(folder: Path) -> None:
    for path in (folder / "videos").rglob("*.*"):
        path.unlink()
    summary = build(folder)
    assert (summary.rows_written, summary.rows_failed, summary.num_shards) == (0, 36, 0)
    assert len(index.read_index(folder / "shards")) == 0
    assert build(folder).up_to_date


@pytest.fixture
def transcodes(
    tmp_path: Path, make_video: Callable[..., Path]
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that transcodes nine real clips into shards, with or without an encoder."""
    known = [{**row, "video_path": f"{number}.mp4"} for number, row in enumerate(rows(9))]
    videos = tmp_path / "videos"
    videos.mkdir()
    for row in known:
        shutil.copy(make_video("clip.mp4"), videos / row["video_path"])
    make_run(tmp_path, known)
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(WITHOUT_X264)

    def build_shards(*, with_x264: bool) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "vidcurate", "build-shards", tmp_path / "run", "--videos", videos]
        return subprocess.run(
            [*map(str, command), "--set", "mode=transcode", "--json"],
            env=os.environ | {"PYTHONPATH": str(ROOT) if with_x264 else f"{patch}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return build_shards


def test_a_missing_encoder_ends_the_build_with_its_reason(
    transcodes: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    for _ in range(2):
        ended = transcodes(with_x264=False)
        assert ended.returncode == 1, ended.stderr
        assert json.loads(ended.stdout)["rows_failed"] == 9
        (error,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        assert "9 clips failed and none was written. The first: " in error
        assert "cannot be transcoded (libx264-of-another-build)" in error


def test_once_the_encoder_is_there_the_same_command_writes_every_clip(
    transcodes: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    assert transcodes(with_x264=False).returncode == 1
    ended = transcodes(with_x264=True)
    assert (ended.returncode, json.loads(ended.stdout)["rows_written"]) == (0, 9)


def test_a_missing_encoder_ends_a_curation_with_its_reason(
    tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    videos, patch = tmp_path / "videos", tmp_path / "patch"
    videos.mkdir()
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(WITHOUT_X264)
    for number in range(9):
        shutil.copy(make_video("clip.mp4"), videos / f"{number}.mp4")
    captions = "".join(f"{number}.mp4,a dog runs\n" for number in range(9))
    (tmp_path / "clips.csv").write_text(f"video_path,caption\n{captions}")
    (tmp_path / "recipe.yaml").write_text(
        f"run: {tmp_path / 'run'}\nworkers: 1\nsplit: {{levels: 1}}\nshards: {{mode: transcode}}\n"
        f"ingest: {{metadata: {tmp_path / 'clips.csv'}, videos: {videos}}}\n"
        "score: {noun_engine: builtin}\n"
    )

    ended = subprocess.run(
        [sys.executable, "-m", "vidcurate", "curate", str(tmp_path / "recipe.yaml")],
        env=os.environ | {"PYTHONPATH": f"{patch}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 1, ended.stderr
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert "9 clips failed and none was written. The first: " in error
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("path", ["../outside.mp4", "/etc/hostname", "a/../../outside.mp4"])
def test_a_path_outside_the_video_folder_is_not_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "outside.mp4").write_bytes(b"secret")
    table_rows = rows(3)
    make_run(tmp_path, table_rows)
    table_rows[1]["video_path"] = path
    write_table(tmp_path / "run", table_rows)
    summary = build(tmp_path)
    assert summary.failed == (f"12.10: {path} is outside the video folder",)


CAPPED = """
import resource, sys
from pathlib import Path
from vidcurate.errors import StorageError
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.build import run_build_shards
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
folder = Path(sys.argv[1])
try:
    run_build_shards(folder / "run", ShardSpec(max_clips=7, max_bytes=60_000), videos=folder / "videos",
                     out=folder / "shards", num_workers=int(sys.argv[2]))
except StorageError as error:
    print(error)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_refuses_is_named_and_the_next_run_finishes(
    folder: Path, built: Path, workers: int
) -> None:
    reported = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CAPPED), str(folder), str(workers)],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert "cannot be written (File too large); it needs" in reported.stdout
    assert ".tar: " in reported.stdout
    assert not list((folder / "shards").rglob("*.partial"))
    build(folder)
    assert contents(folder / "shards") == contents(built / "shards")


def test_threads_that_cannot_write_stop_and_leave_no_half_shard(tmp_path: Path) -> None:
    make_run(tmp_path, rows(9), lambda i: 1_500_000)
    code = (
        textwrap.dedent(CAPPED)
        .replace("max_bytes=60_000", "max_bytes=2_000_000")
        .replace("20_000", "1_000_000")
    )
    reported = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "3"],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert "cannot be written (File too large); it needs 1,50" in reported.stdout
    assert not list((tmp_path / "shards").rglob("*.partial"))
    assert not list((tmp_path / "shards").glob("*.tar"))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Any:
    """Yield a folder that is a disk of 400 KiB; skips where mounting is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root: RLIMIT_FSIZE covers the writing error")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_too_little_space_is_refused_before_anything_is_written(folder: Path, tiny_disk: Path) -> None:
    (tiny_disk / "ballast").write_bytes(bytes(350_000))
    with pytest.raises(StorageError, match=r"the shards need [0-9,]+ bytes and [0-9,]+ are free"):
        run_build_shards(folder / "run", SMALL, videos=folder / "videos", out=tiny_disk / "shards")
    assert not list((tiny_disk / "shards").iterdir())


def test_a_disk_that_fills_up_meanwhile_is_named_and_the_next_run_finishes(
    folder: Path, built: Path, tiny_disk: Path
) -> None:
    out, ballast = tiny_disk / "shards", tiny_disk / "ballast"

    def fill(done: int, total: int, unit: str) -> None:
        if 0 < done < total and not ballast.exists():
            usage = os.statvfs(tiny_disk)
            ballast.write_bytes(bytes((usage.f_bavail - 2) * usage.f_frsize))

    with pytest.raises(
        StorageError, match=r"\.tar: cannot be written \(No space left on device\); it needs [0-9,]+"
    ):
        run_build_shards(folder / "run", SMALL, videos=folder / "videos", out=out, progress=fill)
    assert list(out.glob("*.tar"))
    assert not (out / "index.parquet").exists()
    ballast.unlink()
    run_build_shards(folder / "run", SMALL, videos=folder / "videos", out=out)
    assert contents(out) == contents(built / "shards")


def test_an_empty_file_that_was_never_probed_fails_alone(tmp_path: Path) -> None:
    known = [{**row, "probe_status": None, "integrity_level": None} for row in rows(8)]
    empty = tmp_path / "videos" / known[3]["video_path"]
    empty.parent.mkdir(parents=True)
    empty.touch()
    run = make_run(tmp_path, known)

    summary = run_build_shards(
        run, SMALL, videos=tmp_path / "videos", out=tmp_path / "shards", is_unprobed_allowed=True
    )

    assert (summary.rows_written, summary.rows_failed) == (7, 1)
    assert summary.failed[0].endswith("the file is empty")
    assert len(index.read_index(tmp_path / "shards")) == 7
