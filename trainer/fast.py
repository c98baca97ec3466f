"""The block of STDiT3 through the kernels of `trainer.kernels`, laid around the readable one from outside.

`quicken` gives every block of a model this forward pass, and the backward pass that belongs to it. Torch
compiles nothing, so no shape is a new one: the kernels are built for the widths of the model, once on a
machine. The mathematics, the weights and their names stay those of `trainer.layers.Block`; tests hold the two
together, forward and backward.
"""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from trainer.kernels.block import BlockFunction, Shape, Weights
from trainer.layers import Block, RmsNorm
from trainer.stdit import STDiT3


def _weights_of(block: Block) -> Weights:
    attention, cross, mlp = block.attn, block.cross_attn, block.mlp
    norms = (cast(RmsNorm, norm).weight for norm in (attention.q_norm, attention.k_norm))
    linears = (attention.proj, cross.q_linear, cross.kv_linear, cross.proj, mlp.fc1, mlp.fc2)
    rest = (part for linear in linears for part in (linear.weight, linear.bias))
    return Weights(block.scale_shift_table, attention.qkv.weight, attention.qkv.bias, *norms, *rest)


def fast_block(
    block: Block,
    x: Tensor,
    y: Tensor,
    modulation: Tensor,
    text_mask: Tensor | None,
    num_frames: int,
    wave: tuple[Tensor, Tensor] | None,
    *,
    lean: bool = False,
) -> Tensor:
    """Return what `block(x, …)` returns. `text_mask` must be True first: only its lengths are read.

    `lean` keeps 15 instead of 21 of a token's vectors for the backward pass, which makes the others again.
    """
    lengths = None if text_mask is None else text_mask.sum((1, 2, 3), dtype=torch.int32)
    shape = Shape(
        clips=x.shape[0],
        frames=num_frames,
        places=x.shape[1] // num_frames,
        heads=block.attn.heads,
        wave=wave if block.temporal else None,
        lean=lean,
    )
    run = cast(Any, BlockFunction).apply
    result: Tensor = run(shape, x.contiguous(), y.contiguous(), modulation, lengths, *_weights_of(block))
    return result


def quicken(model: STDiT3) -> None:
    """Give every block of `model` the fast forward pass."""
    for block in (*model.spatial_blocks, *model.temporal_blocks):
        block.forward = partial(fast_block, block)
