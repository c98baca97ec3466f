"""What a run of the loop's tests holds, to be compared with another."""

from pathlib import Path

import torch

from trainer import checkpoint, optim, resume
from trainer.recipe import TrainRecipe
from trainer.stdit import STDiT3

SHORT = ("stages.0.steps=4", "stages.0.checkpoint_every=2", "sample=null")


def tensors(run: Path, part: str) -> dict[str, torch.Tensor]:
    return checkpoint.load(run).parts[part]


def same(one: Path, other: Path) -> bool:
    return all(
        checkpoint.checksum(tensors(one, part)) == checkpoint.checksum(tensors(other, part))
        for part in checkpoint.PARTS
    )


def fresh_state(recipe: TrainRecipe) -> resume.TrainState:
    model = STDiT3(recipe.model, recipe.seed)
    return resume.TrainState(model=model, masters=optim.masters(model))
