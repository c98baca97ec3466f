"""Attention among the frames at one place, read where the projection left it.

A place has few frames (15 to 120), so one program holds a whole head of it: it reads q, k and v once and
writes the result once, forward, and reads them and the result's gradient and writes theirs, backward,
computing the weights again. No copy puts frames side by side before or after.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from trainer.kernels.widths import pieces

MAX_FRAMES = 128
WARPS = {16: (1, 1), 32: (2, 2), 64: (4, 4), 128: (8, 8)}  # by frames: forward and backward


@triton.jit
def _rows(pointer, t, c1, c2, stride, FRAMES: tl.constexpr, WIDTH: tl.constexpr):
    """Load the frames of one head as (first columns | other columns)."""
    inside = t[:, None] < FRAMES
    x1 = tl.load(pointer + t[:, None] * stride + c1[None], mask=inside, other=0.0)
    x2 = tl.load(pointer + t[:, None] * stride + c2[None], mask=inside & (c2[None] < WIDTH), other=0.0)
    return x1, x2


@triton.jit
def _put(pointer, x1, x2, t, c1, c2, stride, FRAMES: tl.constexpr, WIDTH: tl.constexpr):
    inside = t[:, None] < FRAMES
    kind = pointer.dtype.element_ty
    tl.store(pointer + t[:, None] * stride + c1[None], x1.to(kind), mask=inside)
    tl.store(pointer + t[:, None] * stride + c2[None], x2.to(kind), mask=inside & (c2[None] < WIDTH))


@triton.jit
def _weights(q1, q2, k1, k2, t, FRAMES: tl.constexpr, SCALE: tl.constexpr):
    """Return the softmax over the frames, float32."""
    scores = tl.dot(q1, tl.trans(k1))
    scores = tl.dot(q2, tl.trans(k2), scores)
    scores = tl.where(t[None] < FRAMES, scores * SCALE, -float("inf"))
    scores = tl.exp(scores - tl.max(scores, 1)[:, None])
    return scores / tl.sum(scores, 1)[:, None]


@triton.jit
def _temporal_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    places,  # S
    q_row,
    v_row,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    FRAMES: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
):
    head = tl.program_id(0) * WIDTH
    place = tl.program_id(1).to(tl.int64)
    token = place // places * (FRAMES * places) + place % places
    t = tl.arange(0, BLOCK)
    c1 = tl.arange(0, FIRST)
    c2 = FIRST + tl.arange(0, SECOND)
    full: tl.constexpr = HEADS * WIDTH
    q1, q2 = _rows(q_ptr + token * q_row + head, t, c1, c2, places * q_row, FRAMES, WIDTH)
    k1, k2 = _rows(k_ptr + token * q_row + head, t, c1, c2, places * q_row, FRAMES, WIDTH)
    v1, v2 = _rows(v_ptr + token * v_row + head, t, c1, c2, places * v_row, FRAMES, WIDTH)
    p = _weights(q1, q2, k1, k2, t, FRAMES, SCALE).to(v1.dtype)
    out = out_ptr + token * full + head
    _put(out, tl.dot(p, v1), tl.dot(p, v2), t, c1, c2, places * full, FRAMES, WIDTH)


@triton.jit
def _temporal_backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    dqkv_ptr,  # [3, N, H, D]
    places,
    q_row,
    v_row,
    tensor,  # N H D
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    FRAMES: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
):
    head = tl.program_id(0) * WIDTH
    place = tl.program_id(1).to(tl.int64)
    token = place // places * (FRAMES * places) + place % places
    t = tl.arange(0, BLOCK)
    c1 = tl.arange(0, FIRST)
    c2 = FIRST + tl.arange(0, SECOND)
    full: tl.constexpr = HEADS * WIDTH
    step = places * full
    q1, q2 = _rows(q_ptr + token * q_row + head, t, c1, c2, places * q_row, FRAMES, WIDTH)
    k1, k2 = _rows(k_ptr + token * q_row + head, t, c1, c2, places * q_row, FRAMES, WIDTH)
    v1, v2 = _rows(v_ptr + token * v_row + head, t, c1, c2, places * v_row, FRAMES, WIDTH)
    do1, do2 = _rows(dout_ptr + token * full + head, t, c1, c2, step, FRAMES, WIDTH)
    p = _weights(q1, q2, k1, k2, t, FRAMES, SCALE)
    dp = tl.dot(do1, tl.trans(v1))
    dp = tl.dot(do2, tl.trans(v2), dp)
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * SCALE).to(q1.dtype)
    pt = tl.trans(p.to(q1.dtype))
    dst = tl.trans(ds)
    start = dqkv_ptr + token * full + head
    _put(start, tl.dot(ds, k1), tl.dot(ds, k2), t, c1, c2, step, FRAMES, WIDTH)
    start += tensor
    _put(start, tl.dot(dst, q1), tl.dot(dst, q2), t, c1, c2, step, FRAMES, WIDTH)
    start += tensor
    _put(start, tl.dot(pt, do1), tl.dot(pt, do2), t, c1, c2, step, FRAMES, WIDTH)


def _constants(q: Tensor, frames: int) -> dict[str, int | float]:
    heads, width = q.shape[1:]
    if frames > MAX_FRAMES:
        raise ValueError(f"{frames} latent frames; this kernel holds at most {MAX_FRAMES}.")
    first, second = pieces(width, 16)
    return {
        "HEADS": heads,
        "WIDTH": width,
        "FIRST": first,
        "SECOND": max(second, 16),
        "FRAMES": frames,
        "BLOCK": max(16, triton.next_power_of_2(frames)),
        "SCALE": width**-0.5,
    }


@triton_op("vidcurate::temporal_attention", mutates_args={})
def temporal_attention(q: Tensor, k: Tensor, v: Tensor, frames: int, places: int) -> Tensor:
    """Return [N, H, D] for q, k, v [N, H, D], N tokens in the order (B, T, S); a token's heads side by side.

    Raises ValueError for more than MAX_FRAMES frames.
    """
    out = q.new_empty(q.shape)
    constants = _constants(q, frames)
    wrap_triton(_temporal_forward_kernel)[(q.shape[1], q.shape[0] // frames)](
        q,
        k,
        v,
        out,
        places,
        q.stride(0),
        v.stride(0),
        **constants,
        num_warps=WARPS[int(constants["BLOCK"])][0],
    )
    return out


@triton_op("vidcurate::temporal_attention_backward", mutates_args={})
def temporal_attention_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, frames: int, places: int
) -> Tensor:
    """Return dq, dk and dv as one [3, N, H, D]."""
    grads = q.new_empty(3, *q.shape)
    constants = _constants(q, frames)
    wrap_triton(_temporal_backward_kernel)[(q.shape[1], q.shape[0] // frames)](
        q,
        k,
        v,
        dout,
        grads,
        places,
        q.stride(0),
        v.stride(0),
        q.numel(),
        **constants,
        num_warps=WARPS[int(constants["BLOCK"])][1],
    )
    return grads


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.sizes = inputs[3:]


def _derivative(ctx, dout):
    dq, dk, dv = temporal_attention_backward(dout.contiguous(), *ctx.saved_tensors, *ctx.sizes).unbind(0)
    return dq, dk, dv, None, None


temporal_attention.register_autograd(_derivative, setup_context=_keep)
