"""Residual, gate, LayerNorm and modulation of a block in one pass over the activations, forward and backward.

`norm_modulate`          h = norm(x) (1 + scale) + shift
`add_norm_modulate`      x' = x + branch;  h = norm(x') (1 + scale) + shift
`gated_add`              x' = x + gate * branch

x, branch and h are [B, N, D]; shift, scale and gate are [B, F, D] with F frames of N / F tokens each (F = 1:
all frames share them). Sums are float32 inside. The gradients of the three tables are summed in a fixed
order, so that the same input gives the same bits. The mathematics is `trainer.layers.Block`'s.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.widths import pieces
from trainer.layers import NORM_EPS

# Rows that one program reads, one after the other, its warps, and the rows in flight.
FORWARD = (1, 4, 1)
BACKWARD = (8, 1, 1)


@triton.jit
def _moments(x1, x2, m2, WIDTH: tl.constexpr, EPS: tl.constexpr):
    mean = (tl.sum(x1, 0) + tl.sum(x2, 0)) / WIDTH
    d1 = x1 - mean
    d2 = tl.where(m2, x2 - mean, 0.0)
    variance = (tl.sum(d1 * d1, 0) + tl.sum(d2 * d2, 0)) / WIDTH
    rstd = 1.0 / tl.sqrt(variance + EPS)
    return d1 * rstd, d2 * rstd, rstd


@triton.jit
def _forward_kernel(
    x_ptr,
    branch_ptr,
    gate_ptr,
    shift_ptr,
    scale_ptr,
    out_ptr,
    h_ptr,
    tokens_per_frame,
    table_stride,  # from the table of a frame to that of the next
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    BRANCH: tl.constexpr,
    GATE: tl.constexpr,
    NORM: tl.constexpr,
    EPS: tl.constexpr,
):
    frame = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    table = frame * table_stride
    if GATE:
        gate1 = tl.load(gate_ptr + table + i1).to(tl.float32)
        gate2 = tl.load(gate_ptr + table + i2, mask=m2, other=0.0).to(tl.float32)
    if NORM:
        shift1 = tl.load(shift_ptr + table + i1).to(tl.float32)
        shift2 = tl.load(shift_ptr + table + i2, mask=m2, other=0.0).to(tl.float32)
        scale1 = tl.load(scale_ptr + table + i1).to(tl.float32) + 1.0
        scale2 = tl.load(scale_ptr + table + i2, mask=m2, other=0.0).to(tl.float32) + 1.0
    for r in tl.range(0, ROWS, num_stages=STAGES):
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
            n1, n2, _ = _moments(x1, x2, m2, WIDTH, EPS)
            tl.store(h_ptr + row + i1, (n1 * scale1 + shift1).to(h_ptr.dtype.element_ty), mask=r1)
            tl.store(h_ptr + row + i2, (n2 * scale2 + shift2).to(h_ptr.dtype.element_ty), mask=r2)


@triton.jit
def _backward_kernel(
    x_ptr,  # what was normed
    branch_ptr,
    gate_ptr,
    scale_ptr,
    dh_ptr,
    dout_ptr,
    dx_ptr,
    dbranch_ptr,
    sums_ptr,  # [kinds, frames, chunks, WIDTH]
    tokens_per_frame,
    table_stride,
    sums_per_kind,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    GATE: tl.constexpr,
    NORM: tl.constexpr,
    DOUT: tl.constexpr,
    EPS: tl.constexpr,
):
    frame = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    table = frame * table_stride
    if GATE:
        gate1 = tl.load(gate_ptr + table + i1).to(tl.float32)
        gate2 = tl.load(gate_ptr + table + i2, mask=m2, other=0.0).to(tl.float32)
    if NORM:
        scale1 = tl.load(scale_ptr + table + i1).to(tl.float32) + 1.0
        scale2 = tl.load(scale_ptr + table + i2, mask=m2, other=0.0).to(tl.float32) + 1.0
    sum_a1 = tl.zeros((FIRST,), tl.float32)  # of dshift, or of dgate
    sum_a2 = tl.zeros((SECOND,), tl.float32)
    sum_b1 = tl.zeros((FIRST,), tl.float32)  # of dscale
    sum_b2 = tl.zeros((SECOND,), tl.float32)
    for r in tl.range(0, ROWS, num_stages=STAGES):
        token = chunk * ROWS + r
        r1 = tl.zeros((FIRST,), tl.int32) + token < tokens_per_frame
        r2 = (tl.zeros((SECOND,), tl.int32) + token < tokens_per_frame) & m2
        row = (frame * tokens_per_frame + token) * WIDTH
        if DOUT:
            dx1 = tl.load(dout_ptr + row + i1, mask=r1, other=0.0).to(tl.float32)
            dx2 = tl.load(dout_ptr + row + i2, mask=r2, other=0.0).to(tl.float32)
        else:
            dx1 = tl.zeros((FIRST,), tl.float32)
            dx2 = tl.zeros((SECOND,), tl.float32)
        if NORM:
            x1 = tl.load(x_ptr + row + i1, mask=r1, other=0.0).to(tl.float32)
            x2 = tl.load(x_ptr + row + i2, mask=r2, other=0.0).to(tl.float32)
            dh1 = tl.load(dh_ptr + row + i1, mask=r1, other=0.0).to(tl.float32)
            dh2 = tl.load(dh_ptr + row + i2, mask=r2, other=0.0).to(tl.float32)
            n1, n2, rstd = _moments(x1, x2, m2, WIDTH, EPS)
            sum_a1 += dh1
            sum_a2 += dh2
            sum_b1 += dh1 * n1
            sum_b2 += dh2 * n2
            dn1 = dh1 * scale1
            dn2 = dh2 * scale2
            mean = (tl.sum(dn1, 0) + tl.sum(dn2, 0)) / WIDTH
            along = (tl.sum(dn1 * n1, 0) + tl.sum(dn2 * n2, 0)) / WIDTH
            dx1 += rstd * (dn1 - mean - n1 * along)
            dx2 += rstd * (dn2 - mean - n2 * along)
            tl.store(dx_ptr + row + i1, dx1.to(dx_ptr.dtype.element_ty), mask=r1)
            tl.store(dx_ptr + row + i2, dx2.to(dx_ptr.dtype.element_ty), mask=r2)
        if GATE:
            b1 = tl.load(branch_ptr + row + i1, mask=r1, other=0.0).to(tl.float32)
            b2 = tl.load(branch_ptr + row + i2, mask=r2, other=0.0).to(tl.float32)
            sum_a1 += dx1 * b1
            sum_a2 += dx2 * b2
            tl.store(dbranch_ptr + row + i1, (dx1 * gate1).to(dbranch_ptr.dtype.element_ty), mask=r1)
            tl.store(dbranch_ptr + row + i2, (dx2 * gate2).to(dbranch_ptr.dtype.element_ty), mask=r2)
    place = sums_ptr + (frame * tl.num_programs(0) + chunk) * WIDTH
    tl.store(place + i1, sum_a1)
    tl.store(place + i2, sum_a2, mask=m2)
    if NORM:
        place += sums_per_kind
        tl.store(place + i1, sum_b1)
        tl.store(place + i2, sum_b2, mask=m2)


def _sizes(x: Tensor, table: Tensor) -> tuple[int, int, int, dict[str, int | float]]:
    """Return the frames, the tokens of one, the stride of the table, and the kernels' constants."""
    b, n, width = x.shape
    frames = b * table.shape[1]
    stride = table.stride(1) if table.shape[1] > 1 else table.stride(0)
    assert table.stride() == (table.shape[1] * stride, table.stride(1), 1), "one step from frame to frame"
    first, second = pieces(width, 16)
    constants = {"WIDTH": width, "FIRST": first, "SECOND": max(second, 16), "EPS": NORM_EPS}
    return frames, b * n // frames, stride, constants


def _run_forward(
    x: Tensor, branch: Tensor | None, gate: Tensor | None, shift: Tensor | None, scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return x + gate * branch, and the normed and modulated form of that; empty where not asked for."""
    table = gate if gate is not None else shift
    assert table is not None
    frames, tokens, stride, constants = _sizes(x, table)
    rows, warps, stages = FORWARD
    out = x.new_empty(x.shape if branch is not None else (0,))
    h = x.new_empty(x.shape if shift is not None else (0,))
    _forward_kernel[(triton.cdiv(tokens, rows), frames)](
        x,
        x if branch is None else branch,
        x if gate is None else gate,
        x if shift is None else shift,
        x if scale is None else scale,
        out,
        h,
        tokens,
        stride,
        **constants,
        ROWS=rows,
        STAGES=stages,
        BRANCH=branch is not None,
        GATE=gate is not None,
        NORM=shift is not None,
        num_warps=warps,
    )
    return out, h


def _run_backward(
    x: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    scale: Tensor | None,
    dh: Tensor | None,
    dout: Tensor | None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return dx (empty without a norm), dbranch (empty without a gate), and the tables' gradients."""
    table = gate if gate is not None else scale
    assert table is not None
    frames, tokens, stride, constants = _sizes(x, table)
    rows, warps, stages = BACKWARD
    chunks = triton.cdiv(tokens, rows)
    kinds = 2 if scale is not None else 1
    sums = torch.empty(kinds, frames, chunks, x.shape[2], device=x.device, dtype=torch.float32)
    dx = x.new_empty(x.shape if scale is not None else (0,))
    dbranch = x.new_empty(x.shape if gate is not None else (0,))
    _backward_kernel[(chunks, frames)](
        x,
        x if branch is None else branch,
        x if gate is None else gate,
        x if scale is None else scale,
        x if dh is None else dh,
        x if dout is None else dout,
        dx,
        dbranch,
        sums,
        tokens,
        stride,
        sums[0].numel(),
        **constants,
        ROWS=rows,
        STAGES=stages,
        GATE=gate is not None,
        NORM=scale is not None,
        DOUT=dout is not None,
        num_warps=warps,
    )
    return dx, dbranch, [*sums.sum(2).view(kinds, *table.shape).to(table.dtype).unbind(0)]


class _NormModulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shift, scale):
        ctx.save_for_backward(x, scale)
        return _run_forward(x, None, None, shift, scale)[1]

    @staticmethod
    def backward(ctx, dh):
        x, scale = ctx.saved_tensors
        dx, _, (dshift, dscale) = _run_backward(x, None, None, scale, dh.contiguous(), None)
        return dx, dshift, dscale


class _AddNormModulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, branch, shift, scale):
        out, h = _run_forward(x, branch, None, shift, scale)
        ctx.save_for_backward(out, scale)
        return out, h

    @staticmethod
    def backward(ctx, dout, dh):
        out, scale = ctx.saved_tensors
        dx, _, (dshift, dscale) = _run_backward(out, None, None, scale, dh.contiguous(), dout.contiguous())
        return dx, dx, dshift, dscale


class _GatedAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, branch, gate):
        ctx.save_for_backward(branch, gate)
        return _run_forward(x, branch, gate, None, None)[0]

    @staticmethod
    def backward(ctx, dout):
        branch, gate = ctx.saved_tensors
        _, dbranch, (dgate,) = _run_backward(branch, branch, gate, None, None, dout.contiguous())
        return dout, dbranch, dgate


def norm_modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return norm(x) (1 + scale) + shift."""
    out: Tensor = _NormModulate.apply(x, shift, scale)
    return out


def add_norm_modulate(x: Tensor, branch: Tensor, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return x + branch, and norm(x + branch) (1 + scale) + shift."""
    out, h = _AddNormModulate.apply(x, branch, shift, scale)
    return out, h


def gated_add(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """Return x + gate * branch."""
    out: Tensor = _GatedAdd.apply(x, branch, gate)
    return out
