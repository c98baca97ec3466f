"""Modulation kernels, forward: residual, gate, LayerNorm, modulation in one pass.

`normed`    x' = x (+ branch);  h = norm(x') (1 + scale) + shift
`gated`     x' = x + gate * branch

x, branch and h are [B, N, D]; shift, scale and gate are [B, F, D] with F frames of N / F tokens each (F = 1:
all frames share them). Sums are float32. The mathematics is `trainer.model.layers.Block`'s;
`trainer.model.kernels.modulate_backward` has the backward pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.float8 import Scaled, room, store_scaled
from trainer.model.kernels.tiles import load_row, pieces
from trainer.model.layers import NORM_EPS

FORWARD = (1, 1)  # rows that one program reads, one after the other, and its warps


@triton.jit
def _modulate_kernel(
    x_ptr,
    branch_ptr,
    gate_ptr,
    shift_ptr,
    scale_ptr,
    out_ptr,
    h_ptr,
    h_scales_ptr,  # of h as float8, [B N]
    moments_ptr,  # mean and 1 / deviation of a row, [B N, 2]
    tokens_per_frame,
    table_stride,  # from the table of a frame to that of the next
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    BRANCH: tl.constexpr,
    GATE: tl.constexpr,
    NORM: tl.constexpr,
    FLOAT8: tl.constexpr,
    EPS: tl.constexpr,
):
    frame = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    table = frame * table_stride
    if GATE:
        gate1, gate2 = load_row(gate_ptr + table, i1, i2, m2)
    if NORM:
        shift1, shift2 = load_row(shift_ptr + table, i1, i2, m2)
        scale1, scale2 = load_row(scale_ptr + table, i1, i2, m2)
        scale1 += 1.0
        scale2 += 1.0
    for r in range(ROWS):
        token = chunk * ROWS + r
        r1 = tl.zeros((FIRST,), tl.int32) + token < tokens_per_frame
        r2 = (tl.zeros((SECOND,), tl.int32) + token < tokens_per_frame) & m2
        row = (frame * tokens_per_frame + token) * WIDTH
        x1 = tl.load(x_ptr + row + i1, mask=r1, other=0.0).to(tl.float32)
        x2 = tl.load(x_ptr + row + i2, mask=r2, other=0.0).to(tl.float32)
        if BRANCH:
            b1 = tl.load(branch_ptr + row + i1, mask=r1, other=0.0).to(tl.float32)
            b2 = tl.load(branch_ptr + row + i2, mask=r2, other=0.0).to(tl.float32)
            if GATE:
                b1 *= gate1
                b2 *= gate2
            x1 += b1
            x2 += b2
            o1 = x1.to(out_ptr.dtype.element_ty)
            o2 = x2.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + row + i1, o1, mask=r1)
            tl.store(out_ptr + row + i2, o2, mask=r2)
            # What is stored is what is normed: the backward pass reads it again.
            x1 = o1.to(tl.float32)
            x2 = o2.to(tl.float32)
        if NORM:
            mean = (tl.sum(x1, 0) + tl.sum(x2, 0)) / WIDTH
            n1 = x1 - mean
            n2 = tl.where(m2, x2 - mean, 0.0)
            rstd = 1.0 / tl.sqrt((tl.sum(n1 * n1, 0) + tl.sum(n2 * n2, 0)) / WIDTH + EPS)
            n1 *= rstd
            n2 *= rstd
            if token < tokens_per_frame:
                tl.store(moments_ptr + 2 * (frame * tokens_per_frame + token), mean)
                tl.store(moments_ptr + 2 * (frame * tokens_per_frame + token) + 1, rstd)
            n1 = n1 * scale1 + shift1
            n2 = n2 * scale2 + shift2
            if FLOAT8:
                if token < tokens_per_frame:
                    line = frame * tokens_per_frame + token
                    store_scaled(h_ptr, h_scales_ptr, line, n1, n2, i1, i2, m2, WIDTH)
            else:
                tl.store(h_ptr + row + i1, n1.to(h_ptr.dtype.element_ty), mask=r1)
                tl.store(h_ptr + row + i2, n2.to(h_ptr.dtype.element_ty), mask=r2)


def sizes(x: Tensor, table: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Return the frames, the tokens of one, the stride of the table, and the kernels' constants."""
    b, n, width = x.shape
    frames = b * table.shape[1]
    stride = table.stride(1) if table.shape[1] > 1 else table.stride(0)
    assert table.stride() == (table.shape[1] * stride, table.stride(1), 1), "one step from frame to frame"
    first, second = pieces(width, 16)
    constants = {"WIDTH": width, "FIRST": first, "SECOND": max(second, 16)}
    return frames, b * n // frames, stride, constants


def _forward(
    x: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    shift: Tensor | None,
    scale: Tensor | None,
    as_float8: bool = False,
) -> tuple[Tensor, Tensor | Scaled, Tensor]:
    """Return x + gate * branch, its normed and modulated form, and its moments; empty if not asked for."""
    table = gate if gate is not None else shift
    assert table is not None
    frames, tokens, stride, constants = sizes(x, table)
    rows, warps = FORWARD
    out = x.new_empty(x.shape if branch is not None else (0,))
    count = frames * tokens if shift is not None else 0
    h = x.new_empty(x.shape if shift is not None else (0,)) if not as_float8 else None
    made = room(count, x.shape[-1], x.device) if h is None else Scaled(h, x)
    moments = torch.empty(count, 2, device=x.device, dtype=torch.float32)
    _modulate_kernel[(triton.cdiv(tokens, rows), frames)](
        x,
        x if branch is None else branch,
        x if gate is None else gate,
        x if shift is None else shift,
        x if scale is None else scale,
        out,
        *made,
        moments,
        tokens,
        stride,
        **constants,
        FLOAT8=as_float8,
        EPS=NORM_EPS,
        ROWS=rows,
        BRANCH=branch is not None,
        GATE=gate is not None,
        NORM=shift is not None,
        num_warps=warps,
    )
    return out, made if h is None else h, moments


def normed(
    x: Tensor, branch: Tensor | None, shift: Tensor, scale: Tensor, *, as_float8: bool = False
) -> tuple[Tensor, Tensor | Scaled, Tensor]:
    """Return x' = x + branch (without one: x), h = norm(x') (1 + scale) + shift, and the norm's moments.

    Those are the mean and one over the deviation of each row, float32 [B N, 2]. h is as float8 if asked for.
    """
    out, h, moments = _forward(x, branch, None, shift, scale, as_float8)
    return x if branch is None else out, h, moments


def gated(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """Return x + gate * branch."""
    return _forward(x, branch, gate, None, None)[0]
