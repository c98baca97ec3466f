"""Fused blocks: replace the forward pass of STDiT3's blocks by kernels.

`apply_fused_blocks` gives every block of a model the fused forward and backward pass, and the model captions
without padding. torch.compile is not used, so a new shape compiles nothing: Triton compiles the kernels for
the widths of the model, once on a machine. The mathematics, the weights and their names stay those of
`trainer.model.layers.Block`; tests compare the two, forward and backward.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from trainer.model import tensors
from trainer.model.kernels.block import BlockFunction, Shape, Weights
from trainer.model.kernels.flash_attention import Ragged
from trainer.model.layers import Block, apply
from trainer.model.stdit import STDiT3


def _weights_of(block: Block) -> Weights:
    attention, cross, mlp = block.attn, block.cross_attn, block.mlp
    norms = (norm.weight for norm in (attention.q_norm, attention.k_norm))
    linears = (attention.proj, cross.q_linear, cross.kv_linear, cross.proj, mlp.fc1, mlp.fc2)
    rest = (part for linear in linears for part in (linear.weight, linear.bias))
    return Weights(block.scale_shift_table, attention.qkv.weight, attention.qkv.bias, *norms, *rest)


def fast_block(
    block: Block,
    x: Tensor,
    y: Tensor,
    modulation: Tensor,
    captions: Ragged | None,
    num_frames: int,
    wave: tuple[Tensor, Tensor] | None,
    *,
    lean: bool = False,
    float8: bool = False,
) -> Tensor:
    """Return what `block(x, …)` returns, for text as `fast_caption` or `padded` gives it.

    `lean` keeps 15 instead of 21 of a token's vectors for the backward pass, which makes the others again.
    `float8` is for the products of qkv, fc1 and fc2, forward and backward.
    """
    shape = Shape(
        clips=x.shape[0],
        frames=num_frames,
        places=x.shape[1] // num_frames,
        heads=block.attn.heads,
        wave=wave if block.temporal else None,
        captions=captions,
        lean=lean,
        float8=float8,
    )
    run = cast(Any, BlockFunction).apply
    result: Tensor = run(shape, x.contiguous(), y.contiguous(), modulation, *_weights_of(block))
    return result


def padded(y: Tensor, text_mask: Tensor | None) -> tuple[Tensor, Ragged | None]:
    """Return text [B, L, D] under a mask [B, 1, 1, L] as rows [B L, D], and whose they are.

    The mask must be True first: only its lengths are read. Without one nothing is changed.
    """
    if text_mask is None:
        return y, None
    count, length = y.shape[:2]
    starts = torch.arange(0, count * length, length, dtype=torch.int32, device=y.device)
    lengths = text_mask.sum((1, 2, 3), dtype=torch.int32)
    return y.flatten(0, 1), Ragged(starts, lengths, longest=length, has_gaps=True)


def fast_caption(
    model: STDiT3, y: Tensor, mask: Tensor | None, drop: Tensor | None, lengths: Sequence[int] | None = None
) -> tuple[Tensor, Ragged | None]:
    """Return projected text, and whose its rows are: [P, D], or [B, L, D] and None where all tokens are real.

    With `lengths` (see `STDiT3.forward`) only rows that are read are projected, and have keys and values: P
    is their sum. Without, as the host does not know them, P is B L and the mask's lengths are read. P is not
    rounded up to fewer sizes: micro-batches of other buckets change all sizes anyway.

    Raises ValueError for lengths that y, or the null caption, does not have.
    """
    if lengths is None:
        return padded(*STDiT3._caption(model, y, mask, drop))
    embedder, config = model.y_embedder, model.config
    room = y.shape[2] if drop is None else config.model_max_length
    if len(lengths) != len(y) or not all(1 <= length <= room for length in lengths):
        raise ValueError(f"text_lengths {[*lengths]} must be {len(y)} numbers from 1 to {room}.")
    total = sum(lengths)
    counts = tensors.send(torch.tensor(lengths), y.device)
    starts = counts.cumsum(0) - counts
    row = torch.repeat_interleave(counts, output_size=total)  # output_size avoids a device-to-host sync
    place = torch.arange(total, device=y.device) - starts[row]
    text = y.flatten(0, 2).index_select(0, row * y.shape[2] + place.clamp(max=y.shape[2] - 1))
    if drop is not None:
        null = embedder.y_embedding.to(y.dtype)
        if config.skip_y_embedder:
            null = apply(embedder.y_proj, null)
        text = torch.where(drop[row][:, None], null[place], text)
    if not config.skip_y_embedder:
        text = apply(embedder.y_proj, text)
    # Not the longest of these: the attention's backward pass is split by this number, and a different number
    # of parts is a different kernel.
    return text, Ragged(starts.int(), counts.int(), longest=room, has_gaps=False)


def apply_fused_blocks(model: STDiT3, *, float8: bool = False) -> None:
    """Replace the caption path and the forward pass of every block of `model` by the fused ones.

    With `float8` the blocks' largest matmuls are in float8.
    """
    model._caption = partial(fast_caption, model)  # type: ignore[method-assign, assignment]
    for block in (*model.spatial_blocks, *model.temporal_blocks):
        block.forward = partial(fast_block, block, float8=float8)
