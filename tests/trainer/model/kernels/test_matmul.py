"""A linear layer's matmuls, forward and backward, beside float32 on the same numbers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed on this platform")

from tests.trainer.blocks_for_tests import small_tiles
from trainer.model.kernels import matmul

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
ROWS, IN, OUT = 384, 256, 128
TOLERANCE = 0.01  # relative 2-norm: a result in bfloat16 is rounded by at most 0.004


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        small_tiles(monkeypatch)


def _random(*shape: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(sum(shape))
    return torch.randn(*shape, device=DEVICE, generator=generator).bfloat16()


def _apart(found: Tensor, exact: Tensor) -> float:
    assert found.is_contiguous()  # kernels read the results by rows
    return float((found.float() - exact).norm() / exact.norm())


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def test_a_layers_matmuls_are_those_of_float32() -> None:
    x, w, bias = _random(3, ROWS // 3, IN), _random(OUT, IN), _random(OUT)
    d = _random(3, ROWS // 3, OUT)
    exact = F.linear(x.float(), w.float(), bias.float())
    before, after = matmul.linear_gelu(x, w, bias)
    assert isinstance(after, Tensor)
    into = x.clone()
    matmul.add_input_gradient(into, d, w)
    found = {
        "linear": (matmul.linear(x, w, bias), exact),
        "before the GELU": (before, exact),
        "after": (after, _gelu(exact)),
        "input": (matmul.input_gradient(d, w), d.float() @ w.float()),
        "weight": (matmul.weight_gradient(d, x), d.float().flatten(0, 1).T @ x.float().flatten(0, 1)),
        "added": (into, x.float() + d.float() @ w.float()),
    }
    assert {name: _apart(*pair) < TOLERANCE for name, pair in found.items()} == dict.fromkeys(found, True)


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_gradient_before_a_gelu_is_that_of_float32_with_its_sum(is_kept: bool) -> None:
    d, w, before = _random(3, ROWS // 3, OUT), _random(OUT, IN), _random(3, ROWS // 3, IN)
    leaf = before.float().requires_grad_()
    after = _gelu(leaf)
    (exact,) = torch.autograd.grad(after, leaf, d.float() @ w.float())
    dx, sums, made = matmul.linear_gelu_backward(d, w, before, _gelu(before) if is_kept else None)
    assert isinstance(dx, Tensor)
    assert isinstance(made, Tensor)
    assert _apart(dx, exact) < TOLERANCE
    assert _apart(sums, exact.sum((0, 1))) < TOLERANCE
    assert _apart(made, after.detach()) < TOLERANCE


def test_float32_is_computed_in_float32() -> None:
    x, w = torch.randn(ROWS, IN), torch.randn(OUT, IN)
    assert torch.equal(matmul.linear(x, w, w[:, 0].contiguous()), F.linear(x, w, w[:, 0]))
