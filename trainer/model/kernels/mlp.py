"""GELU (tanh) kernels, forward and backward, with float8 output for matmuls.

The mathematics is that of the first half of `trainer.model.layers.Mlp`. The backward pass without float8
is in `trainer.model.kernels.mlp`.
"""

from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels import float8
from trainer.model.kernels.float8 import Scaled, store_scaled
from trainer.model.kernels.tiles import add_up, load_row, store_row

WARPS = 8
BACKWARD_ROWS = (32, 8, 1)  # rows whose gradients one program adds up, warps, and pipeline stages


@triton.jit
def parts(x):
    """Return half of 1 + tanh(u), and the GELU's slope, of float32 x."""
    # tanh(u) = 1 - 2 / (exp(2u) + 1), with u = sqrt(2 / pi) (x + 0.044715 x^3)
    u = 0.7978845608028654 * x * (1.0 + 0.044715 * x * x)
    t = 1.0 - 2.0 / (tl.exp(2.0 * u) + 1.0)
    half = 0.5 * (1.0 + t)
    rise = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
    return half, half + 0.5 * x * (1.0 - t * t) * rise


@triton.jit
def quick_parts(x):
    """Return what `parts` does, to some 1e-6, in half the instructions: for results that become float8."""
    square = x * x
    # Half of 1 + tanh(u) is 1 / (1 + exp(-2u)). rsqrt, squared, is a reciprocal in two instructions.
    root = tl.rsqrt(1.0 + tl.exp2(x * (-2.3022081982 - 0.1029432396 * square)))
    half = root * root
    return half, half + x * (half - half * half) * (1.5957691216 + 0.2140644478 * square)


@triton.jit
def _gelu_kernel(
    before_ptr, numbers_ptr, scales_ptr, WIDTH: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr
):
    line = tl.program_id(0).to(tl.int64)
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    x1, x2 = load_row(before_ptr + line * WIDTH, i1, i2, m2)
    half1, _slope1 = quick_parts(x1)
    half2, _slope2 = quick_parts(x2)
    store_scaled(numbers_ptr, scales_ptr, line, x1 * half1, x2 * half2, i1, i2, m2, WIDTH)


@triton.jit
def _gelu_backward_rows_kernel(
    d_ptr,
    before_ptr,
    dx_ptr,
    dx_scales_ptr,
    after_ptr,
    after_scales_ptr,
    sums_ptr,  # [programs, WIDTH]
    rows,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    AFTER: tl.constexpr,
):
    i1 = tl.arange(0, FIRST)
    i2 = FIRST + tl.arange(0, SECOND)
    m2 = i2 < WIDTH
    total1 = tl.zeros((FIRST,), tl.float32)
    total2 = tl.zeros((SECOND,), tl.float32)
    begin = tl.program_id(0).to(tl.int64) * CHUNK
    for number in tl.range(0, tl.minimum(CHUNK, rows - begin), num_stages=STAGES):
        line = begin + number
        x1, x2 = load_row(before_ptr + line * WIDTH, i1, i2, m2)
        d1, d2 = load_row(d_ptr + line * WIDTH, i1, i2, m2)
        half1, slope1 = quick_parts(x1)
        half2, slope2 = quick_parts(x2)
        if AFTER:
            store_scaled(after_ptr, after_scales_ptr, line, x1 * half1, x2 * half2, i1, i2, m2, WIDTH)
        d1 *= slope1
        d2 *= slope2
        total1 += d1
        total2 += d2
        store_scaled(dx_ptr, dx_scales_ptr, line, d1, d2, i1, i2, m2, WIDTH)
    store_row(sums_ptr + tl.program_id(0).to(tl.int64) * WIDTH, total1, total2, i1, i2, m2)


def gelu_by_rows(before: Tensor) -> Scaled:
    """Return gelu(before) as float8, for contiguous `before` [..., W]."""
    width = before.shape[-1]
    made = float8.room(before.numel() // width, width, before.device)
    _gelu_kernel[(len(made.scales),)](before, *made, **float8.columns(width), num_warps=WARPS)
    return made


def gelu_backward_by_rows(d: Tensor, before: Tensor, after: Scaled | None) -> tuple[Scaled, Tensor, Scaled]:
    """Return the gradient before a GELU as float8, its sum over the rows [W], and gelu(before) as float8.

    `d` is the gradient of the GELU's output; it and `before` are contiguous [..., W]. The last is `after`
    itself; where that is not given it is made again in the same pass.
    """
    width = before.shape[-1]
    rows = before.numel() // width
    dx = float8.room(rows, width, before.device)
    kept = after if after is not None else float8.room(rows, width, before.device)
    chunk, warps, stages = BACKWARD_ROWS
    programs = triton.cdiv(rows, chunk)
    sums = torch.empty(1, programs, width, device=d.device, dtype=torch.float32)
    _gelu_backward_rows_kernel[(programs,)](
        d,
        before,
        *dx,
        *kept,
        sums,
        rows,
        **float8.columns(width),
        CHUNK=chunk,
        STAGES=stages,
        AFTER=after is None,
        num_warps=warps,
    )
    return dx, add_up(sums, before.dtype)[0], kept


TILE = (16, 128, 4)  # rows, columns, warps, with a GELU
SUM_TILE = (128, 64, 4)  # without
TILES = 8  # that one program goes through, one below the other


def _name(given) -> str:
    """Return what a profile calls the kernel: it does two things, and a step's budget tells them apart."""
    return "_gelu_backward_kernel" if given.constants["GELU"] else "_bias_gradient_kernel"


@triton.jit(repr=_name)
def _gradient_kernel(
    d_ptr,
    x_ptr,  # what went into the GELU
    dx_ptr,
    after_ptr,  # what came out of it
    sums_ptr,  # [programs, WIDTH]
    rows,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    GELU: tl.constexpr,
    AFTER: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        row = ((tl.program_id(1) * TILES + tile) * ROWS + tl.arange(0, ROWS))[:, None]
        mask = (row < rows) & (column < WIDTH)
        place = row.to(tl.int64) * WIDTH + column
        d = tl.load(d_ptr + place, mask=mask, other=0.0).to(tl.float32)
        if GELU:
            x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
            half, slope = parts(x)
            if AFTER:
                tl.store(after_ptr + place, (x * half).to(after_ptr.dtype.element_ty), mask=mask)
            d *= slope
            tl.store(dx_ptr + place, d.to(dx_ptr.dtype.element_ty), mask=mask)
        total += d
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * WIDTH + column, tl.sum(total, 0), mask=column < WIDTH)


def _sums(d: Tensor, before: Tensor | None, dx: Tensor | None, after: Tensor | None) -> Tensor:
    """Run the kernel over `d` [..., W]; return the sum of the gradient over the rows, [W]."""
    width = d.shape[-1]
    rows = d.numel() // width
    tile_rows, columns, warps = SUM_TILE if before is None else TILE
    programs = triton.cdiv(rows, tile_rows * TILES)
    sums = torch.empty(1, programs, width, device=d.device, dtype=torch.float32)
    _gradient_kernel[(triton.cdiv(width, columns), programs)](
        d,
        d if before is None else before,
        d if dx is None else dx,
        d if after is None else after,
        sums,
        rows,
        WIDTH=width,
        ROWS=tile_rows,
        COLUMNS=columns,
        TILES=TILES,
        GELU=before is not None,
        AFTER=after is not None,
        num_warps=warps,
    )
    return add_up(sums, d.dtype)[0]


def bias_gradient(d: Tensor) -> Tensor:
    """Return the gradient [W] of a linear layer's bias for that of its output, contiguous [..., W]."""
    return _sums(d, None, None, None)


def gelu_backward(d: Tensor, before: Tensor, after: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient before the GELU [..., W], its sum over the rows [W], and gelu(before).

    The last is `after` itself; where that is not given it is made again in the same pass.
    """
    dx, made = torch.empty_like(d), None if after is not None else torch.empty_like(d)
    sums = _sums(d, before, dx, made)
    return dx, sums, cast(Tensor, after if made is None else made)
