"""Float8 (e4m3) quantisation of rows, and matmuls of a linear layer in float8.

Each row has its own scale. A float8 matmul takes about 0.6 of the time of a bfloat16 one, and keeps 3 bits of
mantissa (the format: Micikevicius et al. 2022, arXiv:2209.05433). A row's scale depends on the row alone:
there is no history to keep, to save or to share, so what a step computes depends on its clips and weights
alone, on any number of ranks. In the forward pass the tensor cores accumulate in their own precision, which
is less than float32; the gradients' matmuls accumulate in float32 (as NVIDIA's Transformer Engine does). The
gradients of weights stay bfloat16 matmuls.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.tiles import load_row, pieces, store_row

WARPS = 2
TILE = 64  # rows and columns of a weight that one program turns over


class Scaled(NamedTuple):
    """A matrix of which row r is `scales[r]` times `numbers[r]`."""

    numbers: Tensor  # float8_e4m3fn [R, K]
    scales: Tensor  # float32 [R]


def room(rows: int, width: int, device: torch.device) -> Scaled:
    """Return a matrix that a kernel fills."""
    numbers = torch.empty(rows, width, device=device, dtype=torch.float8_e4m3fn)
    return Scaled(numbers, torch.empty(rows, device=device, dtype=torch.float32))


@triton.jit
def scale_of(most):
    """Return what brings numbers up to `most` to those of e4m3, whose largest is 448; a zero stays one."""
    return tl.maximum(most, 1e-30) / 448.0


@triton.jit
def store_scaled(numbers_ptr, scales_ptr, line, x1, x2, i1, i2, m2, WIDTH: tl.constexpr):
    """Store a row, float32 with zeros beyond the width, as row number `line` of a float8 matrix."""
    scale = scale_of(tl.maximum(tl.max(tl.abs(x1), 0), tl.max(tl.abs(x2), 0)))
    tl.store(scales_ptr + line, scale)
    store_row(numbers_ptr + line * WIDTH, x1 / scale, x2 / scale, i1, i2, m2)


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
