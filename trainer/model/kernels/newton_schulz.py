"""Newton-Schulz kernels: matmuls of many small matrices that share one shape.

Two kernels make a step of the polynomial x ← a·x + (b·g + c·g²)·x with g = x·xᵀ (Keller Jordan's Muon). The
first computes products z·zᵀ, which are symmetric, so it computes the tiles on and above the diagonal and
stores each one twice. Both add their second term in float32 before they round, which saves the copies that
`torch.baddbmm` makes. The tiles depend on the shape alone, not on the number of matrices as in cuBLAS: a
matrix gets the same bits whatever it is computed with.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tiles(NamedTuple):
    """Rows and columns of a program's tile of the result, numbers summed at once, warps, stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


GRAM = Tiles(128, 128, 64, 8, 3)
TIMES = Tiles(128, 128, 64, 8, 3)
SMALLEST = 16  # dimension of a tile


@triton.jit
def _gram_kernel(
    z_ptr,  # [n, height, depth]
    out_ptr,  # [n, height, height]
    height,
    depth,
    alpha,
    beta,
    ADDS: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    tiles = tl.cdiv(height, ROWS)
    i, j = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    if j < i:
        return
    number = tl.program_id(1).to(tl.int64)
    z_ptr += number * height * depth
    out_ptr += number * height * height
    row, column = i * ROWS + tl.arange(0, ROWS), j * ROWS + tl.arange(0, ROWS)
    place = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, ROWS), tl.float32)
    for start in range(0, depth, DEPTH):
        at = start + place
        left = z_ptr + row[:, None] * depth + at[None]
        right = z_ptr + column[None] * depth + at[:, None]
        if EVEN:
            x, y = tl.load(left), tl.load(right)
        else:
            x = tl.load(left, mask=(row[:, None] < height) & (at[None] < depth), other=0.0)
            y = tl.load(right, mask=(column[None] < height) & (at[:, None] < depth), other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
    total *= alpha
    inside = None if EVEN else (row[:, None] < height) & (column[None] < height)
    if ADDS:  # z is symmetric here, and depth is height
        z = z_ptr + row[:, None] * height + column[None]
        total += beta * tl.load(z, mask=inside).to(tl.float32)
    found = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row[:, None] * height + column[None], found, mask=inside)
    if i != j:
        beyond = None if EVEN else (column[:, None] < height) & (row[None] < height)
        tl.store(out_ptr + column[:, None] * height + row[None], tl.trans(found), mask=beyond)


@triton.jit
def _times_kernel(
    p_ptr,  # [n, height, height]
    x_ptr,  # [n, height, width]
    out_ptr,  # [n, height, width]
    height,
    width,
    beta,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    across = tl.cdiv(width, COLUMNS)
    number = tl.program_id(1).to(tl.int64)
    p_ptr += number * height * height
    x_ptr += number * height * width
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, height, DEPTH):
        at = start + place
        left = p_ptr + row[:, None] * height + at[None]
        right = x_ptr + at[:, None] * width + column[None]
        if EVEN:
            p, x = tl.load(left), tl.load(right)
        else:
            p = tl.load(left, mask=(row[:, None] < height) & (at[None] < height), other=0.0)
            x = tl.load(right, mask=(at[:, None] < height) & (column[None] < width), other=0.0)
        total = tl.dot(p, x, total, input_precision="ieee")
    inside = None if EVEN else (row[:, None] < height) & (column[None] < width)
    offset = row[:, None] * width + column[None]
    total += beta * tl.load(x_ptr + offset, mask=inside).to(tl.float32)
    tl.store(out_ptr + number * height * width + offset, total.to(out_ptr.dtype.element_ty), mask=inside)


def _fitted(tiles: Tiles, *sizes: int) -> Tiles:
    """Return the tiles cut to the smallest power of two that holds all of `sizes`."""
    most = max(SMALLEST, triton.next_power_of_2(max(sizes)))
    return tiles._replace(
        rows=min(tiles.rows, most), columns=min(tiles.columns, most), depth=min(tiles.depth, most)
    )


def gram(z: Tensor, out: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Write alpha·z·zᵀ + beta·z for contiguous z [n, height, depth] to `out` [n, height, height].

    `beta` other than 0 needs symmetric z. `out` must not be z.
    """
    count, height, depth = z.shape
    tiles = _fitted(GRAM, height, depth)
    across = triton.cdiv(height, tiles.rows)
    _gram_kernel[(across * across, count)](
        z,
        out,
        height,
        depth,
        alpha,
        beta,
        ADDS=beta != 0,
        EVEN=height % tiles.rows == 0 and depth % tiles.depth == 0,
        ROWS=tiles.rows,
        DEPTH=tiles.depth,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


def times(p: Tensor, x: Tensor, out: Tensor, *, beta: float) -> None:
    """Write p·x + beta·x for p [n, height, height] and x [n, height, width], all contiguous, to `out`."""
    count, height, width = x.shape
    tiles = _fitted(TIMES, height, width)
    programs = triton.cdiv(height, tiles.rows) * triton.cdiv(width, tiles.columns)
    _times_kernel[(programs, count)](
        p,
        x,
        out,
        height,
        width,
        beta,
        EVEN=height % max(tiles.rows, tiles.depth) == 0 and width % tiles.columns == 0,
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        DEPTH=tiles.depth,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


def orthogonalised(x: Tensor, steps: int, coefficients: tuple[float, float, float]) -> Tensor:
    """Return [n, height, width], height <= width, with singular values near 1.

    x is contiguous with a Frobenius norm of at most 1 a matrix, and is overwritten; the result may lie in
    its memory.
    """
    count, height, _ = x.shape
    a, b, c = coefficients
    squares, other = x.new_empty(2, count, height, height), torch.empty_like(x)
    for _ in range(steps):
        gram(x, squares[0])
        gram(squares[0], squares[1], alpha=c, beta=b)
        times(squares[1], x, other, beta=a)
        x, other = other, x
    return x
