"""The norms of queries and keys, and their rotation, in one pass over the projection's output; and one back.

The mathematics is `trainer.layers.RmsNorm`, twice, and for attention over time the rotation by `Rope`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.heads import inverse_rms, norm_backward, turn
from trainer.kernels.widths import pieces
from trainer.layers import NORM_EPS

ROWS = 64  # heads of tokens that one program takes
WARPS = 4
BACKWARD_TILES = 4  # tiles of that many rows which one program of the backward pass goes through


@triton.jit
def _forward_kernel(
    qkv_ptr,  # [N, 3, H, D]
    q_weight_ptr,
    k_weight_ptr,
    cosine_ptr,  # [T, D]
    sine_ptr,
    out_ptr,  # [2, N, H, D]
    rows,  # N H
    places,  # tokens of a frame
    frames,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
    TURN: tl.constexpr,
    EPS: tl.constexpr,
):
    which = tl.program_id(1)
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    c1 = tl.arange(0, FIRST)[None]
    c2 = FIRST + tl.arange(0, SECOND)[None]
    m1 = row < rows
    m2 = m1 & (c2 < WIDTH)
    start = qkv_ptr + (row // HEADS * (3 * HEADS) + which * HEADS + row % HEADS).to(tl.int64) * WIDTH
    x1 = tl.load(start + c1, mask=m1, other=0.0).to(tl.float32)
    x2 = tl.load(start + c2, mask=m2, other=0.0).to(tl.float32)
    weight = q_weight_ptr if which == 0 else k_weight_ptr
    w1 = tl.load(weight + c1).to(tl.float32)
    w2 = tl.load(weight + c2, mask=c2 < WIDTH, other=0.0).to(tl.float32)
    rms = inverse_rms(x1, x2, WIDTH, EPS)[:, None]
    x1 = x1 * rms * w1
    x2 = x2 * rms * w2
    if TURN:
        angle = row // HEADS // places % frames * WIDTH
        cos1 = tl.load(cosine_ptr + angle + c1, mask=m1, other=0.0)
        cos2 = tl.load(cosine_ptr + angle + c2, mask=m2, other=0.0)
        sin1 = tl.load(sine_ptr + angle + c1, mask=m1, other=0.0)
        sin2 = tl.load(sine_ptr + angle + c2, mask=m2, other=0.0)
        x1 = turn(x1, cos1, sin1, BLOCK, FIRST)
        x2 = turn(x2, cos2, sin2, BLOCK, SECOND)
    out = out_ptr + (which * rows + row).to(tl.int64) * WIDTH
    tl.store(out + c1, x1.to(out_ptr.dtype.element_ty), mask=m1)
    tl.store(out + c2, x2.to(out_ptr.dtype.element_ty), mask=m2)


@triton.jit
def _backward_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cosine_ptr,
    sine_ptr,
    dq_ptr,  # [N, H, D] each
    dk_ptr,
    dv_ptr,
    dqkv_ptr,
    dweight_ptr,  # [2, programs, D]
    rows,
    places,
    frames,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
    TURN: tl.constexpr,
    EPS: tl.constexpr,
):
    which = tl.program_id(1)
    c1 = tl.arange(0, FIRST)[None]
    c2 = FIRST + tl.arange(0, SECOND)[None]
    sum1 = tl.zeros((FIRST,), tl.float32)
    sum2 = tl.zeros((SECOND,), tl.float32)
    for tile in range(TILES):
        row = ((tl.program_id(0) * TILES + tile) * BLOCK + tl.arange(0, BLOCK))[:, None]
        m1 = row < rows
        m2 = m1 & (c2 < WIDTH)
        place = (row // HEADS * (3 * HEADS) + which * HEADS + row % HEADS).to(tl.int64) * WIDTH
        flat = row.to(tl.int64) * WIDTH
        kind = dqkv_ptr.dtype.element_ty
        if which == 2:
            v1 = tl.load(dv_ptr + flat + c1, mask=m1, other=0.0)
            v2 = tl.load(dv_ptr + flat + c2, mask=m2, other=0.0)
            tl.store(dqkv_ptr + place + c1, v1.to(kind), mask=m1)
            tl.store(dqkv_ptr + place + c2, v2.to(kind), mask=m2)
        else:
            given = dq_ptr if which == 0 else dk_ptr
            weight = q_weight_ptr if which == 0 else k_weight_ptr
            x1 = tl.load(qkv_ptr + place + c1, mask=m1, other=0.0).to(tl.float32)
            x2 = tl.load(qkv_ptr + place + c2, mask=m2, other=0.0).to(tl.float32)
            d1 = tl.load(given + flat + c1, mask=m1, other=0.0).to(tl.float32)
            d2 = tl.load(given + flat + c2, mask=m2, other=0.0).to(tl.float32)
            if TURN:
                angle = row // HEADS // places % frames * WIDTH
                cos1 = tl.load(cosine_ptr + angle + c1, mask=m1, other=0.0)
                cos2 = tl.load(cosine_ptr + angle + c2, mask=m2, other=0.0)
                sin1 = tl.load(sine_ptr + angle + c1, mask=m1, other=0.0)
                sin2 = tl.load(sine_ptr + angle + c2, mask=m2, other=0.0)
                d1 = turn(d1, cos1, -sin1, BLOCK, FIRST)
                d2 = turn(d2, cos2, -sin2, BLOCK, SECOND)
            w1 = tl.load(weight + c1).to(tl.float32)
            w2 = tl.load(weight + c2, mask=c2 < WIDTH, other=0.0).to(tl.float32)
            rms = inverse_rms(x1, x2, WIDTH, EPS)
            n1 = x1 * rms[:, None]
            n2 = x2 * rms[:, None]
            sum1 += tl.sum(d1 * n1, 0)
            sum2 += tl.sum(d2 * n2, 0)
            dx1, dx2 = norm_backward(d1 * w1, d2 * w2, n1, n2, rms, WIDTH)
            tl.store(dqkv_ptr + place + c1, dx1.to(kind), mask=m1)
            tl.store(dqkv_ptr + place + c2, dx2.to(kind), mask=m2)
    if which < 2:
        sums = dweight_ptr + (which * tl.num_programs(0) + tl.program_id(0)) * WIDTH
        column = tl.arange(0, FIRST)
        tl.store(sums + column, sum1)
        column = FIRST + tl.arange(0, SECOND)
        tl.store(sums + column, sum2, mask=column < WIDTH)


Wave = tuple[Tensor, Tensor, int]  # cosine and sine [T, D], and the tokens of a frame


def _constants(qkv: Tensor, turns: bool) -> dict[str, int | float | bool]:
    heads, width = qkv.shape[-2:]
    first, second = pieces(width, 16)
    return {
        "HEADS": heads,
        "WIDTH": width,
        "FIRST": first,
        "SECOND": max(second, 16),
        "BLOCK": ROWS,
        "TURN": turns,
        "EPS": NORM_EPS,
        "num_warps": WARPS,
    }


class _Normed(torch.autograd.Function):
    """Splits a projection into ready q and k, and v, so that one kernel puts their gradients together."""

    @staticmethod
    def forward(ctx, qkv, q_weight, k_weight, cosine, sine, places):
        ctx.save_for_backward(qkv, q_weight, k_weight, cosine, sine)
        ctx.places = places
        count, _, heads, width = qkv.shape
        out = qkv.new_empty(2, count, heads, width)
        rows = count * heads
        _forward_kernel[(triton.cdiv(rows, ROWS), 2)](
            qkv,
            q_weight,
            k_weight,
            q_weight if cosine is None else cosine,
            q_weight if sine is None else sine,
            out,
            rows,
            places,
            1 if cosine is None else cosine.shape[0],
            **_constants(qkv, cosine is not None),
        )
        return *out.unbind(0), qkv[:, 2]

    @staticmethod
    def backward(ctx, dq, dk, dv):
        qkv, q_weight, k_weight, cosine, sine = ctx.saved_tensors
        count, _, heads, width = qkv.shape
        rows = count * heads
        programs = triton.cdiv(rows, ROWS * BACKWARD_TILES)
        dqkv = torch.empty_like(qkv)
        sums = torch.empty(2, programs, width, device=qkv.device, dtype=torch.float32)
        _backward_kernel[(programs, 3)](
            qkv,
            q_weight,
            k_weight,
            q_weight if cosine is None else cosine,
            q_weight if sine is None else sine,
            dq.contiguous(),
            dk.contiguous(),
            dv.contiguous(),
            dqkv,
            sums,
            rows,
            ctx.places,
            1 if cosine is None else cosine.shape[0],
            TILES=BACKWARD_TILES,
            **_constants(qkv, cosine is not None),
        )
        dq_weight, dk_weight = sums.sum(1).to(q_weight.dtype).unbind(0)
        return dqkv, dq_weight, dk_weight, None, None, None


def qk_norm(
    qkv: Tensor, q_weight: Tensor, k_weight: Tensor, wave: Wave | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k (normed, with `wave` rotated) and v, each [N, H, D], of contiguous `qkv` [N, 3, H, D].

    v is a view of `qkv`. With `wave` the N tokens are in the order (B, T, S); `wave` has the rotation,
    float32 [T, D] each, and S.
    """
    cosine, sine, places = wave or (None, None, 1)
    q, k, v = _Normed.apply(qkv, q_weight, k_weight, cosine, sine, places)
    return q, k, v
