"""GroupNorm and SiLU over rows of channels, in one pass, from given statistics.

The rows are those of `trainer.model.kernels.residual_sum`, which gathers the statistics. Norm and SiLU are
one pass; it writes the zeros around the rows that the next convolution asks for. A convolution's bias is
never added in a pass of its own: the sums leave it out, and `normalize` moves the mean by it.
`torch.nn.functional.group_norm` and `silu` are the readable twins.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from trainer.model.kernels.residual_sum import Statistics, tile_of

APPLY_TILE, APPLY_TURNS, APPLY_WARPS = 2048, 1, 4  # numbers of a turn (rows x columns), turns, warps
TILES = 256  # tiles that the merge reads at once


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
    tile = tile_of(width, APPLY_TILE)
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
