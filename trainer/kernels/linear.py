"""Linear layers whose backward pass sums the bias's gradient in one reading, with and without a GELU (tanh).

The mathematics is `torch.nn.Linear`, and the first half of `trainer.layers.Mlp`.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

COLUMNS = 256
ROWS = 128  # that one program goes through
WARPS, STAGES = 2, 4


@triton.jit
def _backward_kernel(
    d_ptr,
    x_ptr,  # what went into the GELU
    dx_ptr,
    sums_ptr,  # [programs, WIDTH]
    rows,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    GELU: tl.constexpr,
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    total = tl.zeros((COLUMNS,), tl.float32)
    first = tl.program_id(1).to(tl.int64) * ROWS
    for r in tl.range(0, ROWS, num_stages=STAGES):
        mask = inside & (tl.zeros((COLUMNS,), tl.int64) + (first + r) < rows)
        place = (first + r) * WIDTH + column
        d = tl.load(d_ptr + place, mask=mask, other=0.0).to(tl.float32)
        if GELU:
            x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
            # tanh(u) = 1 - 2 / (exp(2u) + 1), with u = sqrt(2 / pi) (x + 0.044715 x^3)
            u = 0.7978845608028654 * x * (1.0 + 0.044715 * x * x)
            t = 1.0 - 2.0 / (tl.exp(2.0 * u) + 1.0)
            slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
            d *= 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope
            tl.store(dx_ptr + place, d.to(dx_ptr.dtype.element_ty), mask=mask)
        total += d
    tl.store(sums_ptr + tl.program_id(1).to(tl.int64) * WIDTH + column, total, mask=inside)


def _backward(d: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gradient before the GELU (without one: `d`) [N, W], and its sum over the rows [W]."""
    rows, width = d.shape
    dx = d if before is None else torch.empty_like(d)
    programs = triton.cdiv(rows, ROWS)
    sums = torch.empty(programs, width, device=d.device, dtype=torch.float32)
    _backward_kernel[(triton.cdiv(width, COLUMNS), programs)](
        d,
        d if before is None else before,
        dx,
        sums,
        rows,
        WIDTH=width,
        COLUMNS=COLUMNS,
        ROWS=ROWS,
        STAGES=STAGES,
        GELU=before is not None,
        num_warps=WARPS,
    )
    return dx, sums.sum(0).to(d.dtype)


def _products(
    needed: tuple[bool, ...], d: Tensor, dbias: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, weight and bias that are needed."""
    return d @ weight if needed[0] else None, d.T @ x if needed[1] else None, dbias if needed[2] else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, d):
        x, weight = ctx.saved_tensors
        return _products(ctx.needs_input_grad, *_backward(d.contiguous(), None), x, weight)


class _LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        before = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, before)
        return F.gelu(before, approximate="tanh")

    @staticmethod
    def backward(ctx, d):
        x, weight, before = ctx.saved_tensors
        return _products(ctx.needs_input_grad, *_backward(d.contiguous(), before), x, weight)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """Return x weightᵀ + bias for x [..., C]."""
    out: Tensor = _Linear.apply(x.flatten(0, -2), layer.weight, layer.bias)
    return out.view(*x.shape[:-1], -1)


def linear_gelu(x: Tensor, layer: nn.Linear) -> Tensor:
    """Return gelu(x weightᵀ + bias) for x [..., C]."""
    out: Tensor = _LinearGelu.apply(x.flatten(0, -2), layer.weight, layer.bias)
    return out.view(*x.shape[:-1], -1)
