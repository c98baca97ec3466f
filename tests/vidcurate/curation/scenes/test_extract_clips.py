"""extract-clips: a file for each scene, of its frames and no other."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.frame_clips import Frames
from tests.vidcurate.curation.scenes.films import EXTRACT, FILMS, FPS
from vidcurate.curation.caption_scores.stage import ScoreSpec, run_score
from vidcurate.curation.clip_table import table
from vidcurate.curation.difficulty.spec import SplitSpec
from vidcurate.curation.difficulty.stage import run_split
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.scenes.extract import check, run_extract
from vidcurate.curation.scenes.spec import ExtractSpec
from vidcurate.errors import ColumnError, InputError, MediaError, StageError
from vidcurate.media import decode, headers, transcode
from vidcurate.media.transcode import TranscodeSpec
from vidcurate.storage import lock


def frames_of(path: Path, count: int) -> Frames:
    return decode.read_frames(path, range(count), height=72, width=128)


def test_every_clip_is_its_scene_and_nothing_else(home: Path, tmp_path: Path) -> None:
    summary = run_extract(
        home / "scenes.parquet", EXTRACT, videos=home / "films", out=tmp_path / "out", num_workers=2
    )

    assert summary.by_status == {"ok": 6}
    clips = pl.read_parquet(tmp_path / "out" / "clips.parquet")
    starts = {"a": np.cumsum([0, *FILMS["a.mp4"]]), "more_b": np.cumsum([0, *FILMS["b.mkv"]])}
    films = {"a": home / "films" / "a.mp4", "more_b": home / "films" / "more" / "b.mkv"}
    numbers = {"a": 0, "more_b": 0}
    for source, name, count in clips.select("source_id", "video_path", "num_frames").iter_rows():
        first = int(starts[source][numbers[source]])
        numbers[source] += 1
        path = tmp_path / "out" / "videos" / name
        assert decode.count_decodable_frames(path) == count
        there = decode.read_frames(films[source], range(first, first + count), height=72, width=128)
        difference = np.abs(frames_of(path, count).astype(int) - there).mean(axis=(1, 2, 3))
        assert difference.max() < 4, name
        _, index = headers.read_header_and_index(path)
        assert index.num_keyframes >= count // 12
    assert clips["first_frame_difference"].max() < 4  # type: ignore[operator]


def test_bytes_are_equal_on_repeat_and_only_what_is_missing_is_made_again(home: Path, tmp_path: Path) -> None:
    def extract(name: str) -> Any:
        return run_extract(home / "scenes.parquet", EXTRACT, videos=home / "films", out=tmp_path / name)

    def bytes_of(name: str) -> dict[str, bytes]:
        return {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in sorted((tmp_path / name).rglob("*"))
            if path.is_file()
        }

    extract("one"), extract("two")
    assert bytes_of("one") == bytes_of("two")
    assert len(bytes_of("one")) == 7
    before = bytes_of("one")
    (tmp_path / "one" / "videos" / "a-000000000-000001250.mp4").unlink()
    torn = tmp_path / "one" / "videos" / "more_b-000000000-000002000.mp4"
    torn.write_bytes(torn.read_bytes()[:-7])
    again = extract("one")

    assert (again.clips_kept, again.clips_written) == (4, 2)
    assert bytes_of("one") == before
    assert extract("one").clips_kept == 6


def test_a_second_extraction_into_the_same_folder_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with (
        lock.exclusive(tmp_path / "out" / ".lock", is_removed=True),
        pytest.raises(StageError, match="another vidcurate command"),
    ):
        run_extract(home / "scenes.parquet", EXTRACT, videos=home / "films", out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


class Stopped(Exception):
    pass


def test_a_stopped_extraction_leaves_whole_clips_and_resumes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vidcurate.curation.scenes.extract._CLIPS_AT_ONCE", 2)

    def stop(done: int, total: int, unit: str) -> None:
        if done >= 4:
            raise Stopped

    options: dict[str, Any] = {"videos": home / "films", "out": tmp_path / "out"}
    with pytest.raises(Stopped):
        run_extract(home / "scenes.parquet", EXTRACT, progress=stop, **options)
    assert not (tmp_path / "out" / "clips.parquet").exists()
    done = sorted((tmp_path / "out" / "videos").iterdir())
    assert all(decode.count_decodable_frames(path) > 0 for path in done)
    times = [path.stat().st_mtime_ns for path in done]
    run_extract(home / "scenes.parquet", EXTRACT, **options)

    assert [path.stat().st_mtime_ns for path in done] == times
    assert len(pl.read_parquet(tmp_path / "out" / "clips.parquet")) == 6
    assert not list((tmp_path / "out").glob(".extract-*"))


def test_a_rate_and_a_size_are_given_to_every_clip(home: Path, tmp_path: Path) -> None:
    spec = ExtractSpec(
        time_limit_seconds=None, transcode=TranscodeSpec(fps=12, short_side_px=72, gop_frames=6)
    )

    run_extract(home / "scenes.parquet", spec, videos=home / "films", out=tmp_path)

    clips = pl.read_parquet(tmp_path / "clips.parquet")
    assert clips["extract_status"].unique().to_list() == ["ok"]
    assert clips.select("width", "height", "fps").unique().row(0) == (128, 72, 12.0)
    assert clips["num_frames"].to_list() == [15, 27, 20, 24, 12, 18]


def test_packets_are_copied_from_key_frames_and_a_scene_without_one_says_so(
    home: Path, tmp_path: Path
) -> None:
    summary = run_extract(
        home / "scenes.parquet",
        EXTRACT.model_copy(update={"mode": "trim"}),
        videos=home / "films",
        out=tmp_path,
    )

    clips = pl.read_parquet(tmp_path / "clips.parquet")
    ok = clips.filter(pl.col("extract_status") == "ok")
    assert summary.by_status["ok"] == len(ok) >= 4
    assert ok["first_frame_difference"].max() == 0.0  # the very packets
    # x264 puts a key frame at a cut that it sees, so every scene begins with one or has none at all.
    for row in clips.filter(pl.col("extract_status") != "ok").iter_rows(named=True):
        assert row["extract_status"] == "cannot_cut"
        assert "no key frame between" in row["extract_problem"]


def test_a_clip_that_comes_out_too_short_is_not_written(home: Path, tmp_path: Path) -> None:
    scenes = tmp_path / "scenes.csv"
    scenes.write_text("clip_id,video_path,start_seconds,end_seconds\nlate,more/b.mkv,3.55,4.2\n")
    spec = EXTRACT.model_copy(update={"mode": "trim"})

    summary = run_extract(scenes, spec, videos=home / "films", out=tmp_path / "out")

    row = pl.read_parquet(tmp_path / "out" / "clips.parquet").row(0, named=True)
    assert summary.by_status == {"too_short": 1}
    assert "s would be left, 0.5 s are asked for" in row["extract_problem"]
    assert not list((tmp_path / "out" / "videos").iterdir())


def test_clips_that_are_not_what_was_asked_for_are_found_out(home: Path) -> None:
    source = home / "films" / "a.mp4"
    cut = transcode.transcode_video(source, 30 / FPS, 84 / FPS, TranscodeSpec())
    assert check(cut, source, max_difference=8.0) < 8.0

    late = transcode.Cut(
        payload=cut.payload, extension="mp4", facts={**cut.facts, "start_seconds": 0.0, "end_seconds": 1.0}
    )
    short = transcode.Cut(
        payload=cut.payload, extension="mp4", facts={**cut.facts, "num_frames": cut.facts["num_frames"] + 1}
    )
    with pytest.raises(MediaError, match="first frame differs by") as caught:
        check(late, source, max_difference=8.0)
    assert caught.value.kind == "wrong_extract"
    with pytest.raises(MediaError, match="should hold 55 frames, 54 decode"):
        check(short, source, max_difference=8.0)


def test_a_row_that_cannot_be_cut_stays_with_its_reason(home: Path, tmp_path: Path) -> None:
    scenes = tmp_path / "scenes.csv"
    scenes.write_text(
        "clip_id,video_path,start_seconds,end_seconds\n"
        "12.10,a.mp4,0.0,1.0\nlost,none.mp4,0.0,1.0\nbad,broken.mp4,,\nlate,a.mp4,90.0,99.0\n"
    )

    summary = run_extract(scenes, EXTRACT, videos=home / "films", out=tmp_path / "out")

    assert summary.by_status == {"cannot_cut": 1, "missing": 1, "ok": 1, "unreadable": 1}
    clips = pl.read_parquet(tmp_path / "out" / "clips.parquet")
    assert clips["clip_id"].to_list() == ["12.10", "lost", "bad", "late"]
    assert clips["extract_problem"][1] == "none.mp4: no such file."
    for words, table_of in (
        ("no such table", tmp_path / "no.csv"),
        ("neither a run folder", tmp_path / "a.txt"),
    ):
        with pytest.raises(InputError, match=words):
            run_extract(table_of, EXTRACT, videos=home / "films", out=tmp_path / "out")
    (tmp_path / "thin.csv").write_text("clip_id,video_path\na,a.mp4\n")
    with pytest.raises(ColumnError, match="start_seconds, end_seconds is missing"):
        run_extract(tmp_path / "thin.csv", EXTRACT, videos=home / "films", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (1e308, None),
        (0.0, 1e308),
        (0.0, float("nan")),
        (float("nan"), 1.0),
        (float("inf"), None),
        (-1.0, 1.0),
        (1.0, 1.0),
    ],
)
def test_an_interval_of_no_video_stays_with_its_reason(
    home: Path, tmp_path: Path, start: float, end: float | None
) -> None:
    rows = [("good", "a.mp4", 0.0, 1.0), ("bad", "a.mp4", start, end)]
    names = ["clip_id", "video_path", "start_seconds", "end_seconds"]
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp_path / "scenes.parquet")

    run_extract(tmp_path / "scenes.parquet", EXTRACT, videos=home / "films", out=tmp_path / "out")

    clips = pl.read_parquet(tmp_path / "out/clips.parquet")
    assert clips["extract_status"].to_list() == ["ok", "cannot_cut"]
    assert clips["extract_problem"][1] == f"a.mp4: {start} to {end} is no interval in seconds."


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("start_seconds", "x" * 5000, "start_seconds is String, and Float64 is needed"),
        ("end_seconds", [1.0], "end_seconds is List"),
        ("end_seconds", {"a": 1}, "end_seconds is Struct"),
        ("video_path", "a\0.mp4", r"video_path is 'a\\x00.mp4'"),
        ("clip_id", None, "clip_id is None where video_path is 'a.mp4'"),
        ("clip_id", [], "clip_id is List"),
        ("caption", [["x"]], "caption is List"),
    ],
)
def test_a_column_that_cannot_be_read_is_one_short_line(
    home: Path, tmp_path: Path, name: str, value: object, said: str
) -> None:
    row = {
        "clip_id": "a",
        "video_path": "a.mp4",
        "start_seconds": 0.0,
        "end_seconds": 1.0,
        "caption": "A dog",
    }
    pl.DataFrame([row | {name: value}]).write_parquet(tmp_path / "scenes.parquet")

    with pytest.raises((ColumnError, InputError), match=f"scenes.parquet: {said}") as caught:
        run_extract(tmp_path / "scenes.parquet", EXTRACT, videos=home / "films", out=tmp_path / "out")

    assert len(str(caught.value)) < 900
    assert not (tmp_path / "out").exists()


def test_the_clips_go_the_pipeline_and_no_source_is_in_two_folds(home: Path, tmp_path: Path) -> None:
    run_extract(home / "scenes.parquet", EXTRACT, videos=home / "films", out=tmp_path)
    captioned = pl.read_parquet(tmp_path / "clips.parquet").with_columns(caption=pl.lit("a dog and a cat"))
    captioned.write_parquet(tmp_path / "captioned.parquet")
    run = tmp_path / "run"

    run_ingest(run, IngestSpec(metadata=tmp_path / "captioned.parquet", videos=tmp_path / "videos"))
    run_score(run, ScoreSpec(noun_engine="builtin"))
    run_filter(run, FilterSpec())
    run_split(run, SplitSpec(levels=1, validation_fraction=0.5))

    rows = table.scan(run, "split").collect()
    assert rows["is_kept"].all()
    assert rows["clip_id"].to_list() == captioned["clip_id"].to_list()
    assert rows.group_by("source_id").agg(pl.col("fold").n_unique())["fold"].to_list() == [1, 1]
