"""Long videos are cut where their scenes change, to the frame."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.field_pictures import write_field_pictures
from tests.vidcurate.curation.scenes.films import EXTRACT, FILMS, FPS, SPEC
from vidcurate.curation.clip_table.own_columns import captions_of
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.frame_scores.stage import run_frames
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe
from vidcurate.curation.scenes.detect import clip_id, detect, plan_scenes
from vidcurate.curation.scenes.extract import run_extract
from vidcurate.curation.scenes.spec import SceneSpec
from vidcurate.curation.scenes.split import run_split_scenes
from vidcurate.errors import InputError


def borders(lengths: tuple[int, ...]) -> list[tuple[float, float]]:
    sums = np.cumsum([0, *lengths]) / FPS
    return list(itertools.pairwise(sums.tolist()))


# ── plan ────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.integers(1, 100_000), unique=True, max_size=20).map(sorted),
    st.integers(1, 20_000),
    st.one_of(st.none(), st.floats(1, 30)),
    st.floats(0, 1),
    st.sampled_from(["divide", "truncate"]),
)
@example([], 12362, 12.359375, 0.0, "divide")  # it was one clip: a thousandth of the limit too long
@settings(max_examples=200, deadline=None)
def test_clips_lie_inside_their_scenes_in_order_and_within_the_limits(
    cuts: list[int], tail: int, longest: float | None, shortest: float, longer: Any
) -> None:
    times = [cut / 1000 for cut in cuts]
    end = (cuts[-1] if cuts else 0) / 1000 + tail / 1000
    spec = SceneSpec(min_seconds=shortest, max_seconds=longest, longer=longer)

    plan = plan_scenes(0.0, end, times, spec)

    assert plan.num_scenes == len(times) + 1
    assert plan.clips == tuple(sorted(plan.clips))
    for start, stop in plan.clips:
        assert 0 <= start < stop <= end + 1e-6
        assert stop - start >= shortest - 2e-3
        assert longest is None or stop - start <= longest + 2e-3
        assert not [cut for cut in times if start + 1e-5 < cut < stop - 1e-5]
    if longest is None and shortest == 0:
        assert sum(stop - start for start, stop in plan.clips) == pytest.approx(end)


def test_a_long_scene_is_divided_or_truncated_and_a_margin_is_taken_off_at_cuts() -> None:
    divide = plan_scenes(0, 40, [], SceneSpec(max_seconds=15))
    truncate = plan_scenes(0, 40, [], SceneSpec(max_seconds=15, longer="truncate"))
    margin = plan_scenes(1, 20, [10], SceneSpec(margin_seconds=0.5))

    assert np.allclose(divide.clips, [(0, 40 / 3), (40 / 3, 80 / 3), (80 / 3, 40)], atol=1e-5)
    assert truncate.clips == ((0, 15),)
    assert margin.clips == ((1, 9.5), (10.5, 20))


def test_the_limits_must_leave_some_length() -> None:
    with pytest.raises(ValueError, match="max_seconds is 1, below min_seconds 2"):
        SceneSpec(max_seconds=1.0)


def test_an_id_holds_its_source_and_its_interval() -> None:
    assert clip_id("film", 12.345, 17.89) == "film-000012345-000017890"


# ── split-scenes ────────────────────────────────────────────────────────────────────────────────────────


def test_the_scenes_are_those_of_the_films_to_the_frame(home: Path) -> None:
    scenes = pl.read_parquet(home / "scenes.parquet")

    assert scenes["source_id"].to_list() == ["a"] * 3 + ["more_b"] * 3
    truth = borders(FILMS["a.mp4"])[:3] + borders(FILMS["b.mkv"])
    for name, column in (("start_seconds", 0), ("end_seconds", 1)):
        assert scenes[name].to_list() == pytest.approx([pair[column] for pair in truth], abs=0.4 / FPS)
    assert scenes["num_frames"].to_list() == [*FILMS["a.mp4"][:3], *FILMS["b.mkv"]]
    assert scenes["clip_id"].n_unique() == len(scenes)
    assert scenes["clip_id"][1] == "a-000001250-000003500"


def test_a_video_that_cannot_be_decoded_is_listed_and_the_rest_resumes(home: Path, tmp_path: Path) -> None:
    summary = run_split_scenes([home / "films"], SPEC, out=tmp_path / "s.csv", num_workers=2)

    assert (summary.videos, summary.clips, summary.scenes, summary.scenes_too_short) == (3, 6, 7, 1)
    assert summary.problems == {"unreadable": 1}
    listed = Path(summary.problems_file or "").read_text()
    assert "broken.mp4: not a video that FFmpeg opens" in listed
    whole = pl.read_parquet(home / "scenes.parquet")
    assert (
        pl.read_csv(tmp_path / "s.csv")
        .select("clip_id", "num_frames")
        .equals(whole.select("clip_id", "num_frames"))
    )
    assert not list(tmp_path.glob(".s.csv*"))


def test_workers_and_a_second_run_change_no_byte(home: Path, tmp_path: Path) -> None:
    for workers in (2, 1):
        run_split_scenes([home / "films"], SPEC, out=tmp_path / "again.parquet", num_workers=workers)
        assert (tmp_path / "again.parquet").read_bytes() == (home / "scenes.parquet").read_bytes()


def test_what_is_no_video_and_no_table_is_named(home: Path, tmp_path: Path) -> None:
    for inputs, out, words in (
        ([tmp_path / "none.mp4"], "s.csv", "no such video"),
        ([home / "films"], "s.txt", r"unknown suffix '\.txt'"),
        ([tmp_path], "s.csv", "contains no videos"),
        ([home / "films" / "a.mp4", home / "films" / "more" / "b.mkv"], "s.csv", "are in several folders"),
    ):
        with pytest.raises(InputError, match=words):
            run_split_scenes(inputs, SPEC, out=tmp_path / out)


def test_a_run_is_split_by_the_cuts_that_score_frames_found(home: Path, tmp_path: Path) -> None:
    captions = tmp_path / "films.csv"
    captions.write_text(
        "video_path,caption,short_caption,stars,level\n"
        "a.mp4,one film,one,5,x\nmore/b.mkv,another,,,y\nbroken.mp4,none,none,1,z\n"
    )
    run, videos = tmp_path / "run", home / "films"
    run_ingest(run, IngestSpec(metadata=captions, videos=videos, schema_name="table"))
    run_probe(run, ProbeSpec(videos=videos))
    run_frames(run, FramesSpec(time_limit_seconds=None), videos=videos)

    undecoded = run_split_scenes([run], SPEC, out=tmp_path / "a.parquet", videos=videos)
    decoded = run_split_scenes(
        [run], SPEC.model_copy(update={"cut_threshold": 3.4}), out=tmp_path / "b.parquet", videos=videos
    )

    assert (undecoded.videos_decoded, decoded.videos_decoded) == (0, 2)
    scenes = pl.read_parquet(tmp_path / "b.parquet")
    assert scenes["caption"].to_list() == ["one film"] * 3 + ["another"] * 3
    assert undecoded.clips == decoded.clips == 6
    own = {"stars": [5] * 3 + [None] * 3, "own_level": ["x"] * 3 + ["y"] * 3}
    assert scenes.select(list(own)).to_dict(as_series=False) == own
    assert captions_of(scenes.row(0, named=True)) == {"caption": "one film", "short": "one"}
    few = scenes.head(1)
    few.write_parquet(tmp_path / "few.parquet")
    run_extract(tmp_path / "few.parquet", EXTRACT, videos=videos, out=tmp_path / "out")
    names = [*own, "captions", "caption_name"]
    assert pl.read_parquet(tmp_path / "out" / "clips.parquet").select(names).equals(few.select(names))
    few.with_columns(stars=pl.lit(4)).write_parquet(tmp_path / "few.parquet")
    run_extract(tmp_path / "few.parquet", EXTRACT, videos=videos, out=tmp_path / "out")
    assert pl.read_parquet(tmp_path / "out" / "clips.parquet")["stars"].to_list() == [4]


def test_a_video_in_field_pictures_has_its_own_frame_rate(tmp_path: Path) -> None:
    path = write_field_pictures(tmp_path / "camera.mts", num_frames=24, gop=8)
    found = detect({"path": str(path), "start_seconds": None, "end_seconds": None}, SceneSpec())
    assert (found["problem"], found["fps"]) == (None, pytest.approx(25.0))
