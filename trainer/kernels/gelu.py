"""Linear and GELU (tanh), whose backward pass sums the bias's gradient while it reads.

The mathematics is the first half of `trainer.layers.Mlp`.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

COLUMNS = 256
ROWS = 128  # that one program goes through
WARPS, STAGES = 2, 4


@triton.jit
def _gelu_backward_kernel(
    d_ptr,
    x_ptr,
    dx_ptr,
    sums_ptr,  # [programs, WIDTH]
    rows,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    total = tl.zeros((COLUMNS,), tl.float32)
    first = tl.program_id(1).to(tl.int64) * ROWS
    for r in tl.range(0, ROWS, num_stages=STAGES):
        mask = inside & (tl.zeros((COLUMNS,), tl.int64) + (first + r) < rows)
        place = (first + r) * WIDTH + column
        x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
        d = tl.load(d_ptr + place, mask=mask, other=0.0).to(tl.float32)
        # tanh(u) = 1 - 2 / (exp(2u) + 1), with u = sqrt(2 / pi) (x + 0.044715 x^3)
        u = 0.7978845608028654 * x * (1.0 + 0.044715 * x * x)
        t = 1.0 - 2.0 / (tl.exp(2.0 * u) + 1.0)
        slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
        d *= 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope
        total += d
        tl.store(dx_ptr + place, d.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * WIDTH + column, total, mask=inside)


@triton_op("vidcurate::gelu_backward", mutates_args={})
def _gelu_backward(d: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return dx like `x` [N, W], and its float32 sum over the rows [W]."""
    rows, width = x.shape
    dx = torch.empty_like(x)
    programs = triton.cdiv(rows, ROWS)
    sums = torch.empty(programs, width, device=x.device, dtype=torch.float32)
    wrap_triton(_gelu_backward_kernel)[(triton.cdiv(width, COLUMNS), programs)](
        d, x, dx, sums, rows, WIDTH=width, COLUMNS=COLUMNS, ROWS=ROWS, STAGES=STAGES, num_warps=WARPS
    )
    return dx, sums.sum(0)


class _LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        before = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, before)
        return F.gelu(before, approximate="tanh")

    @staticmethod
    def backward(ctx, d):
        x, weight, before = ctx.saved_tensors
        d, sums = _gelu_backward(d.contiguous(), before)
        return d @ weight, d.T @ x, sums.to(weight.dtype)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return gelu(x weightᵀ + bias) for x [..., C]."""
    out: Tensor = _LinearGelu.apply(x.flatten(0, -2), weight, bias)
    return out.view(*x.shape[:-1], -1)
