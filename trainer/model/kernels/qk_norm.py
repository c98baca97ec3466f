"""QK-norm and RoPE kernels: one pass over the qkv projection, and one backward.

The backward pass also sums the projection's bias gradient. The mathematics is
`trainer.model.layers.RmsNorm`, twice, and for temporal attention the rotation by `Rope`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.float8 import Scaled, room, scale_of
from trainer.model.kernels.tiles import add_up, inverse_rms, pieces, turn
from trainer.model.layers import NORM_EPS

ROWS = 64  # heads of tokens that one program takes
WARPS = 4
BACKWARD = (64, 4)  # tokens that one program goes through, and warps
BACKWARD_ROWS = (32, 4)  # the same, where the gradient is float8


@triton.jit
def _qk_norm_kernel(
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
def _head_gradients(
    qkv_ptr, given_ptr, weight_ptr, cosine_ptr, sine_ptr, place, flat, angle, c1, c2, m1, m2,
    FILLED: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, TURN: tl.constexpr,
    EPS: tl.constexpr,
):  # fmt: skip
    """Return the gradients of a token's heads of q or k before the norm, and their parts of the weight's."""
    x1 = tl.load(qkv_ptr + place + c1, mask=m1, other=0.0).to(tl.float32)
    x2 = tl.load(qkv_ptr + place + c2, mask=m2, other=0.0).to(tl.float32)
    d1 = tl.load(given_ptr + flat + c1, mask=m1, other=0.0).to(tl.float32)
    d2 = tl.load(given_ptr + flat + c2, mask=m2, other=0.0).to(tl.float32)
    if TURN:
        cos1 = tl.load(cosine_ptr + angle + c1, mask=m1, other=0.0)
        cos2 = tl.load(cosine_ptr + angle + c2, mask=m2, other=0.0)
        sin1 = tl.load(sine_ptr + angle + c1, mask=m1, other=0.0)
        sin2 = tl.load(sine_ptr + angle + c2, mask=m2, other=0.0)
        d1 = turn(d1, cos1, -sin1, FILLED, FIRST)
        d2 = turn(d2, cos2, -sin2, FILLED, SECOND)
    rms = inverse_rms(x1, x2, WIDTH, EPS)[:, None]
    x1 *= rms
    x2 *= rms
    add1 = d1 * x1
    add2 = d2 * x2
    d1 *= tl.load(weight_ptr + c1).to(tl.float32)
    d2 *= tl.load(weight_ptr + c2, mask=c2 < WIDTH, other=0.0).to(tl.float32)
    along = ((tl.sum(d1 * x1, 1) + tl.sum(d2 * x2, 1)) / WIDTH)[:, None]
    return rms * (d1 - x1 * along), rms * (d2 - x2 * along), add1, add2


@triton.jit
def _store_heads(pointer, x1, x2, head, c1, c2, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    tl.store(pointer + head * WIDTH + c1, x1, mask=head < HEADS)
    tl.store(pointer + head * WIDTH + c2, x2, mask=(head < HEADS) & (c2 < WIDTH))


@triton.jit
def _store_width(pointer, x1, x2, WIDTH: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    tl.store(pointer + tl.arange(0, FIRST), x1)
    rest = FIRST + tl.arange(0, SECOND)
    tl.store(pointer + rest, x2, mask=rest < WIDTH)


@triton.jit
def _qk_norm_backward_rows_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cosine_ptr,
    sine_ptr,
    dq_ptr,  # [N, H, D] each
    dk_ptr,
    dv_ptr,
    numbers_ptr,  # float8 [N, 3, H, D], a scale for each token
    scales_ptr,
    bias_ptr,  # [programs, 3, H, D], sums of dqkv
    weights_ptr,  # [programs, 2, D], of the weights' gradients
    count,  # N
    places,
    frames,
    HEADS: tl.constexpr,
    FILLED: tl.constexpr,  # heads, filled up to a power of two
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    TOKENS: tl.constexpr,  # that one program goes through
    TURN: tl.constexpr,
    EPS: tl.constexpr,
):
    c1 = tl.arange(0, FIRST)[None]
    c2 = FIRST + tl.arange(0, SECOND)[None]
    head = tl.arange(0, FILLED)[:, None]
    q1 = tl.zeros((FILLED, FIRST), tl.float32)
    q2 = tl.zeros((FILLED, SECOND), tl.float32)
    k1 = tl.zeros((FILLED, FIRST), tl.float32)
    k2 = tl.zeros((FILLED, SECOND), tl.float32)
    v1 = tl.zeros((FILLED, FIRST), tl.float32)
    v2 = tl.zeros((FILLED, SECOND), tl.float32)
    q_sum1 = tl.zeros((FILLED, FIRST), tl.float32)
    q_sum2 = tl.zeros((FILLED, SECOND), tl.float32)
    k_sum1 = tl.zeros((FILLED, FIRST), tl.float32)
    k_sum2 = tl.zeros((FILLED, SECOND), tl.float32)
    begin = tl.program_id(0).to(tl.int64) * TOKENS
    for number in range(tl.minimum(TOKENS, count - begin)):
        token = begin + number
        m1 = (head < HEADS) & (c1 < WIDTH)
        m2 = (head < HEADS) & (c2 < WIDTH)
        start = token * (3 * HEADS * WIDTH)
        place = start + head * WIDTH
        flat = (token * HEADS + head) * WIDTH
        angle = token // places % frames * WIDTH + tl.zeros((FILLED, 1), tl.int32)
        dq1, dq2, add1, add2 = _head_gradients(
            qkv_ptr, dq_ptr, q_weight_ptr, cosine_ptr, sine_ptr, place, flat, angle, c1, c2, m1, m2,
            FILLED, WIDTH, FIRST, SECOND, TURN, EPS,
        )  # fmt: skip
        q_sum1 += add1
        q_sum2 += add2
        dk1, dk2, add1, add2 = _head_gradients(
            qkv_ptr, dk_ptr, k_weight_ptr, cosine_ptr, sine_ptr, place + HEADS * WIDTH, flat, angle, c1, c2,
            m1, m2, FILLED, WIDTH, FIRST, SECOND, TURN, EPS,
        )  # fmt: skip
        k_sum1 += add1
        k_sum2 += add2
        dv1 = tl.load(dv_ptr + flat + c1, mask=m1, other=0.0).to(tl.float32)
        dv2 = tl.load(dv_ptr + flat + c2, mask=m2, other=0.0).to(tl.float32)
        q1 += dq1
        q2 += dq2
        k1 += dk1
        k2 += dk2
        v1 += dv1
        v2 += dv2
        most1 = tl.maximum(tl.maximum(tl.abs(dq1), tl.abs(dk1)), tl.abs(dv1))
        most2 = tl.maximum(tl.maximum(tl.abs(dq2), tl.abs(dk2)), tl.abs(dv2))
        scale = scale_of(tl.max(tl.maximum(tl.max(most1, 1), tl.max(most2, 1)), 0))
        tl.store(scales_ptr + token, scale)
        inverse = 1.0 / scale  # of a power of two: exact
        kind = numbers_ptr.dtype.element_ty
        out = numbers_ptr + start
        _store_heads(out, (dq1 * inverse).to(kind), (dq2 * inverse).to(kind), head, c1, c2, HEADS, WIDTH)
        out += HEADS * WIDTH
        _store_heads(out, (dk1 * inverse).to(kind), (dk2 * inverse).to(kind), head, c1, c2, HEADS, WIDTH)
        out += HEADS * WIDTH
        _store_heads(out, (dv1 * inverse).to(kind), (dv2 * inverse).to(kind), head, c1, c2, HEADS, WIDTH)
    bias = bias_ptr + tl.program_id(0).to(tl.int64) * (3 * HEADS * WIDTH)
    _store_heads(bias, q1, q2, head, c1, c2, HEADS, WIDTH)
    _store_heads(bias + HEADS * WIDTH, k1, k2, head, c1, c2, HEADS, WIDTH)
    _store_heads(bias + 2 * HEADS * WIDTH, v1, v2, head, c1, c2, HEADS, WIDTH)
    weights = weights_ptr + tl.program_id(0) * (2 * WIDTH)
    _store_width(weights, tl.sum(q_sum1, 0), tl.sum(q_sum2, 0), WIDTH, FIRST, SECOND)
    _store_width(weights + WIDTH, tl.sum(k_sum1, 0), tl.sum(k_sum2, 0), WIDTH, FIRST, SECOND)


@triton.jit
def _qk_norm_backward_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cosine_ptr,
    sine_ptr,
    dq_ptr,  # [N, H, D] each
    dk_ptr,
    dv_ptr,
    dqkv_ptr,
    bias_ptr,  # [programs, 3, H, D], sums of dqkv
    weights_ptr,  # [programs, 2, D], of the weights' gradients
    count,  # N
    places,
    frames,
    HEADS: tl.constexpr,
    FILLED: tl.constexpr,  # heads, filled up to a power of two
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    TOKENS: tl.constexpr,  # that one program goes through
    TURN: tl.constexpr,
    EPS: tl.constexpr,
):
    which = tl.program_id(1)
    c1 = tl.arange(0, FIRST)[None]
    c2 = FIRST + tl.arange(0, SECOND)[None]
    bias1 = tl.zeros((FILLED, FIRST), tl.float32)
    bias2 = tl.zeros((FILLED, SECOND), tl.float32)
    sum1 = tl.zeros((FILLED, FIRST), tl.float32)
    sum2 = tl.zeros((FILLED, SECOND), tl.float32)
    head = tl.arange(0, FILLED)[:, None]
    kind = dqkv_ptr.dtype.element_ty
    weight = q_weight_ptr if which == 0 else k_weight_ptr
    for number in range(TOKENS):
        token = tl.program_id(0) * TOKENS + number + tl.zeros((FILLED, 1), tl.int32)
        m1 = (token < count) & (head < HEADS)
        m2 = m1 & (c2 < WIDTH)
        place = ((token * 3 + which) * HEADS + head).to(tl.int64) * WIDTH
        flat = (token * HEADS + head).to(tl.int64) * WIDTH
        if which == 2:
            d1 = tl.load(dv_ptr + flat + c1, mask=m1, other=0.0).to(tl.float32)
            d2 = tl.load(dv_ptr + flat + c2, mask=m2, other=0.0).to(tl.float32)
        else:
            given = dq_ptr if which == 0 else dk_ptr
            angle = token // places % frames * WIDTH
            d1, d2, add1, add2 = _head_gradients(
                qkv_ptr, given, weight, cosine_ptr, sine_ptr, place, flat, angle, c1, c2, m1, m2,
                FILLED, WIDTH, FIRST, SECOND, TURN, EPS,
            )  # fmt: skip
            sum1 += add1
            sum2 += add2
        bias1 += d1
        bias2 += d2
        tl.store(dqkv_ptr + place + c1, d1.to(kind), mask=m1)
        tl.store(dqkv_ptr + place + c2, d2.to(kind), mask=m2)
    bias = bias_ptr + (tl.program_id(0) * 3 + which) * HEADS * WIDTH
    _store_heads(bias, bias1, bias2, head, c1, c2, HEADS, WIDTH)
    if which < 2:
        weights = weights_ptr + (tl.program_id(0) * 2 + which) * WIDTH
        _store_width(weights, tl.sum(sum1, 0), tl.sum(sum2, 0), WIDTH, FIRST, SECOND)


Wave = tuple[Tensor, Tensor, int]  # cosine and sine [T, D], and the tokens of a frame


def _constants(qkv: Tensor, turns: bool) -> dict[str, int | float | bool]:
    heads, width = qkv.shape[-2:]
    first, second = pieces(width, 16)
    return {
        "HEADS": heads,
        "WIDTH": width,
        "FIRST": first,
        "SECOND": max(second, 16),
        "TURN": turns,
        "EPS": NORM_EPS,
    }


def qk_norm(
    qkv: Tensor, q_weight: Tensor, k_weight: Tensor, wave: Wave | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k (normed, with `wave` rotated) and v, each [N, H, D], of contiguous `qkv` [N, 3, H, D].

    v is a view of `qkv`. With `wave` the N tokens are in the order (B, T, S); `wave` has the rotation,
    float32 [T, D] each, and S.
    """
    cosine, sine, places = wave or (q_weight, q_weight, 1)
    count, _, heads, width = qkv.shape
    out = qkv.new_empty(2, count, heads, width)
    rows = count * heads
    _qk_norm_kernel[(triton.cdiv(rows, ROWS), 2)](
        qkv,
        q_weight,
        k_weight,
        cosine,
        sine,
        out,
        rows,
        places,
        cosine.shape[0] if wave else 1,
        **_constants(qkv, wave is not None),
        BLOCK=ROWS,
        num_warps=WARPS,
    )
    q, k = out.unbind(0)
    return q, k, qkv[:, 2]


def qk_norm_backward(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    wave: Wave | None,
    gradients: tuple[Tensor, Tensor, Tensor],
    *,
    as_float8: bool = False,
) -> tuple[Tensor | Scaled, Tensor, Tensor, Tensor]:
    """Return the gradients of qkv [N, 3 H D], of its bias [3 H D], and of both weights [D].

    `gradients` are contiguous [N, H, D], of what `qk_norm` returned for the same input. The first gradient is
    as float8, a scale for each token, if asked for.
    """
    cosine, sine, places = wave or (q_weight, q_weight, 1)
    count, _, heads, width = qkv.shape
    tokens, warps = BACKWARD_ROWS if as_float8 else BACKWARD
    programs = triton.cdiv(count, tokens)
    bias = torch.empty(1, programs, 3 * heads * width, device=qkv.device, dtype=torch.float32)
    weights = torch.empty(1, programs, 2 * width, device=qkv.device, dtype=torch.float32)
    given = (qkv, q_weight, k_weight, cosine, sine, *gradients)
    sums = (bias, weights, count, places, cosine.shape[0] if wave else 1)
    constants = _constants(qkv, wave is not None) | {
        "FILLED": triton.next_power_of_2(heads),
        "TOKENS": tokens,
    }
    made: Tensor | Scaled
    if as_float8:
        made = room(count, 3 * heads * width, qkv.device)
        _qk_norm_backward_rows_kernel[(programs,)](*given, *made, *sums, **constants, num_warps=warps)
    else:
        made = torch.empty_like(qkv).flatten(1)
        _qk_norm_backward_kernel[(programs, 3)](*given, made, *sums, **constants, num_warps=warps)
    dq_weight, dk_weight = add_up(weights, q_weight.dtype).view(2, width).unbind(0)
    return made, add_up(bias, qkv.dtype)[0], dq_weight, dk_weight
