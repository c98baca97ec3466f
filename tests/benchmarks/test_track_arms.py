"""An arm of the command line is one of the four with its own settings; a wrong one is refused at once."""

from pathlib import Path
from typing import Any

import pytest

from trainer.training.track.spec import TrackRecipe
from vidcurate.errors import InputError, RecipeError
from vidcurate.recipe import recipe as strict

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = "track_arms"  # the module that the fixture `bench` imports


@pytest.fixture(scope="module")
def base() -> TrackRecipe:
    return strict.load(ROOT / "recipes" / "track.yaml", TrackRecipe)


def test_an_arm_of_settings_is_its_kind_with_them(bench: Any, base: TrackRecipe) -> None:
    plain = bench.arm(base, "muon + routing", 4.0)
    made = bench.arm(base, "muon + routing, quick", 4.0, ["ema_decay=0.97", "optim.muon=6", "steps=300"])

    assert (made.ema_decay, made.optim.muon, made.steps) == (0.97, 6.0, 300)
    changed = {"name": plain.name, "ema_decay": plain.ema_decay, "optim": plain.optim, "steps": plain.steps}
    assert made.model_copy(update=changed) == plain
    assert made.optim.lr == plain.optim.lr
    assert plain.routing == made.routing is not None
    assert bench.arm(base, "adamw", 4.0) == base.model_copy(update={"name": "adamw"})


def test_an_arm_that_cannot_be_is_refused(bench: Any, base: TrackRecipe) -> None:
    with pytest.raises(InputError, match="--arm sgd: begin the name with one of adamw, muon"):
        bench.arm(base, "sgd", 4.0)
    with pytest.raises(RecipeError, match=r"optim\.warmup_step"):
        bench.arm(base, "muon", 4.0, ["optim.warmup_step=3"])
