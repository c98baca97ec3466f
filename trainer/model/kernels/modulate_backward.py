"""Modulation kernels, backward: gradients of residual, gate, norm, modulation.

The backward of `trainer.model.kernels.modulate`, in one pass over the activations. Sums are float32, and sums
over tokens have a fixed order, so that the same input gives the same bits. A backward pass also sums the
branch's gradient, which is the gradient of the bias at the end of the branch, and recomputes h, so that the
block need not save it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.float8 import Scaled, room, scale_of, store_scaled
from trainer.model.kernels.modulate import sizes
from trainer.model.kernels.tiles import load_row, store_row

NORMED_BACKWARD = (1, 3)  # warps, and pipeline stages
GATED_BACKWARD = (2, 2)  # rows of a tile, and warps
NORMED_BACKWARD_FLOAT8, GATED_BACKWARD_FLOAT8 = (1, 3), (2, 2)  # the same, where they write float8
CHUNK = 32  # most tokens of one partial sum


@triton.jit
def _normed_backward_kernel(
    x_ptr,  # what was normed
    moments_ptr,
    shift_ptr,
    scale_ptr,
    dh_ptr,
    dout_ptr,
    dx_ptr,
    h_ptr,
    h_scales_ptr,  # of h as float8, [B N]
    dshift_ptr,  # sums [frames, chunks, WIDTH]
    dscale_ptr,
    dbias_ptr,
    tokens_per_frame,
    rows,  # of a chunk
    table_stride,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    STAGES: tl.constexpr,
    BRANCH: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    frame = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    table = frame * table_stride
    shift1, shift2 = load_row(shift_ptr + table, i1, i2, m2)
    scale1, scale2 = load_row(scale_ptr + table, i1, i2, m2)
    scale1 += 1.0
    scale2 += 1.0
    a1 = tl.zeros((FIRST,), tl.float32)
    a2 = tl.zeros((SECOND,), tl.float32)
    b1 = tl.zeros((FIRST,), tl.float32)
    b2 = tl.zeros((SECOND,), tl.float32)
    c1 = tl.zeros((FIRST,), tl.float32)
    c2 = tl.zeros((SECOND,), tl.float32)
    end = tl.minimum((chunk + 1) * rows, tokens_per_frame)
    for token in tl.range(chunk * rows, end, num_stages=STAGES):
        line = frame * tokens_per_frame + token
        row = line * WIDTH
        mean = tl.load(moments_ptr + 2 * line)
        rstd = tl.load(moments_ptr + 2 * line + 1)
        x1, x2 = load_row(x_ptr + row, i1, i2, m2)
        dh1, dh2 = load_row(dh_ptr + row, i1, i2, m2)
        dx1, dx2 = load_row(dout_ptr + row, i1, i2, m2)
        x1 = (x1 - mean) * rstd
        x2 = tl.where(m2, (x2 - mean) * rstd, 0.0)
        if FLOAT8:
            h1 = x1 * scale1 + shift1
            h2 = x2 * scale2 + shift2
            store_scaled(h_ptr, h_scales_ptr, line, h1, h2, i1, i2, m2, WIDTH)
        else:
            store_row(h_ptr + row, x1 * scale1 + shift1, x2 * scale2 + shift2, i1, i2, m2)
        a1 += dh1
        a2 += dh2
        b1 += dh1 * x1
        b2 += dh2 * x2
        dh1 *= scale1
        dh2 *= scale2
        level = (tl.sum(dh1, 0) + tl.sum(dh2, 0)) / WIDTH
        along = (tl.sum(dh1 * x1, 0) + tl.sum(dh2 * x2, 0)) / WIDTH
        dx1 += rstd * (dh1 - level - x1 * along)
        dx2 += rstd * (dh2 - level - x2 * along)
        store_row(dx_ptr + row, dx1, dx2, i1, i2, m2)
        if BRANCH:
            c1 += dx1
            c2 += dx2
    place = (frame * tl.num_programs(0) + chunk) * WIDTH
    store_row(dshift_ptr + place, a1, a2, i1, i2, m2)
    store_row(dscale_ptr + place, b1, b2, i1, i2, m2)
    if BRANCH:
        store_row(dbias_ptr + place, c1, c2, i1, i2, m2)


@triton.jit
def _gated_backward_kernel(
    branch_ptr,
    gate_ptr,
    dout_ptr,
    dbranch_ptr,
    dbranch_scales_ptr,  # of dbranch as float8, [B N]
    dgate_ptr,  # sums [frames, chunks, WIDTH]
    dbias_ptr,
    tokens_per_frame,
    rows,  # of a chunk
    table_stride,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    TILE: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    frame = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(0)
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    table = frame * table_stride
    gate1, gate2 = load_row(gate_ptr + table, i1[None], i2[None], m2[None])
    a1 = tl.zeros((TILE, FIRST), tl.float32)
    a2 = tl.zeros((TILE, SECOND), tl.float32)
    b1 = tl.zeros((TILE, FIRST), tl.float32)
    b2 = tl.zeros((TILE, SECOND), tl.float32)
    end = tl.minimum((chunk + 1) * rows, tokens_per_frame)
    for start in range(chunk * rows, end, TILE):
        token = start + tl.arange(0, TILE)[:, None]
        row = (frame * tokens_per_frame + token) * WIDTH
        p1 = row + i1[None]
        p2 = row + i2[None]
        r1 = (token < end) & (i1[None] < WIDTH)
        r2 = (token < end) & m2[None]
        d1 = tl.load(dout_ptr + p1, mask=r1, other=0.0).to(tl.float32)
        d2 = tl.load(dout_ptr + p2, mask=r2, other=0.0).to(tl.float32)
        a1 += d1 * tl.load(branch_ptr + p1, mask=r1, other=0.0).to(tl.float32)
        a2 += d2 * tl.load(branch_ptr + p2, mask=r2, other=0.0).to(tl.float32)
        d1 *= gate1
        d2 *= gate2
        b1 += d1
        b2 += d2
        if FLOAT8:
            most = tl.maximum(tl.max(tl.abs(d1), 1), tl.max(tl.abs(d2), 1))[:, None]
            by = scale_of(most)
            tl.store(dbranch_scales_ptr + frame * tokens_per_frame + token, by, mask=token < end)
            d1 *= 1.0 / by
            d2 *= 1.0 / by
        tl.store(dbranch_ptr + p1, d1.to(dbranch_ptr.dtype.element_ty), mask=r1)
        tl.store(dbranch_ptr + p2, d2.to(dbranch_ptr.dtype.element_ty), mask=r2)
    place = (frame * tl.num_programs(0) + chunk) * WIDTH
    tl.store(dgate_ptr + place + i1, tl.sum(a1, 0))
    tl.store(dgate_ptr + place + i2, tl.sum(a2, 0), mask=m2)
    tl.store(dbias_ptr + place + i1, tl.sum(b1, 0))
    tl.store(dbias_ptr + place + i2, tl.sum(b2, 0), mask=m2)


def _chunks(tokens: int) -> tuple[int, int]:
    """Return the number of chunks of a frame's tokens, and the rows of a chunk."""
    rows = triton.cdiv(tokens, triton.cdiv(tokens, CHUNK))
    return triton.cdiv(tokens, rows), rows


def empty_sums(kinds: int, x: Tensor, frames: int) -> Tensor:
    """Return an empty float32 [kinds, B F, chunks, D] for partial sums of backward passes over x [B, F S, D].

    Summed over chunks they are per frame; summed also over frames, of all tokens.
    """
    b, n, width = x.shape
    chunks, _ = _chunks(n // frames)
    return torch.empty(kinds, b * frames, chunks, width, device=x.device, dtype=torch.float32)


def normed_backward(
    x: Tensor,
    moments: Tensor,
    shift: Tensor,
    scale: Tensor,
    dh: Tensor,
    dout: Tensor,
    dshift: Tensor,
    dscale: Tensor,
    dbias: Tensor | None,
    *,
    as_float8: bool = False,
) -> tuple[Tensor, Tensor | Scaled]:
    """Return dx and the recomputed h; x and moments are `normed`'s, dh and dout the gradients of h and x'.

    dx is also the branch's gradient. h is as float8 if asked for. Fills `dshift`, `dscale` and, with a branch
    `dbias` (`empty_sums`).
    """
    frames, tokens, stride, constants = sizes(x, scale)
    chunks, rows = _chunks(tokens)
    warps, stages = NORMED_BACKWARD_FLOAT8 if as_float8 else NORMED_BACKWARD
    dx = torch.empty_like(x)
    h = room(len(moments), x.shape[-1], x.device) if as_float8 else Scaled(torch.empty_like(x), moments)
    _normed_backward_kernel[(chunks, frames)](
        x,
        moments,
        shift,
        scale,
        dh,
        dout,
        dx,
        *h,
        dshift,
        dscale,
        dscale if dbias is None else dbias,
        tokens,
        rows,
        stride,
        **constants,
        STAGES=stages,
        BRANCH=dbias is not None,
        FLOAT8=as_float8,
        num_warps=warps,
    )
    return dx, h if as_float8 else h.numbers


def gated_backward(
    branch: Tensor, gate: Tensor, dout: Tensor, dgate: Tensor, dbias: Tensor, *, as_float8: bool = False
) -> Tensor | Scaled:
    """Return dbranch, as float8 if asked for; x's gradient is `dout`. Fills `dgate` and `dbias`."""
    frames, tokens, stride, constants = sizes(branch, gate)
    chunks, rows = _chunks(tokens)
    tile, warps = GATED_BACKWARD_FLOAT8 if as_float8 else GATED_BACKWARD
    if as_float8:
        made = room(frames * tokens, branch.shape[-1], branch.device)
    else:
        made = Scaled(torch.empty_like(branch), dgate)
    _gated_backward_kernel[(chunks, frames)](
        branch,
        gate,
        dout,
        *made,
        dgate,
        dbias,
        tokens,
        rows,
        stride,
        **constants,
        TILE=tile,
        FLOAT8=as_float8,
        num_warps=warps,
    )
    return made if as_float8 else made.numbers
