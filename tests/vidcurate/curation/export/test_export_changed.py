"""An export of clips that are damaged, promised wrongly or changed afterwards."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import shard_runs
from tests.fault_corpus.no_codec import WITHOUT_X264, without_decoder
from tests.vidcurate.curation.export import clip_runs
from tests.vidcurate.curation.export.exported import WAN, exported
from vidcurate.curation.clip_table import table
from vidcurate.curation.export import record
from vidcurate.errors import InputError, StorageError, VidcurateError

ROOT = Path(__file__).resolve().parents[4]


def test_a_damaged_clip_is_listed_and_the_others_are_written(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "faster.mp4", "slower.mkv"))
    data = (tmp_path / "videos/slower.mkv").read_bytes()
    (tmp_path / "videos/slower.mkv").write_bytes(data[: len(data) // 2])
    (tmp_path / "videos/faster.mp4").unlink()
    summary = exported(tmp_path, "out", WAN, ["hf"])

    assert summary.clips == 1
    assert sum(summary.failed.values()) == 2
    found = json.loads((tmp_path / "out" / record.RECORD).read_text())
    assert [(one["clip_id"], one["kind"]) for one in found["failed"][:1]] == [("faster", "missing")]
    assert [path.name for path in (tmp_path / "out/train").glob("*.txt")] == ["exact.txt"]


def test_a_table_that_promises_too_much_is_found_after_writing(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "faster.mp4"))
    rows = table.scan(tmp_path / "run", "split").collect().to_dicts()
    rows[1] |= {"num_frames": 90, "duration_seconds": 3.0}
    shard_runs.write_table(tmp_path / "run", rows)
    exported(tmp_path, "out", WAN, ["hf"])

    (problem,) = json.loads((tmp_path / "out" / record.RECORD).read_text())["failed"]
    assert problem["kind"] == "wrong_export"
    assert "frames of 96x64 at 16 frames/s were written, 45 frames" in problem["problem"]


def many(tmp_path: Path, clip: str, change: Callable[[bytes], bytes] = lambda data: data) -> None:
    """Write a run of nine clips that are all this one of `clip_runs`."""
    clip_runs.make_run(tmp_path, lambda name: name == clip)
    (row,) = table.scan(tmp_path / "run", "split").collect().to_dicts()
    data = (tmp_path / "videos" / clip).read_bytes()
    names = [f"{number}.mp4" for number in range(9)]
    for name in names:
        (tmp_path / "videos" / name).write_bytes(change(data))
    shard_runs.write_table(
        tmp_path / "run",
        [
            row | {"clip_id": name[0], "sample_key": name[0], "video_path": name, "fold": "train"}
            for name in names
        ],
    )


def test_a_missing_decoder_stops_the_export_and_is_named(tmp_path: Path) -> None:
    many(tmp_path, "exact.mp4", without_decoder)

    with pytest.raises(
        VidcurateError, match=r"^all 9 clips failed for one reason.* 0\.mp4: holds no video stream\."
    ):
        exported(tmp_path, "out", WAN, ["hf"])

    assert not (tmp_path / "out").exists()
    many(tmp_path, "exact.mp4")
    assert exported(tmp_path, "out", WAN, ["hf"]).clips == 9


def test_a_missing_encoder_stops_the_export_and_is_named(tmp_path: Path) -> None:
    many(tmp_path, "faster.mp4")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_X264)
    words = ["export", tmp_path / "run", tmp_path / "out", "--for", "hf", "--fit", "wan2.1"]
    words += ["--videos", tmp_path / "videos"]

    def export(path: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "vidcurate", *map(str, words)],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    ended = export(f"{tmp_path}{os.pathsep}{ROOT}")

    assert ended.returncode == 1, ended.stderr
    (error,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: all 9 clips failed for one reason"), error
    assert "cannot be transcoded (libx264-of-another-build)" in error
    assert not (tmp_path / "out").exists()
    assert export(str(ROOT)).returncode == 0
    assert len(list((tmp_path / "out/train").glob("*.mp4"))) == 9


def test_a_changed_caption_or_clip_is_another_export(tmp_path: Path) -> None:
    clip_runs.make_run(tmp_path, lambda name: name in ("exact.mp4", "dots.mp4"))
    exported(tmp_path, "out", WAN, ["hf"])
    (tmp_path / "out/train/exact.mp4").unlink()
    with pytest.raises(StorageError, match=r"exact.mp4: missing or changed since the export"):
        exported(tmp_path, "out", WAN, ["musubi"])
    rows = table.scan(tmp_path / "run", "split").collect().to_dicts()
    rows[0]["caption"] = "another"
    shard_runs.write_table(tmp_path / "run", rows)
    with pytest.raises(InputError, match="made from other clips, captions or files"):
        exported(tmp_path, "out", WAN, ["musubi"])
