"""Thresholds tried in the review are those of the filter: same clips, same counts, same recipe."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tests.vidcurate.curation.review.conftest import Server, served
from tests.vidcurate.curation.review.test_query import page
from vidcurate.curation.filter.spec import FilterSpec
from vidcurate.curation.filter.stage import run_filter
from vidcurate.curation.report import what_if
from vidcurate.recipe import recipe as recipes

LIMITS = {"num_frames": {"min": 20, "max": None}, "noun_count": {"min": None, "max": 5}}
SETTINGS = ["limits.num_frames.min=20", "limits.noun_count.max=5"]


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Iterator[Server]:
    """A server of a copy of the run, which a test may filter again."""
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns(".*"))
    yield from served(tmp_path / "run", run.parent / "data" / "videos")


def test_a_trial_counts_what_what_if_counts(server: Server, run: Path) -> None:
    found = server.post("/api/trial", {"limits": LIMITS}).json()
    assert found == what_if.what_if(run, what_if.spec_of(run, settings=SETTINGS))
    assert found["newly_rejected"] > 0
    taken_away = server.post("/api/trial", {"limits": {"num_frames": {}, "short_side": {}}}).json()
    spec = what_if.spec_of(run, settings=["limits={}"])
    assert taken_away == what_if.what_if(run, spec)
    assert taken_away["newly_kept"] > 0


def test_the_clips_that_change_sides_are_those_of_the_filter_borderline_first(own: Server) -> None:
    run = own.session.run
    before = pl.read_parquet(run / "filter.parquet")
    changes = page(own, {"limits": {"num_frames": {"min": 20}}})["rows"]
    rejected = page(own, {"limits": {"num_frames": {"min": 20}}, "side": "rejected"})["rows"]
    away = [20 - one["num_frames"] for one in rejected if one["num_frames"] < 20]
    assert away == sorted(away)
    run_filter(run, what_if.spec_of(run, settings=SETTINGS[:1]))
    after = pl.read_parquet(run / "filter.parquet")
    moved = before["clip_id"].filter(before["is_kept"] != after["is_kept"])
    assert {one["clip_id"] for one in changes} == set(moved)
    lost = before["clip_id"].filter(before["is_kept"] & ~after["is_kept"])
    assert {one["clip_id"] for one in rejected} == set(lost)
    assert len(lost) > 0


def test_a_saved_recipe_is_what_filter_takes(own: Server) -> None:
    expected = own.post("/api/trial", {"limits": LIMITS}).json()
    saved = own.post("/api/recipe", {"limits": LIMITS, "name": "stricter"}).json()
    path = own.session.run / "recipes" / "stricter.yaml"
    assert saved["file"] == str(path)
    assert saved["command"] == f"vidcurate filter {own.session.run} --recipe {path}"
    spec = recipes.load(path, FilterSpec)
    assert spec.limits["short_side"].min == 32  # the run's own limits are in it
    again = own.post("/api/recipe", {"limits": {}, "name": "stricter"})
    assert again.status_code == 400
    assert "holds other settings" in again.json()["error"]
    assert run_filter(own.session.run, spec).rows_kept == expected["kept"]["clips"]


def test_a_pipe_in_place_of_a_recipe_is_waited_for_by_nobody(own: Server) -> None:
    path = own.session.run / "recipes" / "piped.yaml"
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    assert own.post("/api/recipe", {"limits": LIMITS, "name": "piped"}).status_code == 200
    assert recipes.load(path, FilterSpec).limits


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 61, "a\0", "a.yaml", "ü"])
def test_a_recipes_name_is_no_path(own: Server, name: str) -> None:
    response = own.post("/api/recipe", {"limits": {}, "name": name})
    assert response.status_code == 400
    assert not (own.session.run / "recipes").exists()


def test_a_wrong_threshold_is_named(server: Server) -> None:
    for limits, says in (
        ({"num_frames": {"min": 9, "max": 3}}, "above max"),
        ({"no_such": {"min": 1}}, "no_such"),
        ({"caption": {"min": 1}}, "caption"),
        ({"num_frames": {"least": 1}}, "least"),
    ):
        response = server.post("/api/trial", {"limits": limits})
        assert response.status_code == 400
        assert says in response.json()["error"]


def test_a_filter_that_runs_beside_the_review_is_seen_at_the_next_request(own: Server) -> None:
    run = own.session.run
    kept = page(own, {"words": {"is_kept": ["true"]}})["total"]
    (run / "split.parquet").unlink()
    summary = run_filter(run, what_if.spec_of(run, settings=SETTINGS))
    assert page(own, {"words": {"is_kept": ["true"]}})["total"] == summary.rows_kept < kept
    assert own.client.get("/api/run").json()["stage"] == "filter"


def test_tables_that_do_not_belong_together_are_refused_until_they_do(own: Server) -> None:
    run = own.session.run
    run_filter(run, what_if.spec_of(run, settings=SETTINGS))  # split.parquet is of the filter before
    response = own.client.get("/api/clips")
    assert response.status_code == 409
    assert "split-by-difficulty" in response.json()["error"]
