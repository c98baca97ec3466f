"""Matmuls of a linear layer, both passes, in bfloat16 by torch or in float8.

A factor that comes as float8 goes into a float8 matmul (`trainer.model.kernels.float8`); torch computes all
others, with the GELU's gradient in a kernel that also sums the bias's (`trainer.model.kernels.mlp`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.kernels import float8
from trainer.model.kernels.float8 import Scaled
from trainer.model.kernels.mlp import gelu_backward, gelu_backward_by_rows, gelu_by_rows


def linear(x: Tensor | Scaled, w: Tensor, bias: Tensor) -> Tensor:
    """Return x wᵀ + bias [..., N], for x [..., K], w [N, K]."""
    return float8.linear(x, w, bias) if isinstance(x, Scaled) else F.linear(x, w, bias)


def linear_gelu(x: Tensor | Scaled, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | Scaled]:
    """Return x wᵀ + bias [..., N] and its GELU (tanh), as float8 if x is; for x [..., K], w [N, K]."""
    before = linear(x, w, bias)
    return before, gelu_by_rows(before) if isinstance(x, Scaled) else F.gelu(before, approximate="tanh")


def linear_gelu_backward(
    d: Tensor | Scaled, w: Tensor, before: Tensor, after: Tensor | Scaled | None
) -> tuple[Tensor | Scaled, Tensor, Tensor | Scaled]:
    """Return the gradient before a GELU [..., N], its sum over the rows [N], and the GELU's output.

    `d` [..., K] is the gradient of the output of the linear layer behind it, whose weight is w [K, N]. Where
    `after` is not given it is made again. Gradient and `after` are float8 if `d` is.
    """
    if isinstance(d, Scaled):
        assert after is None or isinstance(after, Scaled)
        return gelu_backward_by_rows(float8.input_gradient(d, w), before, after)
    assert not isinstance(after, Scaled)
    return gelu_backward(d @ w, before, after)


def input_gradient(d: Tensor | Scaled, w: Tensor) -> Tensor:
    """Return d w [..., K], the gradient of the input of a linear layer w [N, K] for that of its output."""
    return float8.input_gradient(d, w) if isinstance(d, Scaled) else d @ w


def add_input_gradient(into: Tensor, d: Tensor, w: Tensor) -> None:
    """Add d w to `into` [..., K], contiguous."""
    into.flatten(0, -2).addmm_(d.flatten(0, -2), w)


def weight_gradient(d: Tensor | Scaled, x: Tensor | Scaled, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return dᵀ x [N, K], the gradient of a weight, for the layer's input x and the gradient d [..., N].

    `dtype` is the result's for factors in float8; else the result has that of `d`.
    """
    if isinstance(d, Scaled):
        assert isinstance(x, Scaled)
        return float8.weight_gradient(d, x, dtype)
    assert not isinstance(x, Scaled)
    return d.flatten(0, -2).T @ x.flatten(0, -2)
