"""FlashAttention in Triton, for captions of different lengths without a mask.

A short caption costs only its own tokens. A head of 72 columns is computed as 64 + 16 instead of padded to
128. The method is FlashAttention-2's (Dao 2023, arXiv:2307.08691): online softmax forward, and two passes
backward, one by keys and one by queries, without atomic sums, so that the same input gives the same bits.
Where all lengths are equal another kernel may be faster: `trainer.model.kernels.attention` chooses.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.tiles import load_rows, pieces, store_rows

Tile = tuple[int, int, int, int]  # rows of queries, rows of keys, warps, stages


class Ragged(NamedTuple):
    """Where the keys of sequences of different lengths lie among rows [P, H, D] that hold those of all.

    A sequence's rows lie side by side. Packed rows have no gaps between them; padded ones do, which no
    sequence reads and whose gradient is zero.
    """

    starts: Tensor  # int32 [B], each sequence's first row
    lengths: Tensor  # int32 [B], its number of rows, at least 1
    longest: int  # no length is above it; the host asks the device for none
    has_gaps: bool


def tiles(queries: int, keys: int) -> tuple[Tile, Tile, Tile]:
    """Return the tiles forward, backward by queries and by keys: the best of those tried on an H200."""
    return (
        (64, 32, 4, 3) if keys <= 512 else (128, 64, 4, 3),
        (64, 32, 4, 2) if queries < 256 else (128, 32, 8, 3),
        (64, 64, 4, 3) if keys <= 384 else (64, 64, 4, 2),
    )


FEW_PROGRAMS = 1056  # fewer programs than this by keys leave multiprocessors idle: the queries are split


@triton.jit
def _flash_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    starts_ptr,  # int32 [B], with RAGGED
    lengths_ptr,
    out_ptr,
    lse_ptr,
    q_batch,
    q_row,
    k_row,
    v_row,
    queries,
    keys,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SCALE: tl.constexpr,  # times log2(e)
    RAGGED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    b = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    row = tl.program_id(0) * M + tl.arange(0, M)
    c1 = tl.arange(0, FIRST)
    c2 = FIRST + tl.arange(0, SECOND)
    first = tl.load(starts_ptr + b).to(tl.int64) if RAGGED else b * keys
    count = tl.load(lengths_ptr + b) if RAGGED else keys
    q1, q2 = load_rows(q_ptr + b * q_batch + head * WIDTH, row, c1, c2, q_row, queries, WIDTH)
    k_start = k_ptr + first * k_row + head * WIDTH
    v_start = v_ptr + first * v_row + head * WIDTH
    top = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc1 = tl.zeros((M, FIRST), tl.float32)
    acc2 = tl.zeros((M, SECOND), tl.float32)
    for start in range(0, count, N):
        key = start + tl.arange(0, N)
        k1, k2 = load_rows(k_start, key, c1, c2, k_row, count, WIDTH)
        s = tl.dot(q1, tl.trans(k1))
        s = tl.dot(q2, tl.trans(k2), s) * SCALE
        s = tl.where(key[None] < count, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        old = tl.exp2(top - new)
        total = total * old + tl.sum(p, 1)
        v1, v2 = load_rows(v_start, key, c1, c2, v_row, count, WIDTH)
        p = p.to(v1.dtype)
        acc1 = tl.dot(p, v1, acc1 * old[:, None])
        acc2 = tl.dot(p, v2, acc2 * old[:, None])
        top = new
    full: tl.constexpr = HEADS * WIDTH
    out = out_ptr + b * queries * full + head * WIDTH
    store_rows(out, acc1 / total[:, None], acc2 / total[:, None], row, c1, c2, full, queries, WIDTH)
    tl.store(
        lse_ptr + tl.program_id(1).to(tl.int64) * queries + row, top + tl.log2(total), mask=row < queries
    )


@triton.jit
def _flash_by_keys(
    q_ptr,
    k_ptr,
    v_ptr,
    starts_ptr,  # int32 [B], with RAGGED
    lengths_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,  # [splits, rows of all keys, H, D]
    dv_ptr,
    q_batch,
    q_row,
    k_row,
    v_row,
    queries,
    keys,
    queries_per_split,
    split_stride,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SCALE: tl.constexpr,
    RAGGED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    b = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    split = tl.program_id(2).to(tl.int64)
    key = tl.program_id(0) * N + tl.arange(0, N)
    c1 = tl.arange(0, FIRST)
    c2 = FIRST + tl.arange(0, SECOND)
    first = tl.load(starts_ptr + b).to(tl.int64) if RAGGED else b * keys
    count = tl.load(lengths_ptr + b) if RAGGED else keys
    full: tl.constexpr = HEADS * WIDTH
    k1, k2 = load_rows(k_ptr + first * k_row + head * WIDTH, key, c1, c2, k_row, count, WIDTH)
    v1, v2 = load_rows(v_ptr + first * v_row + head * WIDTH, key, c1, c2, v_row, count, WIDTH)
    dk1 = tl.zeros((N, FIRST), tl.float32)
    dk2 = tl.zeros((N, SECOND), tl.float32)
    dv1 = tl.zeros((N, FIRST), tl.float32)
    dv2 = tl.zeros((N, SECOND), tl.float32)
    q_start = q_ptr + b * q_batch + head * WIDTH
    do_start = dout_ptr + b * queries * full + head * WIDTH
    line = tl.program_id(1).to(tl.int64) * queries
    begin = split * queries_per_split
    end = tl.minimum(begin + queries_per_split, queries)
    if tl.program_id(0) * N >= count:
        end = begin
    for start in range(begin, end, M):
        row = start + tl.arange(0, M)
        q1, q2 = load_rows(q_start, row, c1, c2, q_row, end, WIDTH)
        lse = tl.load(lse_ptr + line + row, mask=row < end, other=float("inf"))
        s = tl.dot(k1, tl.trans(q1))
        s = tl.dot(k2, tl.trans(q2), s) * SCALE
        p = tl.exp2(s - lse[None])
        do1, do2 = load_rows(do_start, row, c1, c2, full, end, WIDTH)
        dp = tl.dot(v1, tl.trans(do1))
        dp = tl.dot(v2, tl.trans(do2), dp)
        pk = p.to(do1.dtype)
        dv1 = tl.dot(pk, do1, dv1)
        dv2 = tl.dot(pk, do2, dv2)
        delta = tl.load(delta_ptr + line + row, mask=row < end, other=0.0)
        ds = (p * (dp - delta[None])).to(q1.dtype)
        dk1 = tl.dot(ds, q1, dk1)
        dk2 = tl.dot(ds, q2, dk2)
    natural: tl.constexpr = SCALE * 0.6931471805599453
    place = split * split_stride + first * full + head * WIDTH
    store_rows(dv_ptr + place, dv1, dv2, key, c1, c2, full, count, WIDTH)
    store_rows(dk_ptr + place, dk1 * natural, dk2 * natural, key, c1, c2, full, count, WIDTH)


@triton.jit
def _flash_by_queries(
    q_ptr,
    k_ptr,
    v_ptr,
    starts_ptr,  # int32 [B], with RAGGED
    lengths_ptr,
    out_ptr,
    dout_ptr,
    lse_ptr,
    delta_ptr,  # the sum over a head of out * dout, which is made here, [B, H, queries]
    dq_ptr,
    q_batch,
    q_row,
    k_row,
    v_row,
    queries,
    keys,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    SCALE: tl.constexpr,
    RAGGED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    b = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    row = tl.program_id(0) * M + tl.arange(0, M)
    c1 = tl.arange(0, FIRST)
    c2 = FIRST + tl.arange(0, SECOND)
    first = tl.load(starts_ptr + b).to(tl.int64) if RAGGED else b * keys
    count = tl.load(lengths_ptr + b) if RAGGED else keys
    full: tl.constexpr = HEADS * WIDTH
    q1, q2 = load_rows(q_ptr + b * q_batch + head * WIDTH, row, c1, c2, q_row, queries, WIDTH)
    do1, do2 = load_rows(dout_ptr + b * queries * full + head * WIDTH, row, c1, c2, full, queries, WIDTH)
    line = tl.program_id(1).to(tl.int64) * queries
    lse = tl.load(lse_ptr + line + row, mask=row < queries, other=float("inf"))
    o1, o2 = load_rows(out_ptr + b * queries * full + head * WIDTH, row, c1, c2, full, queries, WIDTH)
    delta = tl.sum(o1.to(tl.float32) * do1.to(tl.float32), 1)
    delta += tl.sum(o2.to(tl.float32) * do2.to(tl.float32), 1)
    tl.store(delta_ptr + line + row, delta, mask=row < queries)
    k_start = k_ptr + first * k_row + head * WIDTH
    v_start = v_ptr + first * v_row + head * WIDTH
    dq1 = tl.zeros((M, FIRST), tl.float32)
    dq2 = tl.zeros((M, SECOND), tl.float32)
    for start in range(0, count, N):
        key = start + tl.arange(0, N)
        k1, k2 = load_rows(k_start, key, c1, c2, k_row, count, WIDTH)
        s = tl.dot(q1, tl.trans(k1))
        s = tl.dot(q2, tl.trans(k2), s) * SCALE
        p = tl.exp2(s - lse[:, None])
        p = tl.where(key[None] < count, p, 0.0)
        v1, v2 = load_rows(v_start, key, c1, c2, v_row, count, WIDTH)
        dp = tl.dot(do1, tl.trans(v1))
        dp = tl.dot(do2, tl.trans(v2), dp)
        ds = (p * (dp - delta[:, None])).to(k1.dtype)
        dq1 = tl.dot(ds, k1, dq1)
        dq2 = tl.dot(ds, k2, dq2)
    natural: tl.constexpr = SCALE * 0.6931471805599453
    dq = dq_ptr + b * queries * full + head * WIDTH
    store_rows(dq, dq1 * natural, dq2 * natural, row, c1, c2, full, queries, WIDTH)


def _constants(q: Tensor, ragged: Ragged | None) -> dict[str, int | float | bool]:
    heads, width = q.shape[2:]
    first, second = pieces(width, 16)
    return {
        "HEADS": heads,
        "WIDTH": width,
        "FIRST": first,
        "SECOND": max(second, 16),
        "SCALE": width**-0.5 * 1.4426950408889634,
        "RAGGED": ragged is not None,
    }


def _where(q: Tensor, ragged: Ragged | None) -> tuple[Tensor, Tensor]:
    return (q, q) if ragged is None else (ragged.starts, ragged.lengths)


def _places(q: Tensor, k: Tensor, v: Tensor, ragged: Ragged | None) -> tuple[int, ...]:
    for part in (q, k, v):
        assert part.stride()[-2:] == (part.shape[-1], 1), "a token's heads lie side by side"
    for part in (k, v):
        assert part.dim() == 3 or len(part) == 1 or part.stride(0) == part.shape[1] * part.stride(1), (
            "the keys of all sequences lie side by side"
        )
    # A constant where it is not read: a kernel is built anew for some numbers.
    keys = k.shape[1] if ragged is None else 0
    return (*q.stride()[:2], k.stride(-3), v.stride(-3), q.shape[1], keys)


def _tile(choice: Tile) -> dict[str, int]:
    return dict(zip(("M", "N", "num_warps", "num_stages"), choice, strict=True))


def flash_attention(q: Tensor, k: Tensor, v: Tensor, ragged: Ragged | None = None) -> tuple[Tensor, Tensor]:
    """Return out [B, Lq, H, D] and the softmax's log2 of sums, float32 [B, H, Lq].

    For q [B, Lq, H, D] and k, v [B, Lk, H, D], or where `ragged` says how the keys lie, k, v [P, H, D]; the
    heads of a token lie side by side.
    """
    b, queries, heads, width = q.shape
    out = q.new_empty(b, queries, heads, width)
    lse = torch.empty(b, heads, queries, device=q.device, dtype=torch.float32)
    forward, _, _ = tiles(queries, k.shape[1] if ragged is None else ragged.longest)
    _flash_kernel[(triton.cdiv(queries, forward[0]), b * heads)](
        q,
        k,
        v,
        *_where(q, ragged),
        out,
        lse,
        *_places(q, k, v, ragged),
        **_constants(q, ragged),
        **_tile(forward),
    )
    return out, lse


def flash_attention_backward(
    q: Tensor, k: Tensor, v: Tensor, ragged: Ragged | None, out: Tensor, lse: Tensor, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the contiguous gradients of q, k and v for contiguous `dout`; `out`, `lse` as they came out."""
    b, queries, heads = q.shape[:3]
    keys = k.shape[1] if ragged is None else ragged.longest
    constants, places, where = _constants(q, ragged), _places(q, k, v, ragged), _where(q, ragged)
    delta, dq = torch.empty_like(lse), q.new_empty(q.shape)
    _, by_queries, by_keys = tiles(queries, keys)
    _flash_by_queries[(triton.cdiv(queries, by_queries[0]), b * heads)](
        q, k, v, *where, out, dout, lse, delta, dq, *places, **constants, **_tile(by_queries)
    )
    programs = triton.cdiv(keys, by_keys[1]) * b * heads
    rounds = triton.cdiv(queries, by_keys[0])
    splits = max(1, min(triton.cdiv(FEW_PROGRAMS, programs), rounds // 4))
    kind = q.dtype if splits == 1 else torch.float32
    made = torch.zeros if ragged is not None and ragged.has_gaps else torch.empty
    dk, dv = (made((splits, *k.shape), device=q.device, dtype=kind) for _ in range(2))
    _flash_by_keys[(triton.cdiv(keys, by_keys[1]), b * heads, splits)](
        q,
        k,
        v,
        *where,
        dout,
        lse,
        delta,
        dk,
        dv,
        *places,
        triton.cdiv(rounds, splits) * by_keys[0],
        dk[0].numel(),
        **constants,
        **_tile(by_keys),
    )
    if splits == 1:
        return dq, dk.squeeze(0), dv.squeeze(0)
    return dq, dk.sum(0).to(q.dtype), dv.sum(0).to(q.dtype)
