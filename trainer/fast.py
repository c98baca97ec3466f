"""The block of STDiT3 through the kernels of `trainer.kernels`, laid around the readable one from outside.

`quicken` gives every block of a model this forward pass. Torch compiles nothing, so no shape is a new one:
the kernels are built for the widths of the model, once on a machine. The mathematics, the weights and their
names stay those of `trainer.layers.Block`; tests hold the two together, forward and backward.
"""

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.kernels.flash import flash_attention
from trainer.kernels.linear import linear, linear_gelu
from trainer.kernels.modulate import add_norm_modulate, gated_add, norm_modulate
from trainer.kernels.qk_norm import qk_norm
from trainer.kernels.temporal import temporal_attention
from trainer.layers import Block, RmsNorm
from trainer.stdit import STDiT3


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the library's attention of q, k, v [B, L, H, D], in their layout: cuDNN's on a Hopper GPU."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _self_attention(block: Block, h: Tensor, frames: int, wave: tuple[Tensor, Tensor] | None) -> Tensor:
    attention, (b, n, width) = block.attn, h.shape
    heads, head_dim, places = attention.heads, attention.head_dim, n // frames
    if (frames if block.temporal else places) == 1:
        return attention._alone(h)
    qkv = linear(h, attention.qkv).view(b * n, 3, heads, head_dim)
    q_weight, k_weight = cast(RmsNorm, attention.q_norm).weight, cast(RmsNorm, attention.k_norm).weight
    if block.temporal:
        assert wave is not None
        q, k, v = qk_norm(qkv, q_weight, k_weight, (*wave, places))
        out = temporal_attention(q, k, v, frames, places)
    else:
        q, k, v = qk_norm(qkv, q_weight, k_weight)
        out = _attend(*(part.view(b * frames, places, heads, head_dim) for part in (q, k, v)))
    return linear(out.reshape(b, n, width), attention.proj)


def _cross_attention(block: Block, x: Tensor, y: Tensor, lengths: Tensor | None) -> Tensor:
    attention = block.cross_attn
    heads, head_dim = attention.heads, attention.head_dim
    q = torch.unflatten(linear(x, attention.q_linear), -1, (heads, head_dim))
    k, v = torch.unflatten(linear(y, attention.kv_linear), -1, (2, heads, head_dim)).unbind(2)
    out = _attend(q, k, v) if lengths is None else flash_attention(q, k, v, lengths)
    return linear(out.flatten(2), attention.proj)


def fast_block(
    block: Block,
    x: Tensor,
    y: Tensor,
    modulation: Tensor,
    text_mask: Tensor | None,
    num_frames: int,
    wave: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return what `block(x, …)` returns. `text_mask` must be True first: only its lengths are read."""
    table = block.scale_shift_table + modulation  # [B, T or 1, 6, D]
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = table.unbind(2)
    lengths = None if text_mask is None else text_mask.sum((1, 2, 3), dtype=torch.int32)
    h = norm_modulate(x, shift, scale)
    x = gated_add(x, _self_attention(block, h, num_frames, wave), gate)
    x, h = add_norm_modulate(x, _cross_attention(block, x, y, lengths), mlp_shift, mlp_scale)
    h = linear_gelu(h, block.mlp.fc1)
    return gated_add(x, linear(h, block.mlp.fc2), mlp_gate)


def quicken(model: STDiT3) -> None:
    """Give every block of `model` the fast forward pass."""
    for block in (*model.spatial_blocks, *model.temporal_blocks):
        block.forward = partial(fast_block, block)
