"""Runs with faults: shards with poisoned clips in some data steps, and comparisons of runs."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.trainer.shards_for_tests import TINY, events, numbers
from trainer.recipe import recipe as recipes
from trainer.run_folder.checkpoint import checkpoint, checksum

ROOT = Path(__file__).resolve().parents[1]
STEPS, POISONED = 44, (37, 38)  # the guard needs some thirty steps of this size before it checks


def _make_latents() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_latents", ROOT / "benchmarks" / "make_latents.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_poisoned(
    folder: Path,
    *,
    poison: tuple[int, int] | None = POISONED,
    scale: float = 30.0,
    clips: int = 4 * (STEPS + 24),
) -> Path:
    """Write latent shards of made-up clips and a recipe to train on them, STEPS steps; return its path.

    The latents of the clips that the data steps `poison` read, counted from 1, are multiplied with `scale`.
    """
    folder.mkdir(parents=True)
    settings = [
        f"stages.0.data.shards={folder / 'clips'}",
        f"stages.0.steps={STEPS}",
        "stages.0.checkpoint_every=5",
        "stages.0.keep_last=1",
        f"output={folder / 'run'}",
        "sample=null",
    ]
    recipe = recipes.load(TINY, settings)
    made = _make_latents().make(recipe, folder, clips, 0, poison, scale)
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipes.to_json(made)))
    return path


def words(recipe: Path, run: Path, *more: str) -> list[str]:
    return [str(recipe), *(word for value in (f"output={run}", *more) for word in ("--set", value))]


def of_guard(run: Path) -> list[dict[str, Any]]:
    """Return what the guard has done in a run."""
    return events(run, "guard")


def same_training(one: Path, other: Path) -> None:
    """Assert that two runs are one, bit for bit: every line, weights, average, optimizer and counts."""
    assert numbers(one) == numbers(other)
    states = [checkpoint.load(run) for run in (one, other)]
    for part in checkpoint.PARTS:
        checksums = [checksum.checksum(state.parts[part]) for state in states]
        assert checksums[0] == checksums[1], part
    for name in (
        "step",
        "stage_step",
        "lr",
        "optimizer_updates",
        "ema_updates",
        "clips_hash",
        "loader",
        "skip",
    ):
        assert states[0].state[name] == states[1].state[name], name
