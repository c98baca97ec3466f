"""Tile sums: second stage of a sum over tokens, over the partial sums of programs.

The order is fixed, so that the same input gives the same bits. torch's own sum over the first of few
dimensions takes three kernels: one that clears its counters, the sum, and one that casts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, NUMBERS, WARPS = 64, 4096, 4  # most rows of a tile, and its numbers
PROGRAMS = 528  # fewer programs than this leave multiprocessors idle: the rows are split


@triton.jit
def _add_up_kernel(
    parts_ptr,  # [groups, count, width]
    out_ptr,  # [groups, splits, width]
    count,
    width,
    rows_per_split,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    end = tl.minimum((split + 1) * rows_per_split, count)
    for start in range(split * rows_per_split, end, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < end) & (column[None] < width)
        total += tl.load(parts_ptr + (group * count + row) * width + column[None], mask=mask, other=0.0)
    total = tl.sum(total, 0).to(out_ptr.dtype.element_ty)
    out = out_ptr + (group * tl.num_programs(2) + split) * width
    tl.store(out + column, total, mask=column < width)


def add_up(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sums [G, W], in `dtype`, over the second dimension of contiguous float32 `parts` [G, P, W].

    Many rows of few columns are summed in two steps: parts of the rows side by side, then these.
    """
    groups, count, width = parts.shape
    rows = min(ROWS, triton.next_power_of_2(count))
    columns = NUMBERS // rows
    programs = triton.cdiv(width, columns) * groups
    splits = min(triton.cdiv(count, 4 * rows), triton.cdiv(PROGRAMS, programs))
    rows_per_split = triton.cdiv(triton.cdiv(count, splits), rows) * rows
    splits = triton.cdiv(count, rows_per_split)
    out = torch.empty(
        groups, splits, width, device=parts.device, dtype=dtype if splits == 1 else torch.float32
    )
    _add_up_kernel[(triton.cdiv(width, columns), groups, splits)](
        parts, out, count, width, rows_per_split, ROWS=rows, COLUMNS=columns, num_warps=WARPS
    )
    return out[:, 0] if splits == 1 else add_up(out, dtype)


@triton.jit
def load_rows(pointer, row, c1, c2, stride, count, WIDTH: tl.constexpr):
    """Return rows below `count` as (first columns | other columns), zeros elsewhere."""
    inside = row[:, None] < count
    x1 = tl.load(pointer + row[:, None] * stride + c1[None], mask=inside, other=0.0)
    x2 = tl.load(pointer + row[:, None] * stride + c2[None], mask=inside & (c2[None] < WIDTH), other=0.0)
    return x1, x2


@triton.jit
def store_rows(pointer, x1, x2, row, c1, c2, stride, count, WIDTH: tl.constexpr):
    """Store (first columns | other columns) to the rows below `count`, in the pointer's dtype."""
    inside = row[:, None] < count
    kind = pointer.dtype.element_ty
    tl.store(pointer + row[:, None] * stride + c1[None], x1.to(kind), mask=inside)
    tl.store(pointer + row[:, None] * stride + c2[None], x2.to(kind), mask=inside & (c2[None] < WIDTH))


@triton.jit
def inverse_rms(x1, x2, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Return 1 / rms of each row of (x1 | x2), whose columns beyond WIDTH are zero."""
    square = tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)
    return 1.0 / tl.sqrt(square / WIDTH + EPS)


@triton.jit
def turn(x, cosine, sine, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Turn neighbouring pairs of columns by their angle; with -sine, turn them back."""
    a, b = tl.split(tl.reshape(x, (ROWS, COLUMNS // 2, 2)))
    return x * cosine + tl.reshape(tl.join(-b, a), (ROWS, COLUMNS)) * sine


@triton.jit
def load_row(start, i1, i2, m2):
    """Return the row at `start` as float32, zeros beyond the width, where m2 ends."""
    first = tl.load(start + i1).to(tl.float32)
    return first, tl.load(start + i2, mask=m2, other=0.0).to(tl.float32)


@triton.jit
def store_row(start, x1, x2, i1, i2, m2):
    """Store the row to `start`, in its dtype."""
    kind = start.dtype.element_ty
    tl.store(start + i1, x1.to(kind))
    tl.store(start + i2, x2.to(kind), mask=m2)


def pieces(width: int, least: int) -> tuple[int, int]:
    """Return (first, second): powers of two of at least `least` that together cover `width`; second may be 0.

    `width` itself when it is a power of two; else the largest power of two below it, and the smallest that
    covers the rest: 72 → 64 + 16 with least 16, 1152 → 1024 + 128.
    """
    first = max(least, 1 << (width.bit_length() - 1))
    rest = max(0, width - first)
    return first, max(least, 1 << (rest - 1).bit_length()) if rest else 0
