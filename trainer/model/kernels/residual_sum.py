"""Residual sums, and statistics of the norm that follows, over rows of channels.

A tensor is [N, P, C]: N samples of P positions, the channels of a position side by side (channels_last). The
pass that makes a norm's input (or reads it, after a convolution) also gathers its statistics;
`trainer.model.kernels.group_norm` applies them. Where a strided or causal convolution follows instead, the
sum is written between the zeros that it asks for.

Statistics are Welford's, merged by Chan's formula, in float32: no difference of large sums. The order is
fixed: the same input gives the same bits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, TURNS, WARPS = 2048, 32, 4  # of a program that gathers: numbers of a turn (rows x columns), and turns
PADDED_TILE, PADDED_WARPS = 2048, 4


class Statistics(NamedTuple):
    """Mean and sum of squared deviations by tile and channel, float32 [N, tiles, 2, C]."""

    parts: Tensor
    rows_per_tile: int


@triton.jit
def welford(mean, square, value, turn, inside):
    """Return mean and sum of squared deviations with one more value in the rows that are `inside`."""
    real = tl.where(inside, 1.0, 0.0)
    delta = value - mean
    mean += delta * (real * (1.0 / (turn + 1.0)))[:, None]
    return mean, square + delta * real[:, None] * (value - mean)


@triton.jit
def store_statistics(parts_ptr, part, mean, square, counts, column, WIDTH: tl.constexpr):
    """Store mean and squared deviations over the rows of a tile; row r has `counts[r]` values."""
    weight = counts[:, None]
    total = tl.sum(counts, 0)
    middle = tl.sum(mean * weight, 0) / total
    off = mean - middle[None]
    spread = tl.sum(square + weight * off * off, 0)
    inside = column < WIDTH
    tl.store(parts_ptr + part * 2 * WIDTH + column, middle, mask=inside)
    tl.store(parts_ptr + part * 2 * WIDTH + WIDTH + column, spread, mask=inside)


@triton.jit
def _add_kernel(
    x_ptr,  # [N, rows, WIDTH]
    y_ptr,
    y1_ptr,
    y2_ptr,
    bias_ptr,  # [WIDTH]
    out_ptr,
    parts_ptr,  # [N, tiles, 2, WIDTH]
    rows,
    y_step,  # from a sample to the next
    place,  # rows of a moment
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TURNS: tl.constexpr,
    ADD: tl.constexpr,
    MOMENTS: tl.constexpr,
    STORE: tl.constexpr,
    BIAS: tl.constexpr,
):
    tile = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    x_ptr += sample * rows * WIDTH
    out_ptr += sample * rows * WIDTH
    y_ptr += sample * y_step
    column = tl.arange(0, COLUMNS)
    bias = tl.zeros((COLUMNS,), tl.float32)[None]
    if BIAS:
        bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None]
    if MOMENTS:
        y1_ptr += sample * y_step
        y2_ptr += sample * y_step
        moment_step = place * tl.num_programs(1)
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    counts = tl.zeros((ROWS,), tl.float32)
    for turn in range(TURNS):
        row = (tile * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None] < WIDTH)
        number = row[:, None] * WIDTH + column[None]
        if MOMENTS:
            moment = row // place
            source = (moment * moment_step + row - moment * place)[:, None] * WIDTH + column[None]
            value = tl.load(y_ptr + source, mask=inside, other=0.0).to(tl.float32)
            source -= moment_step * WIDTH
            value += tl.load(y1_ptr + source, mask=inside & (moment > 0)[:, None], other=0.0).to(tl.float32)
            source -= moment_step * WIDTH
            value += tl.load(y2_ptr + source, mask=inside & (moment > 1)[:, None], other=0.0).to(tl.float32)
        else:
            value = tl.load(y_ptr + number, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            value += tl.load(x_ptr + number, mask=inside, other=0.0).to(tl.float32) + bias
        if STORE:
            rounded = value.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + number, rounded, mask=inside)
            value = rounded.to(tl.float32)
        mean, square = welford(mean, square, value, turn, row < rows)
        counts += tl.where(row < rows, 1.0, 0.0)
    part = sample * tl.num_programs(0) + tile
    store_statistics(parts_ptr, part, mean, square, counts, column, WIDTH)


@triton.jit
def _add_padded_kernel(
    x_ptr,  # [N, rows, WIDTH]
    y_ptr,
    bias_ptr,  # [WIDTH]
    out_ptr,  # [N, padded rows, WIDTH]
    rows,
    padded_rows,
    front,  # rows of zeros in front
    across,  # columns of a picture; its last row and column are zeros with CORNER
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    CORNER: tl.constexpr,
    BIAS: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    x_ptr += sample * rows * WIDTH
    y_ptr += sample * rows * WIDTH
    out_ptr += sample * padded_rows * WIDTH
    column = tl.arange(0, COLUMNS)
    bias = tl.zeros((COLUMNS,), tl.float32)[None]
    if BIAS:
        bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if CORNER:
        down = row // (across + 1)
        right = row - down * (across + 1)
        source = down * across + right
        real = (right < across) & (source < rows)
    else:
        source = row - front
        real = source >= 0
    inside = ((row < padded_rows) & real)[:, None] & (column[None] < WIDTH)
    place = source[:, None] * WIDTH + column[None]
    value = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32) + bias
    value = tl.where(inside, value, 0.0).to(out_ptr.dtype.element_ty)
    written = (row < padded_rows)[:, None] & (column[None] < WIDTH)
    tl.store(out_ptr + row[:, None] * WIDTH + column[None], value, mask=written)


def tile_of(width: int, numbers: int) -> dict[str, int]:
    """Return the kernels' constants for rows of `width` channels, `numbers` of them at once."""
    columns = triton.next_power_of_2(width)
    return {"WIDTH": width, "COLUMNS": columns, "ROWS": max(1, numbers // columns)}


def empty_statistics(
    samples: int, rows: int, width: int, rows_per_tile: int, device: torch.device
) -> Statistics:
    """Return unwritten statistics of [samples, rows, width], for a kernel that gathers them."""
    shape = (samples, triton.cdiv(rows, rows_per_tile), 2, width)
    return Statistics(torch.empty(shape, device=device, dtype=torch.float32), rows_per_tile)


def _gather(
    y: Sequence[Tensor], rows: int, *, x: Tensor | None = None, bias: Tensor | None = None, place: int = 0
) -> tuple[Tensor, Statistics]:
    """Return the sum of all, with no sum the only one itself, and its statistics.

    With `place`, y are moments: see `add_moments`.
    """
    width, device = y[0].shape[-1], y[0].device
    samples = y[0].shape[0] if place == 0 else y[0].shape[0] * place // rows
    step = y[0].stride(0) if place == 0 else place * width
    is_sum = x is not None or place > 0
    out = y[0].new_empty(samples, rows, width) if is_sum else y[0]
    tile = tile_of(width, TILE)
    made = empty_statistics(samples, rows, width, tile["ROWS"] * TURNS, device)
    _add_kernel[(made.parts.shape[1], samples)](
        out if x is None else x,
        y[0],
        y[min(1, len(y) - 1)],
        y[min(2, len(y) - 1)],
        out if bias is None else bias,
        out,
        made.parts,
        rows,
        step,
        place,
        **tile,
        TURNS=TURNS,
        ADD=x is not None,
        MOMENTS=place > 0,
        STORE=is_sum,
        BIAS=bias is not None,
        num_warps=WARPS,
    )
    return out, made


def statistics(y: Tensor) -> Statistics:
    """Return the statistics of contiguous `y` [N, P, C]: one pass that reads."""
    return _gather([y], y.shape[1])[1]


def add(x: Tensor, y: Tensor, bias: Tensor | None) -> tuple[Tensor, Statistics]:
    """Return x + y + bias [N, P, C] and its statistics; `bias` is [C] or none.

    `x` is contiguous [N, P, C]; `y` may have more rows, which are left out.
    """
    return _gather([y], x.shape[1], x=x, bias=bias)


def add_moments(
    x: Tensor | None, y: Sequence[Tensor], bias: Tensor | None, rows: int
) -> tuple[Tensor, Statistics]:
    """Return x + bias + a causal convolution's sum over time [N, rows, C], and its statistics.

    y[k] [(T - k) N, P, C], moments first, is what frames give k moments later: `y[0]` at once. There are
    three at most, no more than T. Without `x` and `bias` the sum over time alone.
    """
    return _gather(y, rows, x=x, bias=bias, place=y[0].shape[1])


def add_in_front(x: Tensor, y: Tensor, bias: Tensor | None, front: int) -> Tensor:
    """Return `front` rows of zeros, then x + y + bias: [N, front + P, C]."""
    return _add_padded(x, y, bias, x.shape[1] + front, front, 0)


def add_with_corner(x: Tensor, y: Tensor, bias: Tensor | None, size: Sequence[int]) -> Tensor:
    """Return x + y + bias of pictures of `size` (height, width) with one row and column of zeros behind."""
    height, width = size
    return _add_padded(x, y, bias, (height + 1) * (width + 1), 0, width)


def _add_padded(x: Tensor, y: Tensor, bias: Tensor | None, padded: int, front: int, across: int) -> Tensor:
    samples, rows, width = x.shape
    out = x.new_empty(samples, padded, width)
    tile = tile_of(width, PADDED_TILE)
    grid = (triton.cdiv(padded, tile["ROWS"]), samples)
    _add_padded_kernel[grid](
        x,
        y,
        out if bias is None else bias,
        out,
        rows,
        padded,
        front,
        across,
        **tile,
        CORNER=across > 0,
        BIAS=bias is not None,
        num_warps=PADDED_WARPS,
    )
    return out
