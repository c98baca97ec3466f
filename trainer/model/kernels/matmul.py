"""Matmuls of a linear layer, forward and backward, by the fastest implementation.

torch takes the first algorithm that cuBLAS proposes, in little room; for the gradients of weights, where the
tokens are summed, another one is up to 15 % faster. And cuBLASLt can apply a GELU (tanh), or its derivative,
before a product leaves the chip. So the first call with new sizes times torch's way and cuBLASLt's, and keeps
the fastest for the process; `news` tells what was found. Where cuBLASLt cannot, torch does it. A factor that
comes as float8 goes into a product of float8 (`trainer.model.kernels.float8`).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.kernels import float8
from trainer.model.kernels.autotune import milliseconds
from trainer.model.kernels.cublaslt import Given, Plan, Product, takes
from trainer.model.kernels.float8 import Scaled
from trainer.model.kernels.mlp import bias_gradient, gelu_backward, gelu_backward_by_rows, gelu_by_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The milliseconds of a product by torch and by the best of cuBLASLt's algorithms.

    Both are None where they could not be measured, and `kept_out` says why.
    """

    product: Product
    torch_ms: float | None = None
    cublaslt_ms: float | None = None  # None also where it has none
    kept_out: str = ""

    def facts(self) -> dict[str, Any]:
        """Return it as the event `product_kernel` has it."""
        times = {"torch_ms": self.torch_ms, "cublaslt_ms": self.cublaslt_ms}
        known = {name: round(value, 4) for name, value in times.items() if value is not None}
        kernel = "cublaslt" if self.is_taken else "torch"
        return asdict(self.product) | {"kernel": kernel} | known | {"kept_out": self.kept_out}

    @property
    def is_taken(self) -> bool:
        """Whether cuBLASLt's is the faster."""
        return self.torch_ms is not None and self.cublaslt_ms is not None and self.cublaslt_ms < self.torch_ms


_plans: dict[tuple[int, Product], Plan | None] = {}
_unreported: list[Found] = []


def news() -> list[Found]:
    """Return what was found since this was last asked."""
    reported = list(_unreported)
    _unreported.clear()
    return reported


def _times(plan: Plan, given: Given, by_torch: Callable[[], object]) -> list[float]:
    """Return the milliseconds of torch's way and of each of the plan's algorithms."""
    product, fallback = plan.product, torch.empty_like(given.d)
    aux = torch.empty_like(given.d) if product.epilogue == "gelu" else given.aux

    def way(number: int) -> Callable[[], object]:
        def run() -> None:
            plan.best = number
            plan.run(given._replace(d=fallback, aux=aux))
            if product.epilogue == "gelu backward":
                bias_gradient(fallback)  # which is part of torch's way

        return run

    return milliseconds([by_torch, *map(way, range(plan.proposals))])


def _chosen(product: Product, device: int, given: Given, by_torch: Callable[[], object]) -> Plan | None:
    """Return the plan with its fastest algorithm, None where torch's way is as fast."""
    try:
        plan = Plan(product, device)
        usual, *others = _times(plan, given, by_torch)
    except RuntimeError as error:  # the library's, or there is no room for a second result
        _unreported.append(Found(product=product, kept_out=str(error).partition("\n")[0][:200]))
        return None
    found = Found(product=product, torch_ms=usual, cublaslt_ms=min(others, default=None))
    _unreported.append(found)
    if not found.is_taken:
        return None
    plan.best = others.index(min(others))
    return plan


def _write(product: Product, given: Given, by_torch: Callable[[], object]) -> bool:
    """Write d, and aux for a GELU; return False, with nothing written, where torch's way is to be taken."""
    if not takes(given):
        return False
    device = given.x.device.index
    if (device, product) not in _plans:
        _plans[device, product] = _chosen(product, device, given, by_torch)
    plan = _plans[device, product]
    if plan is not None:
        plan.run(given)
    return plan is not None


def linear(x: Tensor | Scaled, w: Tensor, bias: Tensor) -> Tensor:
    """Return x wᵀ + bias [..., N], for x [..., K], w [N, K]."""
    if isinstance(x, Scaled):
        return float8.linear(x, w, bias)
    rows = x.flatten(0, -2)
    out = x.new_empty(*x.shape[:-1], w.shape[0])
    product = Product("linear", len(rows), w.shape[0], w.shape[1], "bias")
    given = Given(rows, w, out.flatten(0, -2), bias)
    return out if _write(product, given, lambda: F.linear(rows, w, bias)) else F.linear(x, w, bias)


def linear_gelu(x: Tensor | Scaled, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | Scaled]:
    """Return x wᵀ + bias [..., N] and its GELU (tanh), as float8 if x is; for x [..., K], w [N, K]."""
    if isinstance(x, Scaled):
        before = float8.linear(x, w, bias)
        return before, gelu_by_rows(before)
    rows = x.flatten(0, -2)
    before, after = (x.new_empty(*x.shape[:-1], w.shape[0]) for _ in range(2))

    def by_torch() -> tuple[Tensor, Tensor]:
        before = F.linear(x, w, bias)
        return before, F.gelu(before, approximate="tanh")

    product = Product("linear", len(rows), w.shape[0], w.shape[1], "gelu")
    given = Given(rows, w, after.flatten(0, -2), bias, before.flatten(0, -2))
    return (before, after) if _write(product, given, by_torch) else by_torch()


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

    def by_torch() -> tuple[Tensor, Tensor, Tensor]:
        return gelu_backward(d @ w, before, after)

    if after is None:  # one kernel makes all three
        return by_torch()
    rows, found = d.flatten(0, -2), torch.empty_like(before)
    product = Product("input", len(rows), w.shape[1], w.shape[0], "gelu backward")
    given = Given(rows, w, found.flatten(0, -2), aux=before.flatten(0, -2))
    return (found, bias_gradient(found), after) if _write(product, given, by_torch) else by_torch()


def input_gradient(d: Tensor | Scaled, w: Tensor) -> Tensor:
    """Return d w [..., K], the gradient of the input of a linear layer w [N, K] for that of its output."""
    if isinstance(d, Scaled):
        return float8.input_gradient(d, w)
    rows = d.flatten(0, -2)
    found = d.new_empty(*d.shape[:-1], w.shape[1])
    product = Product("input", len(rows), w.shape[1], w.shape[0])
    return found if _write(product, Given(rows, w, found.flatten(0, -2)), lambda: rows @ w) else d @ w


def add_input_gradient(into: Tensor, d: Tensor, w: Tensor) -> None:
    """Add d w to `into` [..., K]."""
    rows, sums = d.flatten(0, -2), into.flatten(0, -2)
    product = Product("input", len(rows), w.shape[1], w.shape[0], adds=True)
    if not _write(product, Given(rows, w, sums), lambda: torch.addmm(sums, rows, w)):
        sums.addmm_(rows, w)


def weight_gradient(d: Tensor | Scaled, x: Tensor | Scaled, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return dᵀ x [N, K], the gradient of a weight, for the layer's input x and the gradient d [..., N].

    `dtype` is the result's for factors in float8; else the result has that of `d`.
    """
    if isinstance(d, Scaled):
        assert isinstance(x, Scaled)
        return float8.weight_gradient(d, x, dtype)
    assert not isinstance(x, Scaled)
    rows, given = d.flatten(0, -2), x.flatten(0, -2)
    found = d.new_empty(rows.shape[1], given.shape[1])
    product = Product("weight", rows.shape[1], given.shape[1], len(rows))
    written = _write(product, Given(rows, given, found), lambda: rows.T @ given)
    return found if written else rows.T @ given
