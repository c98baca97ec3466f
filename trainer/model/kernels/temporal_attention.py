"""Attention among the frames at one place, read where the projection left it.

A place has few frames (15 to 120), so one program holds a whole head of it: it reads q, k and v once and
writes the result once, forward, and reads them and the result's gradient and writes theirs, backward,
computing the weights again. No copy puts frames side by side before or after.
"""

import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.tiles import load_rows, pieces, store_rows

MAX_FRAMES = 128
WARPS = {16: 1, 32: 2, 64: 4, 128: 8}  # by frames, filled up


@triton.jit
def _weights(q1, q2, k1, k2, t, frames, SCALE: tl.constexpr):
    """Return the softmax over the frames, float32."""
    scores = tl.dot(q1, tl.trans(k1))
    scores = tl.dot(q2, tl.trans(k2), scores)
    scores = tl.where(t[None] < frames, scores * SCALE, -float("inf"))
    scores = tl.exp(scores - tl.max(scores, 1)[:, None])
    return scores / tl.sum(scores, 1)[:, None]


@triton.jit
def _temporal_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    frames,  # T
    places,  # S
    q_row,
    v_row,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
):
    head = tl.program_id(0) * WIDTH
    place = tl.program_id(1).to(tl.int64)
    token = place // places * (frames * places) + place % places
    t = tl.arange(0, BLOCK)
    c1 = tl.arange(0, FIRST)
    c2 = FIRST + tl.arange(0, SECOND)
    full: tl.constexpr = HEADS * WIDTH
    q1, q2 = load_rows(q_ptr + token * q_row + head, t, c1, c2, places * q_row, frames, WIDTH)
    k1, k2 = load_rows(k_ptr + token * q_row + head, t, c1, c2, places * q_row, frames, WIDTH)
    v1, v2 = load_rows(v_ptr + token * v_row + head, t, c1, c2, places * v_row, frames, WIDTH)
    p = _weights(q1, q2, k1, k2, t, frames, SCALE).to(v1.dtype)
    out = out_ptr + token * full + head
    store_rows(out, tl.dot(p, v1), tl.dot(p, v2), t, c1, c2, places * full, frames, WIDTH)


@triton.jit
def _temporal_backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    dqkv_ptr,  # [3, N, H, D]
    frames,
    places,
    q_row,
    v_row,
    tensor,  # N H D
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
):
    head = tl.program_id(0) * WIDTH
    place = tl.program_id(1).to(tl.int64)
    token = place // places * (frames * places) + place % places
    t = tl.arange(0, BLOCK)
    c1 = tl.arange(0, FIRST)
    c2 = FIRST + tl.arange(0, SECOND)
    full: tl.constexpr = HEADS * WIDTH
    step = places * full
    q1, q2 = load_rows(q_ptr + token * q_row + head, t, c1, c2, places * q_row, frames, WIDTH)
    k1, k2 = load_rows(k_ptr + token * q_row + head, t, c1, c2, places * q_row, frames, WIDTH)
    v1, v2 = load_rows(v_ptr + token * v_row + head, t, c1, c2, places * v_row, frames, WIDTH)
    do1, do2 = load_rows(dout_ptr + token * full + head, t, c1, c2, step, frames, WIDTH)
    p = _weights(q1, q2, k1, k2, t, frames, SCALE)
    dp = tl.dot(do1, tl.trans(v1))
    dp = tl.dot(do2, tl.trans(v2), dp)
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * SCALE).to(q1.dtype)
    pt = tl.trans(p.to(q1.dtype))
    dst = tl.trans(ds)
    start = dqkv_ptr + token * full + head
    store_rows(start, tl.dot(ds, k1), tl.dot(ds, k2), t, c1, c2, step, frames, WIDTH)
    start += tensor
    store_rows(start, tl.dot(dst, q1), tl.dot(dst, q2), t, c1, c2, step, frames, WIDTH)
    start += tensor
    store_rows(start, tl.dot(pt, do1), tl.dot(pt, do2), t, c1, c2, step, frames, WIDTH)


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
        "BLOCK": max(16, triton.next_power_of_2(frames)),
        "SCALE": width**-0.5,
    }


def temporal_attention(q: Tensor, k: Tensor, v: Tensor, frames: int, places: int) -> Tensor:
    """Return [N, H, D] for q, k, v [N, H, D], N tokens in the order (B, T, S); a token's heads side by side.

    Raises ValueError for more than MAX_FRAMES frames.
    """
    out = q.new_empty(q.shape)
    constants = _constants(q, frames)
    _temporal_kernel[(q.shape[1], q.shape[0] // frames)](
        q,
        k,
        v,
        out,
        frames,
        places,
        q.stride(0),
        v.stride(0),
        **constants,
        num_warps=WARPS[int(constants["BLOCK"])],
    )
    return out


def temporal_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, frames: int, places: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, each contiguous [N, H, D], for contiguous `dout`."""
    gradients = q.new_empty(3, *q.shape)
    constants = _constants(q, frames)
    _temporal_backward_kernel[(q.shape[1], q.shape[0] // frames)](
        q,
        k,
        v,
        dout,
        gradients,
        frames,
        places,
        q.stride(0),
        v.stride(0),
        q.numel(),
        **constants,
        num_warps=WARPS[int(constants["BLOCK"])],
    )
    dq, dk, dv = gradients.unbind(0)
    return dq, dk, dv
