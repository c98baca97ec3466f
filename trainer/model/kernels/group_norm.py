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

TILE, TURNS, WARPS = 2048, 32, 4  # of a program that gathers: numbers of a turn (rows x columns), and turns
APPLY_TILE, APPLY_TURNS, APPLY_WARPS = 2048, 1, 4
TILES = 256  # tiles that the merge reads at once


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


@triton.jit
def _merge_kernel(
    parts_ptr,  # [N, tiles, 2, WIDTH]
    weight_ptr,
    beta_ptr,
    bias_ptr,  # [WIDTH]
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
        bias = tl.load(bias_ptr + column, mask=own, other=0.0).to(tl.float32)
    total = tl.zeros((TILES, COLUMNS), tl.float32)
    for start in range(0, tiles, TILES):
        tile = start + tl.arange(0, TILES)
        inside = (tile[:, None] < tiles) & own[None]
        count = tl.minimum(rows - tile * rows_per_tile, rows_per_tile).to(tl.float32)[:, None]
        middle = tl.load(parts_ptr + tile[:, None] * 2 * WIDTH + column[None], mask=inside, other=0.0)
        total += tl.where(inside, (middle + bias[None]) * count, 0.0)
    size = rows * 1.0 * SIZE
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
    place,  # rows of a moment
    out_step,  # from a sample to the next
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TURNS: tl.constexpr,
    SILU: tl.constexpr,
    MOMENTS: tl.constexpr,
):
    tile = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    x_ptr += sample * rows * WIDTH
    out_ptr += sample * out_step
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
        if MOMENTS:
            moment = row // place
            row += moment * place * (tl.num_programs(1) - 1)
        tl.store(out_ptr + row[:, None] * WIDTH + column[None], value, mask=written)


def _tile(width: int, numbers: int) -> dict[str, int]:
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
    tile = _tile(width, TILE)
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
    tile = _tile(width, APPLY_TILE)
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
        num_warps=APPLY_WARPS,
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
    place: int = 0,
    silu: bool = True,
) -> Tensor:
    """Return SiLU(norm(x + bias)) between rows of zeros: [N, front + P + back, C].

    `x` is contiguous [N, P, C], `found` its statistics (without the bias), `bias` [C]. With `place`, the
    rows of a moment, moments come first: [P / place N, place, C].
    """
    samples, rows, width = x.shape
    tile = _tile(width, APPLY_TILE)
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
    out = x.new_empty((samples, padded, width) if place == 0 else (samples * rows // place, place, width))
    grid = (triton.cdiv(padded, tile["ROWS"] * APPLY_TURNS), samples)
    _apply_kernel[grid](
        x,
        table,
        out,
        rows,
        padded,
        front,
        place,
        (place or padded) * width,
        **tile,
        TURNS=APPLY_TURNS,
        SILU=silu,
        MOMENTS=place > 0,
        num_warps=APPLY_WARPS,
    )
    return out
