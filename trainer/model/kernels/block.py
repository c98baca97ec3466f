"""Fused block of STDiT3: one autograd function with an explicit backward pass.

So the block saves nothing that a backward kernel recomputes (the input of qkv and of fc1 is an output of the
norm's backward pass), sums no bias in a separate read where another kernel has the values, and adds no two
gradients in a separate pass. The mathematics is `trainer.model.layers.Block`'s.
"""

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.kernels.attention import attend, attend_backward
from trainer.model.kernels.autotune import Kept
from trainer.model.kernels.flash_attention import Ragged
from trainer.model.kernels.float8 import Scaled
from trainer.model.kernels.matmul import (
    add_input_gradient,
    input_gradient,
    linear,
    linear_gelu,
    linear_gelu_backward,
    weight_gradient,
)
from trainer.model.kernels.mlp import bias_gradient
from trainer.model.kernels.modulate import gated, normed
from trainer.model.kernels.modulate_backward import empty_sums, gated_backward, normed_backward
from trainer.model.kernels.qk_norm import Wave, qk_norm, qk_norm_backward
from trainer.model.kernels.temporal_attention import temporal_attention, temporal_attention_backward
from trainer.model.kernels.tiles import add_up


@dataclass(frozen=True, slots=True)
class Shape:
    """How the tokens of a block lie: clips of `frames` frames of `places` tokens."""

    clips: int
    frames: int
    places: int
    heads: int
    wave: tuple[Tensor, Tensor] | None  # the rotation of a temporal block
    captions: Ragged | None  # whose the text's rows are; None: all captions are equally long
    lean: bool  # make q, k and the GELU's output again in the backward pass
    float8: bool  # for qkv, fc1 and fc2, forward and in the gradients of inputs and weights

    @property
    def alone(self) -> bool:
        """Whether a token sees only itself, so that its attention is its value."""
        return (self.places if self.wave is None else self.frames) == 1

    @property
    def float8_qkv(self) -> bool:
        """Whether qkv is in float8; a layer that computes values alone is not."""
        return self.float8 and not self.alone

    @property
    def turn(self) -> Wave | None:
        """How q and k are rotated, if they are."""
        return None if self.wave is None else (*self.wave, self.places)


class Weights(NamedTuple):
    """The parameters of a `trainer.model.layers.Block`, each named for its layer."""

    table: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    q_norm: Tensor
    k_norm: Tensor
    proj: Tensor
    proj_bias: Tensor
    cross_q: Tensor
    cross_q_bias: Tensor
    cross_kv: Tensor
    cross_kv_bias: Tensor
    cross_proj: Tensor
    cross_proj_bias: Tensor
    fc1: Tensor
    fc1_bias: Tensor
    fc2: Tensor
    fc2_bias: Tensor


class _Saved(NamedTuple):
    """What every block keeps, beside its weights."""

    x: Tensor
    y: Tensor
    table: Tensor  # [B, T or 1, 6, D]
    qkv: Tensor  # empty where a token sees only itself
    out: Tensor  # of self-attention
    branch: Tensor  # its projection
    x1: Tensor  # x and the gated branch
    cross_q: Tensor
    cross_kv: Tensor
    cross_out: Tensor
    x2: Tensor  # x1 and what captions brought
    before: Tensor  # the GELU
    mlp: Tensor
    moments: Tensor  # of the norm of x
    mlp_moments: Tensor  # of the norm of x2


def _normed_parts(qkv: Tensor, w: Weights, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    return qk_norm(qkv, w.q_norm, w.k_norm, shape.turn)


def _attention(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> tuple[Tensor, Kept]:
    """Return the attention of [B T S, H, D] among the tokens of a frame, or among the frames at a place."""
    if shape.wave is not None:
        return temporal_attention(q, k, v, shape.frames, shape.places), ()
    frames = (shape.clips * shape.frames, shape.places)
    out, kept = attend(*(part.unflatten(0, frames) for part in (q, k, v)))
    return out.flatten(0, 1), kept


def _attention_backward(
    q: Tensor, k: Tensor, v: Tensor, shape: Shape, out: Tensor, kept: Kept, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if shape.wave is not None:
        return temporal_attention_backward(q, k, v, dout, shape.frames, shape.places)
    frames = (shape.clips * shape.frames, shape.places)
    q, k, v, out, dout = (part.unflatten(0, frames) for part in (q, k, v, out, dout))
    dq, dk, dv = (part.flatten(0, 1) for part in attend_backward(q, k, v, None, out, kept, dout))
    return dq, dk, dv


def _kept(again: list[Tensor], shape: Shape) -> tuple[list[Tensor], Tensor | Scaled | None]:
    """Return what the block kept of q and k, and the GELU's output, None where the block is lean."""
    if shape.lean:
        return again, None
    count = 2 if shape.float8 else 1
    return again[:-count], Scaled(*again[-count:]) if shape.float8 else again[-1]


class BlockFunction(torch.autograd.Function):
    """`apply(shape, x, y, modulation, *weights)` returns what the readable block does.

    x is [B, N, D], y [B, L, D], or [P, D] with `shape.captions`, modulation [B, T or 1, 6, D].
    """

    @staticmethod
    def forward(ctx, shape, x, y, modulation, *weights):
        w, width = Weights(*weights), x.shape[-1]
        heads = (shape.heads, width // shape.heads)
        table = w.table + modulation  # [B, T or 1, 6, D]
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = table.unbind(2)

        _, h, moments = normed(x, None, shift, scale, as_float8=shape.float8_qkv)
        qkv, kept, again = x.new_empty(0), Kept(), []
        if shape.alone:
            out = linear(h, w.qkv[2 * width :], w.qkv_bias[2 * width :])
        else:
            qkv = linear(h, w.qkv, w.qkv_bias).view(-1, 3, *heads)
            q, k, v = _normed_parts(qkv, w, shape)
            out, kept = _attention(q, k, v, shape)
            again = [] if shape.lean else [q, k]
        branch = linear(out.view(x.shape), w.proj, w.proj_bias)
        x1 = gated(x, branch, gate)

        cross_q = linear(x1, w.cross_q, w.cross_q_bias).unflatten(2, heads)
        cross_kv = F.linear(y, w.cross_kv, w.cross_kv_bias).unflatten(-1, (2, *heads))
        key, value = cross_kv.unbind(-3)
        cross_out, cross_kept = attend(cross_q, key, value, shape.captions)
        reported = linear(cross_out.flatten(2), w.cross_proj, w.cross_proj_bias)
        x2, h, mlp_moments = normed(x1, reported, mlp_shift, mlp_scale, as_float8=shape.float8)

        before, after = linear_gelu(h, w.fc1, w.fc1_bias)
        mlp = linear(after, w.fc2, w.fc2_bias).view(x.shape)
        if not shape.lean:
            again += after if isinstance(after, Scaled) else (after,)

        ctx.shape, ctx.counts = shape, (len(kept), len(cross_kept))
        saved = _Saved(
            x, y, table, qkv, out, branch, x1, cross_q, cross_kv, cross_out, x2, before, mlp,
            moments, mlp_moments,
        )  # fmt: skip
        ctx.save_for_backward(*w, *saved, *kept, *cross_kept, *again)
        return gated(x2, mlp, mlp_gate)

    @staticmethod
    def backward(ctx, dout):
        shape, given = ctx.shape, iter(ctx.saved_tensors)
        w = Weights(*islice(given, len(Weights._fields)))
        s = _Saved(*islice(given, len(_Saved._fields)))
        kept, cross_kept = (tuple(islice(given, count)) for count in ctx.counts)
        again, after = _kept(list(given), shape)
        needed = Weights(*ctx.needs_input_grad[4:])
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = s.table.unbind(2)
        found: dict[str, Tensor] = {}

        def weight(name: str, d: Tensor | Scaled, given: Tensor | Scaled) -> None:
            if getattr(needed, name):
                found[name] = weight_gradient(d, given, s.x.dtype)

        # One room for all sums over tokens: six of the table's rows, and three of biases.
        sums = empty_sums(9, s.x, s.table.shape[1])
        dshift, dscale, dgate, dmlp_shift, dmlp_scale, dmlp_gate, proj_bias, cross_bias, fc2_bias = sums

        dout = dout.contiguous()
        dmlp = gated_backward(s.mlp, mlp_gate, dout, dmlp_gate, fc2_bias, as_float8=shape.float8)
        dbefore, found["fc1_bias"], after = linear_gelu_backward(dmlp, w.fc2, s.before, after)
        weight("fc2", dmlp, after)
        del dmlp, after
        dh = input_gradient(dbefore, w.fc1).view(s.x.shape)
        dx2, h = normed_backward(
            s.x2, s.mlp_moments, mlp_shift, mlp_scale, dh, dout, dmlp_shift, dmlp_scale, cross_bias,
            as_float8=shape.float8,
        )  # fmt: skip
        weight("fc1", dbefore, h)
        del dbefore, dh, h

        weight("cross_proj", dx2, s.cross_out.flatten(2))
        dcross = input_gradient(dx2, w.cross_proj).view_as(s.cross_q)
        key, value = s.cross_kv.unbind(-3)
        dq, dk, dv = attend_backward(s.cross_q, key, value, shape.captions, s.cross_out, cross_kept, dcross)
        dq, dkv = dq.flatten(2), torch.stack([dk, dv], -3).flatten(-3)
        weight("cross_q", dq, s.x1)
        # By torch: captions have other lengths each time, for which nothing is measured and no kernel built.
        if needed.cross_kv:
            found["cross_kv"] = dkv.flatten(0, -2).T @ s.y.flatten(0, -2)
        found["cross_q_bias"] = bias_gradient(dq)
        found["cross_kv_bias"] = dkv.flatten(0, -2).sum(0)
        dy = dkv @ w.cross_kv if ctx.needs_input_grad[2] else None
        dx1 = dx2
        add_input_gradient(dx1, dq, w.cross_q)
        del dq, dk, dv, dkv, dcross

        dbranch = gated_backward(s.branch, gate, dx1, dgate, proj_bias)
        weight("proj", dbranch, s.out.view_as(s.x))
        d: Tensor | Scaled
        dout = input_gradient(dbranch, w.proj).flatten(0, 1)
        del dbranch
        if shape.alone:
            d, width = dout, dout.shape[1]
            dh = input_gradient(dout, w.qkv[-width:])
            found["qkv_bias"] = F.pad(bias_gradient(dout), (2 * width, 0))
            # The norms of what is not computed keep a gradient of zero, as softmax over one key would give.
            found["q_norm"], found["k_norm"] = torch.zeros_like(w.q_norm), torch.zeros_like(w.k_norm)
        else:
            q, k, v = _normed_parts(s.qkv, w, shape) if shape.lean else (*again, s.qkv[:, 2])
            gradients = _attention_backward(q, k, v, shape, s.out.view_as(q), kept, dout.view_as(q))
            del dout
            d, found["qkv_bias"], found["q_norm"], found["k_norm"] = qk_norm_backward(
                s.qkv, w.q_norm, w.k_norm, shape.turn, gradients, as_float8=shape.float8
            )
            del q, k, v, gradients
            dh = input_gradient(d, w.qkv)
        dx, h = normed_backward(
            s.x, s.moments, shift, scale, dh.view_as(s.x), dx1, dshift, dscale, None,
            as_float8=shape.float8_qkv,
        )  # fmt: skip
        weight("qkv", d, h)
        if shape.alone and "qkv" in found:
            found["qkv"] = F.pad(found["qkv"], (0, 0, 2 * s.x.shape[-1], 0))

        by_frame = add_up(sums.flatten(0, 1), torch.float32).unflatten(0, (9, -1))
        in_all = add_up(by_frame, s.table.dtype)
        found["table"] = in_all[:6]
        found["proj_bias"], found["cross_proj_bias"], found["fc2_bias"] = in_all[6:]
        dtable = by_frame[:6].unflatten(1, s.table.shape[:2]).permute(1, 2, 0, 3).to(s.table.dtype)
        return (
            None, dx, dy, dtable,
            *(found[name] if getattr(needed, name) else None for name in Weights._fields),
        )  # fmt: skip
