"""The products of a linear layer are torch's, by whatever algorithm; cuBLASLt's are seen on a GPU only."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed on this platform")

from trainer.model.kernels import cublaslt, matmul
from trainer.model.kernels.cublaslt import Given, Plan, Product

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="cuBLASLt's products need a GPU")
ROWS, IN, OUT = 384, 256, 128
TOLERANCE = 0.01  # relative 2-norm: a result in bfloat16 is rounded by at most 0.004


def _random(*shape: int, device: str = "cpu") -> Tensor:
    generator = torch.Generator(device).manual_seed(sum(shape))
    return torch.randn(*shape, device=device, generator=generator).bfloat16()


def _apart(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _cases(device: str) -> dict[str, tuple[Product, Given, list[Tensor]]]:
    """Return each product that a layer has, its matrices, and what d and aux must be, float32."""
    x, w, bias = (
        _random(ROWS, IN, device=device),
        _random(OUT, IN, device=device),
        _random(OUT, device=device),
    )
    d, before = _random(ROWS, OUT, device=device), _random(ROWS, IN, device=device)
    exact = x.float() @ w.float().T + bias.float()
    back = d.float() @ w.float()
    leaf = before.float().requires_grad_()
    (bent,) = torch.autograd.grad(_gelu(leaf), leaf, back)
    out, like_x = torch.empty_like(d), torch.empty_like(x)
    there = _random(ROWS, IN, device=device)
    return {
        "linear": (Product("linear", ROWS, OUT, IN, "bias"), Given(x, w, out, bias), [exact]),
        "gelu": (
            Product("linear", ROWS, OUT, IN, "gelu"),
            Given(x, w, out, bias, torch.empty_like(d)),
            [_gelu(exact), exact],
        ),
        "input": (Product("input", ROWS, IN, OUT), Given(d, w, like_x), [back]),
        "gelu backward": (
            Product("input", ROWS, IN, OUT, "gelu backward"),
            Given(d, w, like_x, aux=before),
            [bent, before.float()],
        ),
        "added": (
            Product("input", ROWS, IN, OUT, adds=True),
            Given(d, w, there),
            [back + there.float()],
        ),
        "weight": (
            Product("weight", OUT, IN, ROWS),
            Given(d, x, torch.empty_like(w)),
            [d.float().T @ x.float()],
        ),
    }


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["linear", "gelu", "input", "gelu backward", "added", "weight"])
def test_every_algorithm_that_is_proposed_gives_the_product(name: str) -> None:
    product, given, exact = _cases("cuda")[name]
    plan, start = Plan(product, 0), given.d.clone()
    assert plan.proposals
    for number in range(plan.proposals):
        given.d.copy_(start)
        plan.best = number
        plan.run(given)
        for found, wanted in zip((given.d, given.aux), exact, strict=False):
            assert found is not None
            assert _apart(found, wanted) < TOLERANCE, number


@pytest.mark.gpu
@needs_gpu
def test_a_matrix_that_is_not_aligned_goes_to_torch() -> None:
    x, w, bias = (_random(*shape, device="cuda") for shape in ((ROWS, IN), (OUT, IN), (OUT + 1,)))
    assert cublaslt.takes(Given(x, w, x.new_empty(ROWS, OUT), bias[:-1]))
    assert not cublaslt.takes(Given(x, w, x.new_empty(ROWS, OUT), bias[1:]))
    assert torch.equal(matmul.linear(x, w, bias[1:]), F.linear(x, w, bias[1:]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_a_layers_products_are_those_of_torch(device: str) -> None:
    def check(found: Tensor, run: Callable[[], Tensor]) -> None:
        assert _apart(found, run()) < TOLERANCE

    x, w, bias = (
        _random(3, ROWS // 3, IN, device=device),
        _random(OUT, IN, device=device),
        _random(OUT, device=device),
    )
    d = _random(3, ROWS // 3, OUT, device=device)
    check(matmul.linear(x, w, bias), lambda: F.linear(x.float(), w.float(), bias.float()))
    before, after = matmul.linear_gelu(x, w, bias)
    check(before, lambda: F.linear(x.float(), w.float(), bias.float()))
    check(after, lambda: _gelu(F.linear(x.float(), w.float(), bias.float())))
    check(matmul.input_gradient(d, w), lambda: d.float() @ w.float())
    check(matmul.weight_gradient(d, x), lambda: d.float().flatten(0, 1).T @ x.float().flatten(0, 1))
    into = x.clone()
    matmul.add_input_gradient(into, d, w)
    check(into, lambda: x.float() + d.float() @ w.float())


def test_other_numbers_than_bfloat16_are_left_to_torch() -> None:
    x, w = torch.randn(ROWS, IN), torch.randn(OUT, IN)
    assert not cublaslt.takes(Given(x, w, x.new_empty(ROWS, OUT)))
    assert torch.equal(matmul.linear(x, w, w[:, 0].contiguous()), F.linear(x, w, w[:, 0]))
