"""Optimizer settings that no training can mean are refused, with the bounds and the reason."""

import pytest

from trainer.training.optim.schedule import OptimSpec
from vidcurate.errors import RecipeError
from vidcurate.recipe.recipe import parse


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr: 1e30", "give 1e-12 to 1: AdamW moves each weight"),
        ("lr: 0", "give 1e-12 to 1"),
        ("lr: -1.0e-4", "give 1e-12 to 1"),
        ("lr: 1e-300", "give 1e-12 to 1"),
        ("{schedule: cosine, min_lr: 1e30}", "give 0 to 1"),
        ("{schedule: bump, max_lr: 2.0, warmup_steps: 1, cooldown_steps: 1}", "max_lr"),
        ("weight_decay: 1e9", "give 0 to 10: a step takes lr times this share"),
        ("weight_decay: -1", "give 0 to 10"),
        ("warmup_steps: 1000000000000000000", "no run lasts longer"),
        ("warmup_steps: -1", "give 0 to 1e"),
        ("{schedule: bump, max_lr: 1.0, warmup_steps: 1, cooldown_steps: 10000000000}", "cooldown_steps"),
        ("betas: [0.9, 0.9999999999999999]", "betas.1 is .*give 0 to 0.999999"),
        ("betas: [1.0, 0.9]", "betas.0"),
        ("betas: [-0.1, 0.9]", "betas.0"),
        ("eps: 0", "give 1e-20 to 1: it is added"),
        ("eps: 1e-300", "give 1e-20 to 1"),
        ("eps: 1e9", "give 1e-20 to 1"),
        ("grad_clip: 1e30", "a gradient's norm is near 1"),
        ("grad_clip: 1e-30", "a gradient's norm is near 1"),
        ("muon: 1e9", "it multiplies lr"),
        ("muon: 0", "it multiplies lr"),
    ],
)
def test_a_setting_that_no_training_means_is_refused_with_its_bounds(text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as refusal:
        parse(text, OptimSpec, where="recipe.yaml")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "lr: 1.0",
        "lr: 1e-12",
        "{betas: [0.0, 0.999999], eps: 1e-15, weight_decay: 0.3, grad_clip: null, muon: 0.02}",
        "{warmup_steps: 1000000, eps: 1.0e-3}",
        "{schedule: cosine, min_lr: 0, warmup_steps: 0}",
    ],
)
def test_settings_at_the_edge_of_use_are_taken(text: str) -> None:
    parse(text, OptimSpec, where="recipe.yaml")
