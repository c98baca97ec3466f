"""What the backward pass of a linear layer and of a GELU (tanh) does beside the products, in one reading.

The mathematics is that of `torch.nn.Linear`'s bias, and of the first half of `trainer.layers.Mlp`.
"""

from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.gelu import parts
from trainer.kernels.sums import add_up

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
