"""Float8 (e4m3) quantisation of rows, and matmuls of a linear layer in float8.

Each row has its own scale, a power of two. A float8 matmul takes about 0.6 of the time of a bfloat16 one, and
keeps 3 bits of mantissa (the format: Micikevicius et al. 2022, arXiv:2209.05433). A row's scale depends on
the row alone: there is no history to keep, to save or to share, so what a step computes depends on its clips
and weights alone, on any number of ranks. In the forward pass the tensor cores accumulate in their own
precision, which is less than float32; the gradients' matmuls accumulate in float32 (as NVIDIA's Transformer
Engine does).

A weight's gradient sums over the tokens, so its factors are transposed, and the two scales of a token belong
inside the sum. One kernel transposes the float8 rows that the other matmuls read, and multiplies each by half
of what the product of its two scales is below the largest such product (half: of the exponent). These are
powers of two, at most 1, so the kernel rounds only what becomes subnormal (scales of the same kind, for the
same reason: DeepSeek-V3, arXiv:2412.19437, section 3.3).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.tiles import load_row, pieces, store_row

WARPS = 2
TILE = 64  # rows and columns of a weight that one program turns over
TRANSPOSED = (128, 128, 4)  # tokens and channels that one program transposes, and warps
PADDED = 128  # transposed rows have a multiple of it: at 16 the matmul takes 1.1 to 1.45 times as long
LARGEST = (1024, 4)  # tokens of a program, and warps
PARTS = 64  # programs whose largest products are read at once


class Scaled(NamedTuple):
    """A matrix of which row r is `scales[r]`, a power of two, times `numbers[r]`."""

    numbers: Tensor  # float8_e4m3fn [R, K]
    scales: Tensor  # float32 [R]


def room(rows: int, width: int, device: torch.device) -> Scaled:
    """Return a matrix that a kernel fills."""
    numbers = torch.empty(rows, width, device=device, dtype=torch.float8_e4m3fn)
    return Scaled(numbers, torch.empty(rows, device=device, dtype=torch.float32))


@triton.jit
def scale_of(most):
    """Return the least power of two that brings numbers up to `most` to e4m3's, at most 448."""
    bits = (tl.maximum(most, 1e-30) / 448.0).to(tl.int32, bitcast=True)
    return (((bits + 0x7FFFFF) >> 23) << 23).to(tl.float32, bitcast=True)


@triton.jit
def store_scaled(numbers_ptr, scales_ptr, line, x1, x2, i1, i2, m2, WIDTH: tl.constexpr):
    """Store a row, float32 with zeros beyond the width, as row number `line` of a float8 matrix."""
    scale = scale_of(tl.maximum(tl.max(tl.abs(x1), 0), tl.max(tl.abs(x2), 0)))
    tl.store(scales_ptr + line, scale)
    inverse = 1.0 / scale  # of a power of two: exact
    store_row(numbers_ptr + line * WIDTH, x1 * inverse, x2 * inverse, i1, i2, m2)


@triton.jit
def _float8_rows_kernel(
    x_ptr, numbers_ptr, scales_ptr, WIDTH: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr
):
    line = tl.program_id(0).to(tl.int64)
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    x1, x2 = load_row(x_ptr + line * WIDTH, i1, i2, m2)
    store_scaled(numbers_ptr, scales_ptr, line, x1, x2, i1, i2, m2, WIDTH)


def columns(width: int) -> dict[str, int]:
    """Return the constants of a kernel that has a whole row at hand."""
    first, second = pieces(width, 16)
    return {"WIDTH": width, "FIRST": first, "SECOND": max(second, 16)}


def by_rows(x: Tensor) -> Scaled:
    """Return contiguous x [..., K] as float8 [R, K]."""
    width = x.shape[-1]
    made = room(x.numel() // width, width, x.device)
    _float8_rows_kernel[(len(made.scales),)](x, *made, **columns(width), num_warps=WARPS)
    return made


@triton.jit
def _float8_columns_kernel(
    w_ptr,  # [rows, columns]
    peaks_ptr,  # the largest of each column, [columns]
    numbers_ptr,  # [columns, rows]
    scales_ptr,
    rows,
    columns,
    TILE: tl.constexpr,
):
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    scale = scale_of(tl.load(peaks_ptr + column, mask=column < columns, other=0.0))
    if tl.program_id(1) == 0:
        tl.store(scales_ptr + column, scale, mask=column < columns)
    inside = (row[:, None] < rows) & (column[None] < columns)
    x = tl.load(w_ptr + row[:, None] * columns + column[None], mask=inside, other=0.0).to(tl.float32)
    x = tl.trans((x / scale[None]).to(numbers_ptr.dtype.element_ty))
    inside = (row[None] < rows) & (column[:, None] < columns)
    tl.store(numbers_ptr + column[:, None] * rows + row[None], x, mask=inside)


def by_columns(w: Tensor) -> Scaled:
    """Return contiguous w [N, K] turned over, [K, N], as float8: what `by_rows(w.T)` would be."""
    rows, columns = w.shape
    peaks = torch.linalg.vector_norm(w, float("inf"), dim=0, dtype=torch.float32)
    made = room(columns, rows, w.device)
    grid = (triton.cdiv(columns, TILE), triton.cdiv(rows, TILE))
    _float8_columns_kernel[grid](w, peaks, *made, rows, columns, TILE=TILE, num_warps=4)
    return made


def _product(x: Scaled, w: Scaled, bias: Tensor | None, dtype: torch.dtype, *, fast_sums: bool) -> Tensor:
    """Return x wᵀ + bias [R, N] in `dtype`."""
    return torch._scaled_mm(
        x.numbers,
        w.numbers.T,
        scale_a=x.scales[:, None],
        scale_b=w.scales[None],
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=fast_sums,
    )


def linear(x: Scaled, w: Tensor, bias: Tensor) -> Tensor:
    """Return x wᵀ + bias [R, N] in the dtype of w, for x [R, K], w [N, K]."""
    return _product(x, by_rows(w), bias, w.dtype, fast_sums=True)


def input_gradient(d: Scaled, w: Tensor) -> Tensor:
    """Return d w [R, K], the gradient of a layer's input, for its weight w [N, K] and that of its output."""
    # A product of float8 wants both factors with the summed numbers side by side.
    return _product(d, by_columns(w), None, w.dtype, fast_sums=False)


@triton.jit(do_not_specialize=["rows"])
def _float8_largest_kernel(d_scales_ptr, x_scales_ptr, parts_ptr, rows, TOKENS: tl.constexpr):
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    largest = tl.load(d_scales_ptr + row, mask=row < rows, other=0.0)
    largest *= tl.load(x_scales_ptr + row, mask=row < rows, other=0.0)
    tl.store(parts_ptr + tl.program_id(0), tl.max(largest, 0))


@triton.jit(do_not_specialize=["parts", "rows"])
def _float8_transposed_kernel(
    numbers_ptr,  # float8 as bytes, [rows, WIDTH]
    scales_ptr,
    others_ptr,  # the other factor's scales
    parts_ptr,  # the largest products of two scales, of `parts` programs
    largest_ptr,
    words_ptr,  # int32 [WIDTH, padded / 4]: four tokens of a channel side by side
    parts,
    rows,
    padded,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    ODD: tl.constexpr,  # of a shift that is odd, this factor takes one more
):
    largest = tl.zeros((PARTS,), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        largest = tl.maximum(largest, tl.load(parts_ptr + part, mask=part < parts, other=0.0))
    largest = tl.maximum(tl.max(largest, 0), 1e-37)
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(largest_ptr, largest if ODD else 1.0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    word = tl.program_id(1) * (TOKENS // 4) + tl.arange(0, TOKENS // 4)
    words = tl.zeros((TOKENS // 4, COLUMNS), tl.int32)
    for part in tl.static_range(4):
        row = 4 * word + part
        inside = (row[:, None] < rows) & (column[None] < WIDTH)
        place = row[:, None].to(tl.int64) * WIDTH + column[None]
        x = tl.load(numbers_ptr + place, mask=inside, other=0)
        weight = tl.load(scales_ptr + row, mask=row < rows, other=0.0)
        weight *= tl.load(others_ptr + row, mask=row < rows, other=0.0)
        shift = 127 - ((weight / largest).to(tl.int32, bitcast=True) >> 23)
        weight = ((127 - ((shift + ODD) >> 1)) << 23).to(tl.float32, bitcast=True).to(tl.float16)
        x = x.to(tl.float8e4nv, bitcast=True).to(tl.float16) * weight[:, None]
        words |= x.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32) << (8 * part)
    inside = (column[:, None] < WIDTH) & (word[None] < padded // 4)
    place = column[:, None].to(tl.int64) * (padded // 4) + word[None]
    tl.store(words_ptr + place, tl.trans(words), mask=inside)


def _largest(d: Scaled, x: Scaled) -> Tensor:
    """Return the largest products of a token's two scales, one of each LARGEST tokens, float32."""
    tokens, warps = LARGEST
    parts = torch.empty(triton.cdiv(len(d.scales), tokens), device=d.scales.device, dtype=torch.float32)
    _float8_largest_kernel[(len(parts),)](
        d.scales, x.scales, parts, len(d.scales), TOKENS=tokens, num_warps=warps
    )
    return parts


def _transposed(x: Scaled, others: Tensor, parts: Tensor, *, is_odd: bool) -> tuple[Tensor, Tensor]:
    """Return a factor [R, K] transposed, float8 [K, R with zeros up to a multiple of PADDED], and its scale.

    `others` are the other factor's scales, `parts` is `_largest` of both; `is_odd` is true of one of the two.
    """
    rows, width = x.numbers.shape
    tokens, columns, warps = TRANSPOSED
    padded = triton.cdiv(rows, PADDED) * PADDED
    words = torch.empty(width, padded // 4, device=parts.device, dtype=torch.int32)
    scale = torch.empty(1, device=parts.device, dtype=torch.float32)
    _float8_transposed_kernel[(triton.cdiv(width, columns), triton.cdiv(padded, tokens))](
        x.numbers.view(torch.uint8),
        x.scales,
        others,
        parts,
        scale,
        words,
        len(parts),
        rows,
        padded,
        WIDTH=width,
        TOKENS=tokens,
        COLUMNS=columns,
        PARTS=PARTS,
        ODD=int(is_odd),
        num_warps=warps,
    )
    return words.view(torch.float8_e4m3fn), scale


def weight_gradient(d: Scaled, x: Scaled, dtype: torch.dtype) -> Tensor:
    """Return dᵀ x [N, K] in `dtype`, the gradient of a weight.

    d [R, N] is the gradient of the layer's output, x [R, K] its input, of any number of tokens R; N and K are
    multiples of 16.
    """
    parts = _largest(d, x)
    d_turned, d_scale = _transposed(d, x.scales, parts, is_odd=True)
    x_turned, x_scale = _transposed(x, d.scales, parts, is_odd=False)
    return torch._scaled_mm(
        d_turned, x_turned.T, scale_a=d_scale, scale_b=x_scale, out_dtype=dtype, use_fast_accum=False
    )
