"""The files of an export's clips: those that probe read, in one folder, at the rate that they have."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vidcurate.curation.export import clip_runs
from tests.vidcurate.curation.export.exported import WAN, written
from vidcurate.curation.export import stage
from vidcurate.curation.export.clips import ExportSpec
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe


def test_a_clip_whose_file_was_replaced_after_probe_is_not_written(
    tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    videos, run = tmp_path / "videos", tmp_path / "run"
    videos.mkdir()
    for name in ("good", "larger", "flipped", "pipe"):
        shutil.copy(make_video("v.mp4", num_frames=24), videos / f"{name}.mp4")
        (videos / f"{name}.txt").write_text(f"the {name} one")
    run_ingest(run, IngestSpec(metadata=videos, videos=videos))
    run_probe(run, ProbeSpec(videos=videos, level="full"))
    shutil.copy(make_video("other.mp4", num_frames=48), videos / "larger.mp4")
    data = bytearray((videos / "flipped.mp4").read_bytes())
    data[-1] ^= 255
    (videos / "flipped.mp4").write_bytes(data)
    (videos / "pipe.mp4").unlink()
    os.mkfifo(videos / "pipe.mp4")

    summary = stage.run_export(run, tmp_path / "out", ["hf"], ExportSpec(), videos=videos)

    assert summary.failed == {"content_changed": 1, "size_changed": 1, "unreadable": 1}
    assert [clip["clip_id"] for clip in written(tmp_path / "out").values()] == ["good"]
    assert [path.name for path in sorted((tmp_path / "out/train").glob("*.mp4"))] == ["good.mp4"]


def test_the_same_video_folder_however_spelled_is_the_same_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    run = clip_runs.make_run(folder, lambda name: name == "exact.mp4")
    stage.run_export(run, tmp_path / "out", ["hf"], WAN, videos=folder / "videos")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)

    for trainer, videos in (("ltx", Path("videos")), ("musubi", tmp_path / "link" / "videos")):
        summary = stage.run_export(run, tmp_path / "out", [trainer], WAN, videos=videos)
        assert summary.clips_kept == summary.clips


def test_clips_of_one_rate_in_matroska_are_one_rate_of_the_export(
    tmp_path: Path, make_video: Callable[..., Path]
) -> None:
    videos, run = tmp_path / "videos", tmp_path / "run"
    videos.mkdir()
    for count in (24, 37, 53):
        shutil.copy(make_video("v.mkv", num_frames=count), videos / f"{count}.mkv")
        (videos / f"{count}.txt").write_text(f"{count} frames")
    run_ingest(run, IngestSpec(metadata=videos, videos=videos))
    run_probe(run, ProbeSpec(videos=videos))

    summary = stage.run_export(run, tmp_path / "out", ["musubi"], ExportSpec(), videos=videos)

    assert summary.by_how == {"remuxed": 3}
    assert not [text for text in summary.warnings if "frame rates" in text]
    assert (tmp_path / "out/musubi.train.toml").read_text().count("[[datasets]]") == 1
