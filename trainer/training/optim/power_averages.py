"""Power-function averages of a run: two, updated after each weight update.

`trainer.model.power_average` has the profiles; `python -m trainer convert export RUN FOLDER --ema WIDTH`
makes the average of another width from the checkpoints that hold them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.distributed import mesh
from trainer.model import power_average
from trainer.model.power_average import PARTS, Widths


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerAverages:
    """The averages, by checkpoint part and name, sharded as the weights are; `gammas` their exponents."""

    tensors: dict[str, dict[str, Tensor]]
    gammas: tuple[float, ...]

    @torch.no_grad()
    def update(self, weights: dict[str, nn.Parameter], number: int) -> None:
        """Take the weights of update `number`, from 1, into the averages."""
        pieces = [mesh.local_shard(weight.detach()) for weight in weights.values()]
        for gamma, tensors in zip(self.gammas, self.tensors.values(), strict=True):
            averages = [mesh.local_shard(tensors[name]) for name in weights]
            torch._foreach_lerp_(averages, pieces, 1 - power_average.decay(gamma, number))


def make_power_averages(widths: Widths | None, weights: dict[str, nn.Parameter]) -> PowerAverages | None:
    """Return the averages before their first update, copies of the weights; None without `widths`."""
    if widths is None:
        return None

    def copied(weight: nn.Parameter) -> Tensor:
        return mesh.sharded_like(weight, mesh.local_shard(weight.detach()).clone())

    return PowerAverages(
        tensors={part: {name: copied(one) for name, one in weights.items()} for part in PARTS},
        gammas=tuple(map(power_average.exponent, widths)),
    )
