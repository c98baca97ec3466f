import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from vidcurate.curation.clip_table import table
from vidcurate.curation.probe import checks, examine
from vidcurate.curation.probe import stage as probe_stage
from vidcurate.curation.probe.stage import ProbeSpec
from vidcurate.errors import InputError, StageError, VidcurateError
from vidcurate.executor.parts_folder import ExecutorSpec

Make = Callable[..., Path]


def ingested(run: Path, rows: list[dict]) -> None:  # type: ignore[type-arg]
    schema = {
        "clip_id": pl.String,
        "video_path": pl.String,
        "start_seconds": pl.Float64,
        "end_seconds": pl.Float64,
        "width": pl.Int32,
        "height": pl.Int32,
        "fps": pl.Float64,
        "num_frames": pl.Int64,
        "duration_seconds": pl.Float64,
        "file_size_bytes": pl.Int64,
        "ingest_problem": pl.String,
    }
    frame = pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)
    table.write(frame, run / "ingest.parquet", table.Provenance(stage="ingest", settings={}, inputs={}))


@pytest.fixture
def videos(tmp_path: Path, make_video: Make) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    good = make_video("good.mp4", num_frames=48, container_options={"movflags": "+faststart"})
    shutil.copy(good, folder / "good.mp4")
    data = good.read_bytes()
    (folder / "cut.mp4").write_bytes(data[: int(len(data) * 0.9)])
    webm = make_video("good.webm", num_frames=48, codec="libvpx-vp9").read_bytes()
    (folder / "cut.webm").write_bytes(webm[: int(len(webm) * 0.95)])
    (folder / "text.mp4").write_text("this is no video")
    (folder / "empty.mp4").touch()
    return folder


def rows_of(run: Path) -> dict[str, dict]:  # type: ignore[type-arg]
    return {row["clip_id"]: row for row in table.scan(run, "probe").collect().iter_rows(named=True)}


def test_no_row_is_lost_and_every_file_says_what_it_is(tmp_path: Path, videos: Path) -> None:
    names = ["good.mp4", "cut.mp4", "cut.webm", "text.mp4", "empty.mp4"]
    ingested(
        tmp_path,
        [{"clip_id": name, "video_path": name} for name in names]
        + [
            {"clip_id": "gone", "video_path": "gone.mp4", "ingest_problem": "missing_file"},
            {"clip_id": "vanished", "video_path": "vanished.mp4"},
        ],
    )

    summary = probe_stage.run_probe(tmp_path, ProbeSpec(videos=videos))

    rows = rows_of(tmp_path)
    assert {name: row["probe_status"] for name, row in rows.items()} == {
        "good.mp4": "ok",
        "cut.mp4": "truncated",
        "cut.webm": "truncated",
        "text.mp4": "unreadable",
        "empty.mp4": "empty",
        "gone": "not_probed",
        "vanished": "missing",
    }
    assert (summary.rows_in, summary.rows_ok, summary.files_probed) == (7, 1, 6)
    good = rows["good.mp4"]
    assert (good["width"], good["height"], good["num_frames"]) == (96, 64, 48)
    assert good["duration_seconds"] == pytest.approx(2.0)
    assert good["file_size_bytes"] == (videos / "good.mp4").stat().st_size
    assert rows["cut.mp4"]["missing_bytes"] > 0
    assert "the index ends at byte" in rows["cut.mp4"]["probe_problem"]


@pytest.mark.parametrize("percent", [1, 5, 20, 50, 80, 95, 99])
@pytest.mark.parametrize("faststart", [True, False])
def test_every_truncation_of_an_mp4_is_found_without_decoding(
    tmp_path: Path, make_video: Make, percent: int, faststart: bool
) -> None:
    options = {"container_options": {"movflags": "+faststart"}} if faststart else {}
    data = make_video("whole.mp4", num_frames=96, **options).read_bytes()
    path = tmp_path / "cut.mp4"
    path.write_bytes(data[: len(data) * percent // 100])

    assert probe_stage.probe_file(str(path))["probe_status"] != "ok"


def test_clips_of_one_file_are_probed_once_and_get_their_interval(tmp_path: Path, videos: Path) -> None:
    ingested(
        tmp_path,
        [
            {"clip_id": "a", "video_path": "good.mp4", "start_seconds": 0.5, "end_seconds": 1.0},
            {"clip_id": "b", "video_path": "good.mp4", "start_seconds": 1.5, "end_seconds": 9.0},
            {"clip_id": "c", "video_path": "good.mp4"},
        ],
    )

    summary = probe_stage.run_probe(tmp_path, ProbeSpec(videos=videos))

    rows = rows_of(tmp_path)
    assert summary.files_probed == 1
    assert rows["a"]["num_frames"] == 12
    assert rows["b"]["duration_seconds"] == pytest.approx(0.5)  # the file ends at 2 s
    assert rows["c"]["num_frames"] == 48


def test_the_same_bytes_for_any_number_of_workers_and_a_second_run_is_up_to_date(
    tmp_path: Path, videos: Path
) -> None:
    for run in ("one", "two"):
        ingested(
            tmp_path / run,
            [{"clip_id": path.name, "video_path": path.name} for path in sorted(videos.iterdir())],
        )

    one = probe_stage.run_probe(
        tmp_path / "one", ProbeSpec(videos=videos), executor=ExecutorSpec(num_workers=1)
    )
    two = probe_stage.run_probe(
        tmp_path / "two", ProbeSpec(videos=videos), executor=ExecutorSpec(num_workers=2)
    )
    again = probe_stage.run_probe(tmp_path / "two", ProbeSpec(videos=videos))

    assert table.digest(tmp_path / "one" / "probe.parquet") == table.digest(
        tmp_path / "two" / "probe.parquet"
    )
    assert (one.up_to_date, two.up_to_date, again.up_to_date) == (False, False, True)
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [
        "ingest.parquet",
        "known-files.parquet",
        "probe.parquet",
    ]
    shutil.copy(videos / "good.mp4", videos / "text.mp4")
    assert not probe_stage.run_probe(tmp_path / "two", ProbeSpec(videos=videos)).up_to_date


def test_wrong_requests_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder of videos"):
        probe_stage.run_probe(tmp_path, ProbeSpec(videos=tmp_path / "none"))
    with pytest.raises(StageError, match="Run `vidcurate ingest` first"):
        probe_stage.run_probe(tmp_path, ProbeSpec(videos=tmp_path))


def test_the_broken_files_among_the_real_clips_are_named(shared: Path) -> None:
    found = {}
    for path in sorted((shared / "data" / "clips").iterdir()):
        status = probe_stage.probe_file(str(path))["probe_status"]
        if status != "ok":
            found[path.name] = status

    assert found == {
        "empty.mp4": "empty",
        "libwebm_invalid_cluster.mkv": "truncated",
        "not_a_video.mp4": "unreadable",
        "opencv_tree.avi": "frame_count_mismatch",
        "trunc_bbb.webm": "truncated",
        "trunc_moov_first_60pct.mp4": "unreadable",
        "trunc_moov_last_60pct.mp4": "unreadable",
    }


def test_a_missing_codec_stops_the_probe_and_is_named(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a decoder PyAV gives a stream no codec context, so every file "holds no video stream"."""
    names = [f"{number}.mp4" for number in range(9)]
    for name in names:
        shutil.copy(videos / "good.mp4", videos / name)
    ingested(tmp_path, [{"clip_id": name, "video_path": name} for name in names])
    look = examine.examine
    monkeypatch.setattr(examine, "examine", without_codec)

    with pytest.raises(
        VidcurateError,
        match=r"all 9 files failed for one reason, so nothing was written\. The first: 0\.mp4: holds no "
        r"video stream\. `vidcurate version` prints",
    ):
        probe_stage.run_probe(tmp_path, ProbeSpec(videos=videos))

    assert not (tmp_path / "probe.parquet").exists()
    assert not list(tmp_path.glob(".probe-*"))
    monkeypatch.setattr(examine, "examine", look)
    assert probe_stage.run_probe(tmp_path, ProbeSpec(videos=videos)).rows_ok == 9  # type: ignore[union-attr]
    for name in names[1:]:
        (videos / name).write_bytes(b"a page of the network, not a video")
    assert probe_stage.run_probe(tmp_path, ProbeSpec(videos=videos)).rows_ok == 1  # type: ignore[union-attr]


def without_codec(task: examine.Task) -> dict:  # type: ignore[type-arg]
    problem = f"{Path(task.path).name}: holds no video stream."
    return {"failure": "no_video_stream", "problem": problem, "findings": {}}


@pytest.mark.parametrize(
    ("lines", "words"),
    [(["Invalid NAL unit."], "1 complaint, first Invalid NAL unit."), (["a", "b"], "2 complaints, first a")],
)
def test_one_complaint_is_no_plural(lines: list[str], words: str) -> None:
    assert checks.complaints(lines) == words
    named = examine._named({"findings": {"decoder_complaints": words}}, Path("a.mp4"))
    assert named["findings"]["decoder_complaints"] == f"a.mp4: {words.rstrip('.')}."


def test_an_encrypted_clip_is_rejected_before_a_picture_is_decoded(make_video: Make) -> None:
    key = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "7" * 32, "encryption_kid": "a" * 32}

    for flags in ("faststart", "frag_keyframe+empty_moov"):
        path = make_video("clip.mp4", num_frames=24, container_options={**key, "movflags": flags})
        for level in ("index", "keyframes", "full"):
            assert probe_stage.probe_file(str(path), level)["probe_status"] == "encrypted"
