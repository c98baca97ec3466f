"""The recipes on docs/first-recipe.md and docs/your-own-clips.md load, and the first trains."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.docs.test_documented import DOCS
from tests.trainer.shards_for_tests import make_shards
from trainer.distributed import memory
from trainer.recipe import recipe as recipes
from trainer.report.preview.dry_run import parameters
from trainer.train import train

MOST_KEYS = 34


def blocks(page: str) -> list[str]:
    """Return the YAML blocks of a page."""
    return re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)


def keys(value: Any) -> set[str]:
    """Return the keys of a recipe at all depths; names of resolutions and shapes are none."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    if isinstance(value, dict):
        own = {key for key in value if str(key).isidentifier()}
        return {*own, *(key for each in value.values() for key in keys(each))}
    return set()


def test_the_first_recipe_has_few_keys_and_trains(tmp_path: Path) -> None:
    (text,) = blocks("first-recipe.md")
    path = tmp_path / "first.yaml"
    path.write_text(text)
    shards = make_shards(tmp_path / "shards", num_clips=6, size=64)
    settings = [
        f"output={tmp_path / 'run'}",
        f"stages.0.data.shards={shards}",
        "stages.0.steps=2",
        "sample=null",
    ]

    recipe = recipes.load(path, settings)
    train(recipe)

    assert len(keys(yaml.safe_load(text))) <= MOST_KEYS
    assert (tmp_path / "run" / "LATEST").exists()


def test_the_recipe_for_one_gpu_trains_half_of_the_parameters_in_the_memory_that_the_page_gives(
    tmp_path: Path,
) -> None:
    (text,) = blocks("your-own-clips.md")
    path = tmp_path / "own.yaml"
    path.write_text(text)
    page = (DOCS / "your-own-clips.md").read_text(encoding="utf-8")

    for settings, shown in ((), "595 million"), (("model.only_train_temporal=false",), "1,202 million"):
        recipe = recipes.load(path, settings)
        trained, frozen = parameters(recipe.model)
        state = memory.state_bytes(trained, frozen, item_bytes=2)
        assert f"{trained / 1e6:,.0f} million" == shown
        assert f"| {state / 1e9:.1f} GB" in page
