"""Blocks whose activations are computed again in the backward pass: as many as a micro-batch needs to fit.

Keeping less costs time (a forward pass a second time), so each shape of micro-batch gets its own number of
recomputed blocks: the recipe's, or with `fit` the fewest with which `trainer.memory` sees it fit.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as again

from trainer import memory
from trainer.cost import Work
from trainer.memory import Form
from trainer.stdit import STDiT3, STDiT3Config
from vidcurate.errors import InputError

USED_SHARE = 0.92
"""of a GPU's memory; the rest is the allocator's, NCCL's and the libraries'"""

Choose = Callable[[Work], int]
"""How many blocks to recompute for a micro-batch."""


def blocks_of(model: STDiT3) -> list[nn.Module]:
    """Return the model's blocks in the order of the forward pass."""
    return [block for pair in zip(model.spatial_blocks, model.temporal_blocks, strict=True) for block in pair]


class Recompute:
    """Wraps the blocks of a model; `make_room` says how many of them keep nothing from then on."""

    def __init__(self, model: STDiT3, choose: Choose) -> None:
        self.choose, self._patch = choose, model.config.patch_size[1:]
        self.numbers: set[int] = set()
        self._known: dict[Work, set[int]] = {}
        self._blocks = 2 * model.config.depth
        for number, block in enumerate(blocks_of(model)):
            block.forward = partial(self._run, number, block.forward)

    def _run(self, number: int, forward: Callable[..., Tensor], *arguments: object) -> Tensor:
        if number in self.numbers:
            result: Tensor = again(forward, *arguments, use_reentrant=False)
            return result
        return forward(*arguments)

    def make_room(self, latents: Tensor, features: Tensor) -> int:
        """Recompute what latents [B, C, T, H, W] with features [B, 1, L, D] need; return how many blocks.

        Raises InputError where `choose` does: the micro-batch does not fit whatever is recomputed.
        """
        clips, _, frames, rows, columns = latents.shape
        places = -(-rows // self._patch[0]) * -(-columns // self._patch[1])
        work = Work(clips=clips, frames=frames, places=places, text_tokens=features.shape[-2])
        if work not in self._known:
            self._known[work] = memory.recomputed(self._blocks, self.choose(work))
        self.numbers = self._known[work]
        return len(self.numbers)


def chooser(
    wanted: int | Literal["fit"], config: STDiT3Config, form: Form, device: torch.device, state_bytes: int
) -> Choose:
    """Return the choice that the recipe's `parallel.recompute_blocks` makes on `device`.

    `fit` looks at the memory of a GPU, less `state_bytes` of weights and what hangs on them. On the CPU it
    recomputes nothing: memory is not what is short there.
    """
    if wanted != "fit":
        return lambda work: wanted
    if device.type != "cuda":
        return lambda work: 0
    total = torch.cuda.get_device_properties(device).total_memory
    return lambda work: least(config, work, form, USED_SHARE * total - state_bytes)


def least(config: STDiT3Config, work: Work, form: Form, limit_bytes: float) -> int:
    """Return the fewest blocks to recompute with which `work` fits into `limit_bytes`.

    Raises InputError where it does not fit with all of them.
    """
    count = memory.least_recompute(config, work, form, limit_bytes)
    if count is not None:
        return count
    needed = memory.peak_bytes(config, work, form, 2 * config.depth)
    raise InputError(
        f"a micro-batch of {work.clips} clips of {work.frames} x {work.places} tokens needs "
        f"{needed / 2**30:.1f} GiB with every block recomputed, and the GPU has "
        f"{limit_bytes / 2**30:.1f} GiB for it; put fewer clips into a micro-batch of this bucket or cut the "
        "state (parallel.sharding=full)."
    )
