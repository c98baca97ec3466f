"""Activation checkpointing: what each block saves for the backward pass.

Saving less costs time, so each shape of micro-batch gets its own plan (`trainer.distributed.memory.Plan`):
as many blocks recomputed as the recipe says, or with `fit` the fewest chunks, lean and recomputed blocks with
which the micro-batch fits into the GPU's memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.distributed import memory
from trainer.distributed.memory import Form, Plan
from trainer.distributed.step_time import Work
from trainer.model.stdit import STDiT3, STDiT3Config
from vidcurate.errors import InputError

USED_SHARE = 0.92
"""usable share of a GPU's memory; the rest is for the allocator, NCCL and the libraries"""

Choose = Callable[[Work, int], Plan]
"""(micro-batch, bytes used by others than the model) → how it is computed"""


def blocks_of(model: STDiT3) -> list[nn.Module]:
    """Return the model's blocks in the order of the forward pass."""
    return [block for pair in zip(model.spatial_blocks, model.temporal_blocks, strict=True) for block in pair]


class Recompute:
    """Wraps the blocks of a model; `choose_plan` sets what they save from then on.

    The caller puts the clips through the model in the plan's chunks.
    """

    def __init__(self, model: STDiT3, choose: Choose) -> None:
        self.choose, self._patch = choose, model.config.patch_size[1:]
        self.plan = memory.KEEP_ALL
        self._known: dict[tuple[Work, int], Plan] = {}
        self._new: list[tuple[Work, Plan]] = []
        for number, block in enumerate(blocks_of(model)):
            block.forward = partial(self._run, number, block.forward)

    def _run(self, number: int, forward: Callable[..., Tensor], *arguments: object) -> Tensor:
        if self.plan.is_recomputed(number):
            result: Tensor = checkpoint(forward, *arguments, use_reentrant=False)
            return result
        if self.plan.is_lean(number):
            return forward(*arguments, lean=True)
        return forward(*arguments)

    def choose_plan(self, latents: Tensor, features: Tensor, beside_bytes: int = 0) -> Plan:
        """Set and return the plan for latents [B, C, T, H, W] with features [B, 1, L, D].

        `beside_bytes`: GPU memory used by others than the model, such as encoders. Raises InputError where
        `choose` does: the micro-batch fits with no plan.
        """
        clips, _, frames, rows, columns = latents.shape
        places = -(-rows // self._patch[0]) * -(-columns // self._patch[1])
        work = Work(clips=clips, frames=frames, places=places, text_tokens=features.shape[-2])
        key = (work, beside_bytes)
        if key not in self._known:
            self._known[key] = self.choose(work, beside_bytes)
            self._new.append((work, self._known[key]))
        self.plan = self._known[key]
        return self.plan

    def new_plans(self) -> list[tuple[Work, Plan]]:
        """Return the plans chosen since the last call."""
        reported, self._new = self._new, []
        return reported


def chooser(
    wanted: int | Literal["fit"], config: STDiT3Config, form: Form, device: torch.device, state_bytes: int
) -> Choose:
    """Return the function that chooses plans as the recipe's `parallel.recompute_blocks` says.

    `fit` uses the memory of the GPU, less `state_bytes` (weights, gradients, optimizer state), less what the
    encoders use. On the CPU `fit` saves everything.
    """
    if wanted != "fit":
        fixed = memory.plan_of(config, wanted)
        return lambda work, beside_bytes: fixed
    if device.type != "cuda":
        return lambda work, beside_bytes: memory.KEEP_ALL
    free = USED_SHARE * torch.cuda.get_device_properties(device).total_memory - state_bytes
    return lambda work, beside_bytes: least(config, work, form, free - beside_bytes)


def least(config: STDiT3Config, work: Work, form: Form, limit_bytes: float) -> Plan:
    """Return `memory.least_plan`, with which `work` fits into `limit_bytes`.

    Raises InputError where it fits with none.
    """
    plan = memory.least_plan(config, work, form, limit_bytes)
    if plan is not None:
        return plan
    needed = memory.least_bytes(config, work, form)
    raise InputError(
        f"one clip of {work.frames} x {work.places} tokens needs {needed / 2**30:.1f} GiB with all blocks "
        f"but the last recomputed, and the GPU has {limit_bytes / 2**30:.1f} GiB for it; leave this bucket "
        "out or shard the state (parallel.sharding=full)."
    )
