"""First convolution and attention softmax of a picture encoder, as Triton kernels.

The first convolution of a VAE reads three channels, which no tensor-core kernel of a library takes without
copies; `first_conv` reads the pixels themselves (bytes too) and gathers the statistics of the next norm.
Attention with one head of 512 channels is past the widths of the fused kernels; `softmax_rows` is the pass
between its two matmuls.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model.kernels.residual_sum import Statistics, empty_statistics, store_statistics, welford

TAPS = 32  # 3 x 3 x 3 numbers of a window, and zeros
FIRST_TILE, FIRST_TURNS, FIRST_WARPS = 2048, 16, 2  # numbers of a turn (rows x columns), turns, warps
SOFTMAX_NUMBERS = 1024  # of one row, that one warp holds


@triton.jit
def _first_conv_kernel(
    pixels_ptr,  # [N, 3, height, width]
    weight_ptr,  # [TAPS, WIDTH]
    out_ptr,  # [N, height width, WIDTH]
    parts_ptr,
    height,
    width,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TURNS: tl.constexpr,
    TAPS: tl.constexpr,
    BYTES: tl.constexpr,
):
    tile = tl.program_id(0)
    sample = tl.program_id(1).to(tl.int64)
    rows = height * width
    pixels_ptr += sample * 3 * rows
    out_ptr += sample * rows * WIDTH
    column = tl.arange(0, COLUMNS)
    own = column < WIDTH
    tap = tl.arange(0, TAPS)
    channel = tap // 9
    up = (tap % 9) // 3 - 1
    left = tap % 3 - 1
    weight = tl.load(weight_ptr + tap[:, None] * WIDTH + column[None], mask=own[None], other=0.0)
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    counts = tl.zeros((ROWS,), tl.float32)
    for turn in range(TURNS):
        row = (tile * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        y = (row // width)[:, None] + up[None]
        x = (row % width)[:, None] + left[None]
        real = (y >= 0) & (y < height) & (x >= 0) & (x < width) & (row < rows)[:, None] & (channel < 3)[None]
        value = tl.load(pixels_ptr + channel[None] * rows + y * width + x, mask=real, other=0).to(tl.float32)
        if BYTES:
            value = value / 127.5 - 1.0
        value = tl.where(real, value, 0.0).to(weight.dtype)
        made = tl.dot(value, weight, input_precision="ieee").to(out_ptr.dtype.element_ty)
        inside = (row < rows)[:, None] & own[None]
        tl.store(out_ptr + row[:, None] * WIDTH + column[None], made, mask=inside)
        mean, square = welford(mean, square, made.to(tl.float32), turn, row < rows)
        counts += tl.where(row < rows, 1.0, 0.0)
    part = sample * tl.num_programs(0) + tile
    store_statistics(parts_ptr, part, mean, square, counts, column, WIDTH)


def first_conv(pixels: Tensor, weight: Tensor) -> tuple[Tensor, Statistics]:
    """Return a 3 x 3 convolution of `pixels` without its bias, [N, H W, C], and its statistics.

    `pixels` [N, 3, H, W] are uint8 (which become [-1, 1]) or float; `weight` is [C, 3, 3, 3]. Pixels are
    rounded to the weights' dtype, sums are float32, the result is in the weights' dtype. C is 256 at most.
    """
    samples, _, height, width = pixels.shape
    channels = weight.shape[0]
    pixels = pixels.contiguous()
    taps = weight.new_zeros(TAPS, channels)
    taps[:27] = weight.reshape(channels, 27).t()
    out = torch.empty(samples, height * width, channels, device=pixels.device, dtype=weight.dtype)
    columns = max(16, triton.next_power_of_2(channels))
    rows = max(16, FIRST_TILE // columns)
    made = empty_statistics(samples, height * width, channels, rows * FIRST_TURNS, pixels.device)
    _first_conv_kernel[(made.parts.shape[1], samples)](
        pixels,
        taps,
        out,
        made.parts,
        height,
        width,
        WIDTH=channels,
        COLUMNS=columns,
        ROWS=rows,
        TURNS=FIRST_TURNS,
        TAPS=TAPS,
        BYTES=pixels.dtype == torch.uint8,
        num_warps=FIRST_WARPS,
    )
    return out, made


@triton.jit
def _softmax_kernel(scores_ptr, out_ptr, columns, keys, scale, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, COLUMNS)
    value = tl.load(scores_ptr + row + column, mask=column < keys, other=-float("inf")) * scale
    value = tl.exp(value - tl.max(value, 0))
    value = value / tl.sum(value, 0)
    tl.store(out_ptr + row + column, value.to(out_ptr.dtype.element_ty), mask=column < columns)


def softmax_rows(scores: Tensor, keys: int, scale: float, dtype: torch.dtype) -> Tensor:
    """Return softmax(scale · scores) over the first `keys` of the last dimension, zeros behind, in `dtype`.

    `scores` is contiguous float32. A program holds a whole row: 65,536 numbers at most.
    """
    columns = scores.shape[-1]
    block = triton.next_power_of_2(columns)
    out = torch.empty(scores.shape, device=scores.device, dtype=dtype)
    warps = min(32, max(1, triton.next_power_of_2(block // SOFTMAX_NUMBERS)))
    _softmax_kernel[(scores.numel() // columns,)](
        scores, out, columns, keys, scale, COLUMNS=block, num_warps=warps
    )
    return out
