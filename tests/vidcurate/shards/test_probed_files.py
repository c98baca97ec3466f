"""Files that probe has not read never get the level of those that probe read."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vidcurate.curation.clip_table.rejection_ledger import check_ledger
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.shards.build import ShardSummary, run_build_shards
from vidcurate.shards.layout import ShardSpec
from vidcurate.shards.manifest import read_manifest

NAMES = ("good", "flipped", "zeroed")


@pytest.fixture
def folder(tmp_path: Path, make_video: Callable[..., Path]) -> Path:
    """Three videos, and a copy in which two are damaged and have their size and time."""
    source = make_video("v.mp4", num_frames=24)
    (tmp_path / "videos").mkdir()
    for name in NAMES:
        shutil.copy(source, tmp_path / "videos" / f"{name}.mp4")
    shutil.copytree(tmp_path / "videos", tmp_path / "copy")
    for name, change in (("flipped", lambda at: at ^ 255), ("zeroed", lambda at: 0)):
        path = tmp_path / "copy" / f"{name}.mp4"
        before, data = path.stat(), bytearray(path.read_bytes())
        first = 0 if name == "zeroed" else len(data) // 2
        data[first:] = bytes(map(change, data[first:]))
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "t.csv").write_text("path,caption\n" + "".join(f"{name}.mp4,A dog runs\n" for name in NAMES))
    return tmp_path


def built(folder: Path, level: Any, videos: str) -> tuple[ShardSummary, dict[str, int]]:
    run, out = folder / "run", folder / f"shards-{videos}"
    run_ingest(run, IngestSpec(metadata=folder / "t.csv", videos=folder / "videos"))
    run_probe(run, ProbeSpec(videos=folder / "videos", level=level))
    summary = run_build_shards(run, ShardSpec(), videos=folder / videos, out=out)
    manifest = read_manifest(out)
    assert manifest is not None
    return summary, manifest["integrity_levels"]


def test_a_copy_is_compared_with_what_probe_read_whole(folder: Path) -> None:
    summary, levels = built(folder, "full", "copy")

    assert levels == {"full": 1}
    assert sorted(line.split(";")[0] for line in summary.failed) == [
        f"{name}: {name}.mp4 has other bytes than the file that was probed" for name in NAMES[1:]
    ]
    assert built(folder, "full", "videos")[1] == {"full": 3}


def test_the_ledger_of_a_run_without_a_filter_is_checked_too(folder: Path) -> None:
    built(folder, "full", "copy")

    assert check_ledger(folder / "run") == {"rows_in": 3, "rows_rejected": 2, "entries_replayed": 2}


def test_a_copy_without_a_digest_has_the_level_that_the_writer_found(folder: Path) -> None:
    assert built(folder, "index", "copy")[1] == {"header": 1, "none": 2}
    assert built(folder, "index", "videos")[1] == {"index": 3}


def test_a_set_heals_once_the_right_files_are_given(folder: Path) -> None:
    built(folder, "full", "copy")
    (folder / "copy").rename(folder / "bad")
    shutil.copytree(folder / "videos", folder / "copy")
    summary, levels = built(folder, "full", "copy")

    assert (summary.rows_failed, levels) == (0, {"full": 3})


def test_a_pipe_in_the_place_of_a_probed_file_is_a_failed_clip(folder: Path) -> None:
    (folder / "copy/good.mp4").unlink()
    os.mkfifo(folder / "copy/good.mp4")

    summary, _ = built(folder, "index", "copy")

    assert summary.rows_failed == 1
    assert "good.mp4: cannot be read (it is no regular file)" in summary.failed[0]
