"""Every removed or renamed key is refused with its message; a saved recipe is upgraded."""

import json
from typing import Any

import pytest
from pydantic import create_model

from docs import generate
from tests.trainer.shards_for_tests import SMOKE
from trainer.recipe import data_spec
from trainer.recipe import recipe as recipes
from trainer.recipe.changes import changes
from vidcurate.errors import RecipeError
from vidcurate.recipe import recipe
from vidcurate.recipe.removed_keys import ANY, REMOVED, Removed, upgrade

SETTINGS = (
    "guard.max_rollbacks=5",
    "stages.0.mask_ratios={interpolate: 0.1}",
    "validation={every: 9}",
    "trackers.wandb=p",
    "power_ema=[0.05, 0.1]",
    "stages.0.optim.muon=1.0",
)
ROWS = [(name, key) for name, keys in REMOVED.items() for key in keys]


def models() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for model, _ in generate.RECIPES.values():
        generate.collect_models(model, seen)
    return seen


MODELS = models()


@pytest.mark.parametrize(("name", "key"), ROWS, ids=lambda word: word)
def test_a_former_key_or_value_is_refused_with_what_to_write_instead(name: str, key: str) -> None:
    former, equals, value = key.partition("=")
    row = REMOVED[name][key]
    section, dot, word = former.partition(".")
    text = json.dumps({section: {word: 0.1} if dot else value if equals else 1})

    with pytest.raises(RecipeError) as refused:
        recipe.parse(text, MODELS[name], where="r.yaml")

    reported = str(refused.value)
    assert reported.startswith(f"r.yaml:1: {former}")
    assert reported.endswith(f"{row.message}.")
    assert "is no longer a " in reported
    assert "\n" not in reported


@pytest.mark.parametrize(("name", "key"), ROWS, ids=lambda word: word)
def test_a_former_key_is_none_of_now_and_its_new_name_is(name: str, key: str) -> None:
    former, equals, _ = key.partition("=")
    keys, row = MODELS[name].model_fields, REMOVED[name][key]
    section, dot, _ = former.partition(".")

    assert (section in keys) == bool(equals or dot)
    if row.now is not None and not equals and not dot:
        assert row.now in keys
        assert row.now in row.message


def test_the_error_has_line_and_full_name_of_a_former_key() -> None:
    text = f"{SMOKE.read_text()}\nguard:\n  spike: skip\n  most_rollbacks: 1\n"

    with pytest.raises(RecipeError) as refused:
        recipe.parse(text, recipes.TrainRecipe, where="r.yaml")

    line = text.splitlines().index("  most_rollbacks: 1") + 1
    said = f"r.yaml:{line}: guard.most_rollbacks is no longer a setting: write max_rollbacks."
    assert str(refused.value) == said


def with_former_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Return a saved training recipe as one of before would have it: each former key at its default."""

    def add(place: dict[str, Any], name: str) -> None:
        for key, row in REMOVED.get(name, {}).items():
            if "." in key:
                mapping, _, word = key.partition(".")
                if row.is_value:
                    place[mapping] = {word: place[mapping]}
                elif row.now is None:
                    place[mapping][word] = 7 if row.default is ANY else row.default
                else:
                    place[mapping] = {
                        word if name == row.now else name: one for name, one in place[mapping].items()
                    }
            elif "=" in key:
                former, _, value = key.partition("=")
                place[former] = value if place[former] == row.now else place[former]
            elif row.now is None:
                place[key] = 7 if row.default is ANY else row.default
            elif row.now in place:
                place[key] = place.pop(row.now)

    parts = {
        "GuardSpec": document["guard"],
        "WatchSpec": document["watch"],
        "PreflightSpec": document["preflight"],
        "LoaderSpec": document["loader"],
        "ModelSpec": document["model"],
        "ValidationSpec": document["validation"],
        "TrackersSpec": document["trackers"],
    }
    add(document, "TrainRecipe")
    for name, place in parts.items():
        add(place, name)
    for stage in document["stages"]:
        add(stage["data"], "DataSpec")
        add(stage["flow"], "FlowSpec")
        add(stage["optim"], "OptimSpec")
        add(stage, "Stage")
    return document


def test_a_run_whose_saved_recipe_has_former_keys_can_be_resumed() -> None:
    now = recipes.load(SMOKE, [*SETTINGS])

    older = with_former_keys(recipes.to_json(now))

    assert older != recipes.to_json(now)
    assert changes(older, now) == {}
    assert recipes.from_saved(older) == now
    older["guard"]["no_key"] = 1
    assert "guard.no_key" in changes(older, now)


def test_a_saved_length_in_passes_is_one_in_epochs_of_a_stage_and_of_a_phase() -> None:
    phases = "[{levels: [1], epochs: 2}, {levels: [2], ramp_steps: 3}]"
    one = ("stages.0.steps=null", "stages.0.epochs=2", "stages.0.data.levels=null")
    now = recipes.load(SMOKE, [*one, f"stages.0.data.curriculum={phases}"])
    older = recipes.to_json(now)
    for place in (*older["stages"], *older["stages"][0]["data"]["curriculum"]):
        place["passes"] = place.pop("epochs")

    assert changes(older, now) == {}
    assert recipes.from_saved(older) == now
    assert data_spec.from_saved(older["stages"][0]["data"]) == now.stages[0].data


def test_a_former_key_that_was_changed_stays_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        REMOVED, "Shape", {"order": Removed("gone", "rows"), "kind=old": Removed("", now="new")}
    )  # type: ignore[arg-type]
    shape = create_model("Shape", kind=str)

    assert upgrade({"order": "rows", "kind": "old"}, shape) == {"kind": "new"}
    assert upgrade({"order": "columns", "kind": "odd"}, shape) == {"order": "columns", "kind": "odd"}


def test_the_keys_of_a_former_section_are_kept_in_the_section_around_it() -> None:
    saved = recipes.to_json(recipes.load(SMOKE))
    for key in ("cache_folder", "cache_bytes"):
        del saved["loader"][key]
    saved["loader"]["remote"] = {"cache_folder": "/c", "cache_bytes": 5, "requests_at_once": 16}

    loader = recipes.from_saved(saved).loader

    assert (str(loader.cache_folder), loader.cache_bytes) == ("/c", 5)
