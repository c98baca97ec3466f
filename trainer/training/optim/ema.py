"""Exponential moving average (EMA) of the weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trainer.distributed import mesh


def make_ema(model: nn.Module) -> dict[str, Tensor]:
    """Return a float32 copy of the model's state, by name: the EMA before its first update."""
    return {
        name: value.detach().to(torch.float32, copy=True)
        if value.is_floating_point()
        else value.detach().clone()
        for name, value in model.state_dict().items()
    }


@torch.no_grad()
def reset_ema(ema: Mapping[str, Tensor], model: nn.Module) -> None:
    """Set the EMA to the model's state, in place."""
    for name, value in model.state_dict().items():
        mesh.local_shard(ema[name]).copy_(mesh.local_shard(value))


@torch.no_grad()
def swap(ema: Mapping[str, Tensor], model: nn.Module) -> None:
    """Swap the values of `ema` and the model in place; a second swap restores both, bit for bit."""
    for name, value in model.state_dict().items():
        average, weight = mesh.local_shard(ema[name]), mesh.local_shard(value)
        kept = weight.clone()
        weight.copy_(average)
        average.copy_(kept)
