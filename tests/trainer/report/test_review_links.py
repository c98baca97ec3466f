"""Links from a training run's pages into the review app: there where a curation has them, harmless always."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.trainer.report.test_gallery import add_round, add_steps, shown
from trainer.report import command as report_command
from trainer.report import gallery, review_links
from trainer.run_folder import clip_losses, jsonl, metrics
from vidcurate.curation.report import review_link

HOSTILE = "<img src=x onerror=alert(1)>\"'"


def training(home: Path, shards: Any, *more: Any) -> Path:
    """Write a training run whose stages `one`, `two` … read these shards."""
    run = home / "train"
    run.mkdir()
    stages = [
        {"name": name, "data": {"shards": None if place is None else str(place)}}
        for name, place in zip(("one", "two", "three"), (shards, *more), strict=False)
    ]
    (run / "recipe.json").write_text(json.dumps({"name": "tiny", "stages": stages}))
    return run


def record(run: Path, step: int, clip_ids: list[str], losses: list[float], stage: str = "one") -> None:
    line = {
        "step": step,
        "stage": stage,
        "time": 100.0 + step,
        "seconds": 1.0,
        "data_seconds": 0.1,
        "loss": 1.0,
    }
    jsonl.append_line(run / metrics.METRICS, line)
    same = ["x"] * len(clip_ids)
    clip_losses.append(
        run,
        step,
        stage,
        clip_ids=clip_ids,
        buckets=same,
        levels=same,
        losses=losses,
        timesteps=[0.5] * len(same),
    )


def test_a_stage_has_links_where_its_curation_has_the_page(tmp_path: Path) -> None:
    curation = tmp_path / "javascript:alert(1)" / "a #?%& run"
    curation.mkdir(parents=True)
    run = training(tmp_path, curation / "shards", "s3://bucket/run/shards", None)
    assert review_links.targets(run, run) == {}
    review_link.write_page(curation)
    found = review_links.targets(run, run)
    assert found == {"one": "../javascript:alert(1)/a #?%& run/review.html"}
    assert review_links.target(found, "one") == review_links.target(found, None) == found["one"]
    assert review_links.target(found, "two") is None
    link = review_link.link({}, found["one"])
    assert (run / unquote(link.partition("#")[0])).resolve() == curation / "review.html"
    assert ":" not in link
    other = tmp_path / "other"
    other.mkdir()
    review_link.write_page(other)
    both = {**found, "two": "../other/review.html"}
    assert review_links.target(both, None) is None  # which of them is not known


@pytest.mark.parametrize(
    "recipe", [None, "", "[1]", '{"stages": [{}]}', '{"stages": [{"name": 1, "data": 2}]}']
)
def test_a_run_without_a_recipe_that_can_be_read_has_no_links(tmp_path: Path, recipe: str | None) -> None:
    if recipe is not None:
        (tmp_path / "recipe.json").write_text(recipe)
    assert review_links.targets(tmp_path, tmp_path) == {}


def test_hostile_ids_and_prompts_stay_text_on_the_run_report(tmp_path: Path) -> None:
    curation = tmp_path / "run"
    curation.mkdir()
    review_link.write_page(curation)
    run = training(tmp_path, curation / "shards")
    record(run, 1, [HOSTILE, "b"], [2.0, 3.0])
    record(run, 2, ["c"], [float("nan")])
    event = {"event": "clip_substituted", "step": 1, "time": 1.0, "clip_id": HOSTILE, "reason": HOSTILE}
    jsonl.append_line(run / jsonl.EVENTS, event)
    assert report_command.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "<img" not in page
    assert "<script" not in page
    assert review_link.link_clips([HOSTILE], "../run/review.html") in page
    losses = page.partition('<section id="losses">')[2].partition("</section>")[0]
    assert losses.index(">2</a>") < losses.index(">1</a>")  # a loss that is no number comes first
    assert review_link.link_clips(["b", HOSTILE], "../run/review.html") in losses


def test_a_damaged_record_is_named_and_stops_neither_report_nor_gallery(tmp_path: Path) -> None:
    curation = tmp_path / "run"
    curation.mkdir()
    review_link.write_page(curation)
    run = training(tmp_path, curation / "shards")
    record(run, 1, ["a"], [1.0])
    with (run / clip_losses.CLIP_LOSSES).open("a") as file:
        file.write('{"step": 2, broken\n')
    add_round(run, 2)
    assert report_command.main([str(run)]) == 0
    assert "line 2 is damaged" in (run / "report.html").read_text()
    gallery.write_gallery(run)
    assert shown(run)["sets"][0]["links"] == {}


def test_a_gallery_links_each_step_to_the_newest_recorded_one(tmp_path: Path) -> None:
    curation = tmp_path / "run"
    curation.mkdir()
    run = training(tmp_path, curation / "shards")
    add_steps(run, 1, 3)
    for step, ids in ((3, ["a"]), (6, ["b", "c"])):
        record(run, step, ids, [1.0] * len(ids))
    for step in (2, 5, 6, 9):
        add_round(run, step)
    gallery.write_gallery(run)
    assert "links" not in shown(run)["sets"][0]  # no curation with a page of links
    review_link.write_page(curation)
    gallery.write_gallery(run)
    own = shown(run)["sets"][0]
    to = "../run/review.html"
    of = {3: review_link.link_clips(["a"], to), 6: review_link.link_clips(["b", "c"], to)}
    assert own["links"] == {"5": [3, of[3]], "6": [6, of[6]], "9": [6, of[6]]}
    assert own["rows"][0]["link"] == review_link.link({"text": "red square"}, to)
    assert clip_losses.newest_before(tmp_path, [1, 2]) == {}


def test_the_longest_words_of_a_prompt_are_searched_for() -> None:
    link = review_links.link_captions("A very-long Straßenfest, at night in the rain; <b>", "x")
    assert json.loads(unquote(link.partition("#")[2])) == {"text": "very Straßenfest night"}
    assert json.loads(unquote(review_links.link_captions("?!", "x").partition("#")[2])) == {"text": ""}
