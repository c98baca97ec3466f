"""The block of STDiT3 through the kernels of `trainer.kernels`, laid around the readable one from outside.

`quicken` gives every block of a model this forward pass and compiles its two kinds. The mathematics, the
weights and their names stay those of `trainer.layers.Block`; tests hold the two together, forward and
backward.
"""

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.kernels.flash import flash_attention
from trainer.kernels.gelu import linear_gelu
from trainer.kernels.modulate import add_norm_modulate, gated_add, norm_modulate
from trainer.kernels.qk_norm import qk_norm
from trainer.kernels.temporal import temporal_attention
from trainer.layers import Block, RmsNorm, apply
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
    qkv = apply(attention.qkv, h).view(b * n, 3, heads, head_dim)
    q_weight, k_weight = cast(RmsNorm, attention.q_norm).weight, cast(RmsNorm, attention.k_norm).weight
    if block.temporal:
        assert wave is not None
        q, k, v = qk_norm(qkv, q_weight, k_weight, (*wave, places))
        out = temporal_attention(q, k, v, frames, places)
    else:
        q, k, v = qk_norm(qkv, q_weight, k_weight)
        out = _attend(*(part.view(b * frames, places, heads, head_dim) for part in (q, k, v)))
    return apply(attention.proj, out.reshape(b, n, width))


def _cross_attention(block: Block, x: Tensor, y: Tensor, lengths: Tensor | None) -> Tensor:
    attention = block.cross_attn
    heads, head_dim = attention.heads, attention.head_dim
    q = torch.unflatten(apply(attention.q_linear, x), -1, (heads, head_dim))
    k, v = torch.unflatten(apply(attention.kv_linear, y), -1, (2, heads, head_dim)).unbind(2)
    out = _attend(q, k, v) if lengths is None else flash_attention(q, k, v, lengths)
    return apply(attention.proj, out.flatten(2))


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
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (part.contiguous() for part in table.unbind(2))
    lengths = None if text_mask is None else text_mask.sum((1, 2, 3), dtype=torch.int32)
    h = norm_modulate(x, shift, scale)
    x = gated_add(x, _self_attention(block, h, num_frames, wave), gate)
    x, h = add_norm_modulate(x, _cross_attention(block, x, y, lengths), mlp_shift, mlp_scale)
    h = linear_gelu(h, block.mlp.fc1.weight, block.mlp.fc1.bias)
    out: Tensor = gated_add(x, apply(block.mlp.fc2, h), mlp_gate)
    return out


def quicken(model: STDiT3) -> None:
    """Give every block of `model` the fast forward pass, compiled once for each of its two kinds."""
    for block in (*model.spatial_blocks, *model.temporal_blocks):
        block.forward = partial(fast_block, block)
        block.compile(dynamic=False, fullgraph=True)
