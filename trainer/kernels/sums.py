"""The second half of a sum over tokens: kernels leave a sum for each of their programs, this adds them up.

In a fixed order, so that the same input gives the same bits. torch's own sum over the first of few dimensions
takes a kernel, one that clears its counters before, and one that casts after.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, NUMBERS, WARPS = 64, 4096, 4  # most rows of a tile, and its numbers


@triton.jit
def _add_up_kernel(
    parts_ptr,  # [groups, count, width]
    out_ptr,  # [groups, width]
    count,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        mask = (row < count) & (column[None] < width)
        total += tl.load(parts_ptr + (group * count + row) * width + column[None], mask=mask, other=0.0)
    total = tl.sum(total, 0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + group * width + column, total, mask=column < width)


def add_up(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sums [G, W], in `dtype`, over the second dimension of contiguous float32 `parts` [G, P, W]."""
    groups, count, width = parts.shape
    rows = min(ROWS, triton.next_power_of_2(count))
    columns = NUMBERS // rows
    out = torch.empty(groups, width, device=parts.device, dtype=dtype)
    _add_up_kernel[(triton.cdiv(width, columns), groups)](
        parts, out, count, width, ROWS=rows, COLUMNS=columns, num_warps=WARPS
    )
    return out
