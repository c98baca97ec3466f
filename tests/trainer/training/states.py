"""What a run of the loop's tests holds, to be compared with another."""

from pathlib import Path

import torch

from trainer.model.stdit import STDiT3
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder.checkpoint import checkpoint, checksum
from trainer.training import state as training_state
from trainer.training.optim import adamw

SHORT = ("stages.0.steps=4", "stages.0.checkpoint_every=2", "sample=null")


def tensors(run: Path, part: str) -> dict[str, torch.Tensor]:
    return checkpoint.load(run).parts[part]


def same(one: Path, other: Path) -> bool:
    return all(
        checksum.checksum(tensors(one, part)) == checksum.checksum(tensors(other, part))
        for part in checkpoint.PARTS
    )


def fresh_state(recipe: TrainRecipe) -> training_state.TrainState:
    model = STDiT3(recipe.model, recipe.seed)
    return training_state.TrainState(model=model, masters=adamw.masters(model))
