"""The stage score-frames: broken clips are rows, workers change no byte, a kill costs a chunk."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.fault_corpus.no_codec import without_decoder
from vidcurate.curation.clip_table import table
from vidcurate.curation.dedup.orientations import ORIENTATIONS, turned
from vidcurate.curation.demo_data import write as demo_data_write
from vidcurate.curation.frame_scores import stage as frame_scores_stage
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import run_frames
from vidcurate.curation.ingest import stage as ingest_stage
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.errors import InputError, VidcurateError
from vidcurate.executor.parts_folder import ExecutorSpec

SPEC = FramesSpec(time_limit_seconds=None)  # scored in this process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with demo data and a run whose pictures have been scored."""
    home = tmp_path_factory.mktemp("frames")
    demo_data_write.write_demo_data(home / "demo", clips=24)
    ingested(home, home / "run")
    run_frames(home / "run", SPEC, videos=home / "demo" / "videos")
    return home


def ingested(home: Path, run: Path) -> Path:
    ingest_stage.run_ingest(
        run, IngestSpec(metadata=home / "demo" / "captions.csv", videos=home / "demo" / "videos")
    )
    return run


def write_videos(videos: Path, count: int, data: bytes) -> None:
    """Write 0.mp4, 1.mp4, … with these bytes, and captions.csv."""
    videos.mkdir()
    for number in range(count):
        (videos / f"{number}.mp4").write_bytes(data)
    lines = [f"{number}.mp4,a clip" for number in range(count)]
    (videos / "captions.csv").write_text("\n".join(["video,caption", *lines, ""]))


def rows_of(run: Path) -> pl.DataFrame:
    return table.scan(run, "frames").collect()


def test_every_row_has_scores_or_a_status_that_says_why_not(home: Path) -> None:
    rows = rows_of(home / "run")
    ok = pl.col("frames_status") == "ok"

    assert rows["clip_id"].equals(table.scan(home / "run", "ingest").collect()["clip_id"])
    assert rows.filter(ok, pl.col("num_frames") > 4)["motion_px_per_frame_mean"].null_count() == 0
    assert rows.filter(ok)["sharpness_mean"].null_count() == 0
    assert rows.filter(ok)["perceptual_hashes"].list.len().unique().to_list() == [5]
    assert rows.filter(~ok)["num_frames_decoded"].null_count() == rows.filter(~ok).height > 0
    broken = rows.filter(~ok & (pl.col("frames_status") != "not_scored"))
    for status, problem, path in broken.select("frames_status", "frames_problem", "video_path").iter_rows():
        assert status in {"empty", "unreadable", "no_frames", "no_video_stream"}
        assert problem.startswith(f"{path}: ")
    assert {"empty", "unreadable", "not_scored"} <= set(rows["frames_status"])


def test_workers_change_no_byte_and_a_second_run_does_nothing(home: Path, tmp_path: Path) -> None:
    run = ingested(home, tmp_path / "two")
    first = run_frames(run, SPEC, videos=home / "demo" / "videos", executor=ExecutorSpec(num_workers=2))
    again = run_frames(run, SPEC, videos=home / "demo" / "videos")

    assert (first.up_to_date, again.up_to_date) == (False, True)
    assert (run / "frames.parquet").read_bytes() == (home / "run" / "frames.parquet").read_bytes()
    assert not list(run.glob(".frames-*"))
    assert first.by_status == again.by_status
    assert sum(first.by_status.values()) == first.rows_in


class Stopped(Exception):
    pass


def test_a_stopped_run_resumes_where_it_was_and_gives_the_same_bytes(home: Path, tmp_path: Path) -> None:
    run = ingested(home, tmp_path / "stopped")
    reported: list[tuple[int, int, str]] = []

    def stop(done: int, total: int, unit: str) -> None:
        if done >= 8:
            raise Stopped

    def tell(done: int, total: int, unit: str) -> None:
        reported.append((done, total, unit))

    with pytest.raises(Stopped):
        run_frames(run, SPEC, videos=home / "demo" / "videos", progress=stop)
    run_frames(run, SPEC, videos=home / "demo" / "videos", progress=tell)

    assert reported[0][0] >= 8
    assert reported[-1][0] == reported[-1][1]
    assert "h of video" in reported[-1][2]
    assert (run / "frames.parquet").read_bytes() == (home / "run" / "frames.parquet").read_bytes()


def test_a_clip_that_the_probe_found_broken_is_not_decoded(home: Path, tmp_path: Path) -> None:
    run = ingested(home, tmp_path / "probed")
    run_probe(run, ProbeSpec(videos=home / "demo" / "videos"))

    summary = run_frames(run, SPEC, videos=home / "demo" / "videos")

    rows = rows_of(run)
    assert rows.filter(pl.col("probe_status") != "ok")["frames_status"].unique().to_list() == ["not_scored"]
    assert summary.clips_decoded < summary.rows_in
    assert "empty" not in summary.by_status


def test_another_file_is_scored_again_and_another_time_limit_is_not(home: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    shutil.copytree(home / "demo" / "videos", videos)
    run = tmp_path / "run"
    ingest_stage.run_ingest(run, IngestSpec(metadata=home / "demo" / "captions.csv", videos=videos))

    assert not run_frames(run, SPEC, videos=videos).up_to_date
    assert run_frames(run, FramesSpec(time_limit_seconds=60.0), videos=videos).up_to_date
    good = rows_of(run).filter(pl.col("frames_status") == "ok")["video_path"][0]
    (videos / good).write_bytes(b"no video any more")
    assert not run_frames(run, SPEC, videos=videos).up_to_date
    assert rows_of(run).filter(pl.col("video_path") == good)["frames_status"][0] == "unreadable"


@pytest.mark.parametrize("spec", [SPEC, FramesSpec()], ids=["in this process", "in workers"])
def test_a_missing_codec_stops_the_stage_and_is_named(
    make_video: Callable[..., Path], tmp_path: Path, spec: FramesSpec
) -> None:
    videos, run = tmp_path / "videos", tmp_path / "run"
    good = make_video("clip.mp4").read_bytes()
    write_videos(videos, 9, without_decoder(good))
    ingest_stage.run_ingest(run, IngestSpec(metadata=videos / "captions.csv", videos=videos))

    with pytest.raises(
        VidcurateError,
        match=r"^all 9 clips failed for one reason, so nothing was written\. The first: 0\.mp4: holds no "
        r"video stream\. `vidcurate version` prints the codecs",
    ):
        run_frames(run, spec, videos=videos)

    assert [path.name for path in run.iterdir() if "frames" in path.name] == []
    (videos / "8.mp4").write_bytes(good)  # one clip that decodes: the others are broken, not the installation
    run_frames(run, spec, videos=videos)
    assert dict(rows_of(run)["frames_status"].value_counts().iter_rows()) == {"no_video_stream": 8, "ok": 1}


def test_seven_clips_that_fail_alike_are_rows(make_video: Callable[..., Path], tmp_path: Path) -> None:
    videos, run = tmp_path / "videos", tmp_path / "run"
    write_videos(videos, 7, without_decoder(make_video("clip.mp4").read_bytes()))
    ingest_stage.run_ingest(run, IngestSpec(metadata=videos / "captions.csv", videos=videos))
    run_frames(run, SPEC, videos=videos)
    assert rows_of(run)["frames_status"].to_list() == ["no_video_stream"] * 7


def test_an_opencv_that_fails_is_named_and_no_table_is_written(
    make_video: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that takes other arguments: an error at the first clip, of no clip's own."""
    videos, run = tmp_path / "videos", tmp_path / "run"
    write_videos(videos, 9, make_video("clip.mp4").read_bytes())
    ingest_stage.run_ingest(run, IngestSpec(metadata=videos / "captions.csv", videos=videos))
    monkeypatch.delattr("cv2.cvtColor")

    with pytest.raises(AttributeError, match=r"module 'cv2' has no attribute 'cvtColor'"):
        run_frames(run, SPEC, videos=videos)

    assert not table.stage_path(run, "frames").exists()
    monkeypatch.undo()
    run_frames(run, SPEC, videos=videos)
    assert rows_of(run)["frames_status"].to_list() == ["ok"] * 9


def test_a_folder_or_a_library_that_is_not_there_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no such folder of videos"):
        run_frames(home / "run", SPEC, videos=tmp_path / "none")
    monkeypatch.setattr(frame_scores_stage, "_NEEDED", ("cv2", "no_such_library"))
    with pytest.raises(InputError, match=r"no_such_library not installed: .*vidcurate\[score\]"):
        run_frames(home / "run", SPEC, videos=home / "demo" / "videos")


@pytest.mark.parametrize(
    "is_wanted",
    [
        pytest.param(lambda pixels: pixels <= 20e6, id="small"),
        pytest.param(lambda pixels: pixels > 20e6, id="large", marks=pytest.mark.soak),
    ],
)
def test_real_clips_have_plausible_scores_and_broken_ones_a_name(
    shared: Path, is_wanted: Callable[[int], bool]
) -> None:
    from vidcurate.curation.frame_scores.scorers import score_clip

    with (shared / "data" / "manifest.csv").open() as file:
        manifest = list(csv.DictReader(file))
    for row in manifest:
        if not is_wanted(int(row["width"] or 0) * int(row["height"] or 0) * int(row["frames"] or 0)):
            continue
        found = score_clip({"path": str(shared / "data" / "clips" / row["file"])}, SPEC)
        if row["decode_error"]:
            assert found["frames_status"] in ("unreadable", "empty"), row["file"]
            assert found["frames_problem"].startswith(row["file"])
            continue
        assert found["frames_status"] == "ok", found
        assert found["num_frames_decoded"] == int(row["frames"]), row["file"]
        assert 0 <= found["brightness_mean"] <= 255
        assert 0 <= (found["motion_px_per_frame_mean"] or 0) < 30
        assert all(0 <= (found[name] or 0) <= 1 for name in ("black_share", "frozen_share"))
        assert 0.05 < (found["sharpness_mean"] or 1) <= 2
        height, width = int(row["display_height"]), int(row["display_width"])
        assert found["letterbox_top_px"] + found["letterbox_bottom_px"] < height
        assert found["letterbox_left_px"] + found["letterbox_right_px"] < width
        assert (found["is_audio_silent"] is not None) <= (row["has_audio"] == "True")


def test_the_near_twins_among_the_real_clips_are_near_and_the_others_are_not(shared: Path) -> None:
    from vidcurate.curation.frame_scores.scorers import ClipFile, measure

    names = [
        *("dn_uuid540.mp4", "dn_xmp480qt.mov", "tc_h264_10bit.mp4", "tc_h265_10bit.mp4"),
        *("media3_mdat_too_long.mp4", "media3_portrait.mp4", "media3_rotate_reflect.mp4", "mdn_frog.mp4"),
    ]
    hashes = {
        name: measure(ClipFile(path=str(shared / "data" / "clips" / name)), SPEC)["perceptual_hashes"]
        for name in names
    }

    def distance(one: str, other: str) -> int:
        of_one, of_other = (np.asarray(hashes[name], dtype=np.uint64) for name in (one, other))
        return min(int(np.median(np.bitwise_count(turned(of_one, name) ^ of_other))) for name in ORIENTATIONS)

    twins = {names[0]: names[1], names[2]: names[3], names[4]: names[5], names[5]: names[6]}
    for one, other in twins.items():
        assert distance(one, other) <= 3, (one, other)
    for one in names[:4]:
        for other in names[4:]:
            assert distance(one, other) >= 15, (one, other)


def test_a_clip_that_takes_too_long_is_a_row(home: Path, tmp_path: Path) -> None:
    name = rows_of(home / "run").filter(pl.col("frames_status") == "ok")["video_path"][0]
    (tmp_path / "one.csv").write_text(f"video_path,caption\n{name},a dog\n")
    videos = home / "demo" / "videos"
    ingest_stage.run_ingest(tmp_path / "run", IngestSpec(metadata=tmp_path / "one.csv", videos=videos))

    run_frames(tmp_path / "run", FramesSpec(time_limit_seconds=1e-4), videos=videos)

    row = rows_of(tmp_path / "run").filter(pl.col("video_path") == name).row(0, named=True)
    assert row["frames_status"] == "timeout"
    assert row["frames_problem"] == f"{name}: decoding exceeded the time limit."
