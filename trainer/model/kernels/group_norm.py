"""GroupNorm with SiLU, residual sum and padding over rows of channels, in as few passes as possible.

A tensor is [N, P, C]: N samples of P positions, the channels of a position side by side (channels_last). A
norm needs its statistics before it can be applied, so it takes two passes: the pass that makes its input (or
reads it, after a convolution) gathers them, and the second applies norm and SiLU and writes the rows with the
zeros around them that the next convolution asks for. Biases of convolutions are never added in a pass of
their own: `statistics` and `add` leave them out, and `normalize` moves the mean by them.

Statistics are Welford's, merged by Chan's formula, in float32: no difference of large sums. The order is
fixed: the same input gives the same bits. `torch.nn.functional.group_norm` and `silu` are the readable twins.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TILE = 4096  # numbers of one turn of a program: ROWS x columns
TURNS, WARPS = 8, 4  # turns of a program that gathers statistics
APPLY_TURNS, APPLY_WARPS = 4, 4
TILES = 256  # tiles that the merge reads at once


class Statistics(NamedTuple):
    """Mean and sum of squared deviations by tile and channel, float32 [N, tiles, 2, C]."""

    parts: Tensor
    rows_per_tile: int


@triton.jit
def welford(mean, square, value, turn, inside):
    """Return mean and sum of squared deviations with one more value where `inside`."""
    delta = value - mean
    new = mean + delta / (turn + 1.0)
    return tl.where(inside, new, mean), tl.where(inside, square + delta * (value - new), square)


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
    bias_ptr,  # float32 [WIDTH]
    out_ptr,
    parts_ptr,  # [N, tiles, 2, WIDTH]
    rows,
    y_step,  # from a sample to the next
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TURNS: tl.constexpr,
    ADD: tl.constexpr,
):
    tile = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    x_ptr += sample * rows * WIDTH
    out_ptr += sample * rows * WIDTH
    y_ptr += sample * y_step
    column = tl.arange(0, COLUMNS)
    if ADD:
        bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0)[None]
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    counts = tl.zeros((ROWS,), tl.float32)
    for turn in range(TURNS):
        row = (tile * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None] < WIDTH)
        place = row[:, None] * WIDTH + column[None]
        value = tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            value += tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) + bias
            rounded = value.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + place, rounded, mask=inside)
            value = rounded.to(tl.float32)
        mean, square = welford(mean, square, value, turn, inside)
        counts += tl.where(row < rows, 1.0, 0.0)
    part = sample * tl.num_programs(0) + tile
    store_statistics(parts_ptr, part, mean, square, counts, column, WIDTH)


@triton.jit
def _add_padded_kernel(
    x_ptr,  # [N, rows, WIDTH]
    y_ptr,
    bias_ptr,  # float32 [WIDTH]
    out_ptr,  # [N, padded rows, WIDTH]
    rows,
    padded_rows,
    front,  # rows of zeros in front
    across,  # columns of a picture; its last row and column are zeros with CORNER
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    CORNER: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    x_ptr += sample * rows * WIDTH
    y_ptr += sample * rows * WIDTH
    out_ptr += sample * padded_rows * WIDTH
    column = tl.arange(0, COLUMNS)
    bias = tl.load(bias_ptr + column, mask=column < WIDTH, other=0.0)[None]
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


@triton.jit
def _merge_kernel(
    parts_ptr,  # [N, tiles, 2, WIDTH]
    weight_ptr,
    beta_ptr,
    bias_ptr,  # float32 [WIDTH]
    table_ptr,  # factor and summand of a channel, float32 [N, 2, WIDTH]
    rows,
    tiles,
    rows_per_tile,
    eps,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,  # channels of a group
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    BIAS: tl.constexpr,
):
    group = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    parts_ptr += sample * tiles * 2 * WIDTH
    number = tl.arange(0, COLUMNS)
    column = group * SIZE + number
    own = number < SIZE
    bias = tl.zeros((COLUMNS,), tl.float32)
    if BIAS:
        bias = tl.load(bias_ptr + column, mask=own, other=0.0)
    total = tl.zeros((TILES, COLUMNS), tl.float32)
    for start in range(0, tiles, TILES):
        tile = start + tl.arange(0, TILES)
        inside = (tile[:, None] < tiles) & own[None]
        count = tl.minimum(rows - tile * rows_per_tile, rows_per_tile).to(tl.float32)[:, None]
        middle = tl.load(parts_ptr + tile[:, None] * 2 * WIDTH + column[None], mask=inside, other=0.0)
        total += tl.where(inside, (middle + bias[None]) * count, 0.0)
    size = rows.to(tl.float32) * SIZE
    mean = tl.sum(tl.sum(total, 0), 0) / size
    total = tl.zeros((TILES, COLUMNS), tl.float32)
    for start in range(0, tiles, TILES):
        tile = start + tl.arange(0, TILES)
        inside = (tile[:, None] < tiles) & own[None]
        count = tl.minimum(rows - tile * rows_per_tile, rows_per_tile).to(tl.float32)[:, None]
        place = parts_ptr + tile[:, None] * 2 * WIDTH + column[None]
        off = tl.load(place, mask=inside, other=0.0) + bias[None] - mean
        spread = tl.load(place + WIDTH, mask=inside, other=0.0)
        total += tl.where(inside, spread + count * off * off, 0.0)
    variance = tl.sum(tl.sum(total, 0), 0) / size
    factor = tl.load(weight_ptr + column, mask=own, other=0.0).to(tl.float32) / tl.sqrt(variance + eps)
    beta = tl.load(beta_ptr + column, mask=own, other=0.0).to(tl.float32)
    table_ptr += sample * 2 * WIDTH
    tl.store(table_ptr + column, factor, mask=own)
    tl.store(table_ptr + WIDTH + column, beta + (bias - mean) * factor, mask=own)


@triton.jit
def _apply_kernel(
    x_ptr,  # [N, rows, WIDTH]
    table_ptr,  # float32 [N, 2, WIDTH]
    out_ptr,  # [N, padded rows, WIDTH]
    rows,
    padded_rows,
    front,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TURNS: tl.constexpr,
    SILU: tl.constexpr,
):
    tile = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    x_ptr += sample * rows * WIDTH
    out_ptr += sample * padded_rows * WIDTH
    column = tl.arange(0, COLUMNS)
    own = column < WIDTH
    factor = tl.load(table_ptr + sample * 2 * WIDTH + column, mask=own, other=0.0)[None]
    summand = tl.load(table_ptr + sample * 2 * WIDTH + WIDTH + column, mask=own, other=0.0)[None]
    for turn in range(TURNS):
        row = (tile * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        source = row - front
        real = ((source >= 0) & (source < rows))[:, None] & own[None]
        value = tl.load(x_ptr + source[:, None] * WIDTH + column[None], mask=real, other=0.0).to(tl.float32)
        value = tl.where(real, value * factor + summand, 0.0)
        if SILU:
            value = value / (1.0 + tl.exp(-value))
        value = value.to(out_ptr.dtype.element_ty)
        written = (row < padded_rows)[:, None] & own[None]
        tl.store(out_ptr + row[:, None] * WIDTH + column[None], value, mask=written)


def _tile(width: int) -> dict[str, int]:
    """Return the kernels' constants for rows of `width` channels."""
    columns = triton.next_power_of_2(width)
    return {"WIDTH": width, "COLUMNS": columns, "ROWS": max(1, TILE // columns)}


def room_for_statistics(samples: int, rows: int, width: int, device: torch.device) -> Statistics:
    """Return unwritten statistics of [samples, rows, width], for a kernel that gathers them."""
    rows_per_tile = _tile(width)["ROWS"] * TURNS
    shape = (samples, triton.cdiv(rows, rows_per_tile), 2, width)
    return Statistics(torch.empty(shape, device=device, dtype=torch.float32), rows_per_tile)


def _gather(x: Tensor, y: Tensor, bias: Tensor, out: Tensor, rows: int, is_sum: bool) -> Statistics:
    samples, _, width = y.shape
    made = room_for_statistics(samples, rows, width, y.device)
    grid = (made.parts.shape[1], samples)
    _add_kernel[grid](
        x,
        y,
        bias,
        out,
        made.parts,
        rows,
        y.stride(0),
        **_tile(width),
        TURNS=TURNS,
        ADD=is_sum,
        num_warps=WARPS,
    )
    return made


def statistics(y: Tensor) -> Statistics:
    """Return the statistics of contiguous `y` [N, P, C]: one pass that reads."""
    return _gather(y, y, y, y, y.shape[1], False)


def add(x: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Statistics]:
    """Return x + y + bias [N, P, C] and its statistics; `bias` is float32 [C].

    `x` is contiguous [N, P, C]; `y` may have more rows, which are left out.
    """
    out = torch.empty_like(x)
    return out, _gather(x, y, bias, out, x.shape[1], True)


def add_in_front(x: Tensor, y: Tensor, bias: Tensor, front: int) -> Tensor:
    """Return `front` rows of zeros, then x + y + bias: [N, front + P, C]."""
    return _add_padded(x, y, bias, x.shape[1] + front, front, 0)


def add_with_corner(x: Tensor, y: Tensor, bias: Tensor, size: Sequence[int]) -> Tensor:
    """Return x + y + bias of pictures of `size` (height, width) with one row and column of zeros behind."""
    height, width = size
    return _add_padded(x, y, bias, (height + 1) * (width + 1), 0, width)


def _add_padded(x: Tensor, y: Tensor, bias: Tensor, padded: int, front: int, across: int) -> Tensor:
    samples, rows, width = x.shape
    out = x.new_empty(samples, padded, width)
    tile = _tile(width)
    grid = (triton.cdiv(padded, tile["ROWS"]), samples)
    _add_padded_kernel[grid](
        x, y, bias, out, rows, padded, front, across, **tile, CORNER=across > 0, num_warps=APPLY_WARPS
    )
    return out


def normalize(
    x: Tensor,
    found: Statistics,
    norm: nn.GroupNorm,
    *,
    bias: Tensor | None = None,
    front: int = 0,
    back: int = 0,
    silu: bool = True,
) -> Tensor:
    """Return SiLU(norm(x + bias)) between rows of zeros: [N, front + P + back, C].

    `x` is contiguous [N, P, C], `found` its statistics (without the bias), `bias` [C] float32.
    """
    samples, rows, width = x.shape
    tile = _tile(width)
    group = width // norm.num_groups
    table = torch.empty(samples, 2, width, device=x.device, dtype=torch.float32)
    tiles = found.parts.shape[1]
    _merge_kernel[(norm.num_groups, samples)](
        found.parts,
        norm.weight,
        norm.bias,
        table if bias is None else bias,
        table,
        rows,
        tiles,
        found.rows_per_tile,
        norm.eps,
        WIDTH=width,
        SIZE=group,
        COLUMNS=triton.next_power_of_2(group),
        TILES=min(TILES, triton.next_power_of_2(tiles)),
        BIAS=bias is not None,
        num_warps=4,
    )
    padded = front + rows + back
    out = x.new_empty(samples, padded, width)
    grid = (triton.cdiv(padded, tile["ROWS"] * APPLY_TURNS), samples)
    _apply_kernel[grid](
        x,
        table,
        out,
        rows,
        padded,
        front,
        **tile,
        TURNS=APPLY_TURNS,
        SILU=silu,
        num_warps=APPLY_WARPS,
    )
    return out
