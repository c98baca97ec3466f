"""Products of float8: rows keep their own scales, and a block goes through them, forward and backward.

Triton's interpreter rounds to float8 wrongly where the rounding carries into the exponent (127 becomes 64),
so what is compared number by number here lies on float8's grid; numbers between are seen on a GPU.
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed on this platform")

from tests.trainer.blocks_for_tests import random_block, small_tiles
from tests.trainer.shards_for_tests import TINY
from trainer.distributed import parallelize
from trainer.distributed.mesh import ALONE
from trainer.distributed.spec import ParallelSpec
from trainer.model import layers
from trainer.model.kernels import apply, float8, matmul, mlp, qk_norm, requirements
from trainer.model.kernels.float8 import Scaled
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.recipe.recipe import load
from vidcurate.errors import InputError, RecipeError

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32  # the interpreter multiplies bfloat16 wrongly
WIDTH, HEADS = 32, 1
MOST = torch.finfo(torch.float8_e4m3fn).max
ROUNDING = 0.05 if ON_GPU else 0.13  # of the 2-norm, see above; right rounding has 0.026 in each factor


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        small_tiles(monkeypatch)


def _on_grid(rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Return numbers of float8 with MOST in each row, and a power of two for each row."""
    numbers = torch.randn(rows, width).to(torch.float8_e4m3fn).float()
    numbers[:, width // 2] = MOST
    return numbers.to(DEVICE), torch.exp2(torch.randint(-9, 9, (rows,)).float()).to(DEVICE)


def _whole(scaled: Scaled) -> Tensor:
    return scaled.numbers.float() * scaled.scales[:, None]


def _are_powers_of_two(scales: Tensor) -> bool:
    return bool((torch.frexp(scales).mantissa == 0.5).all())


def _apart(found: Tensor, exact: Tensor) -> float:
    return float((found.float() - exact.float()).norm() / exact.float().norm())


@pytest.mark.parametrize("width", [64, 72, 1152, 4608])
def test_a_row_on_the_grid_is_kept_to_the_bit_with_the_scale_that_it_has(width: int) -> None:
    numbers, scales = _on_grid(5, width)
    made = float8.by_rows((numbers * scales[:, None]).to(DTYPE))
    assert torch.equal(made.numbers.float(), numbers)
    assert torch.equal(made.scales, scales)


def test_a_row_of_zeros_stays_zero_and_one_large_row_changes_no_other() -> None:
    numbers, scales = _on_grid(4, 80)
    numbers[1], scales[2] = 0.0, 2.0**40
    made = float8.by_rows((numbers * scales[:, None]).to(DTYPE))
    assert torch.equal(_whole(made), numbers * scales[:, None])


def test_products_are_those_of_the_rounded_numbers() -> None:
    torch.manual_seed(0)
    (x, x_scales), (w, w_scales) = _on_grid(48, 64), _on_grid(32, 64)
    x8, weight = Scaled(x.to(torch.float8_e4m3fn), x_scales), (w * w_scales[:, None]).to(DTYPE)
    bias = torch.randn(32, device=DEVICE).to(DTYPE)
    exact = (x * x_scales[:, None]).double() @ weight.double().T + bias.double()
    assert _apart(matmul.linear(x8, weight, bias), exact) < 0.004
    columns = (w.T.contiguous() * w_scales[0]).to(DTYPE)  # a weight whose columns lie on the grid
    exact = (x * x_scales[:, None]).double() @ columns.double()
    assert _apart(matmul.input_gradient(x8, columns), exact) < 0.004


@pytest.mark.parametrize("shape", [(64, 32), (40, 72), (144, 1152)])
def test_a_weight_turned_over_is_the_one_scaled_by_its_columns(shape: tuple[int, int]) -> None:
    torch.manual_seed(2)
    w = torch.randn(shape, device=DEVICE).to(DTYPE)
    w[:, 3] = 0.0
    turned, wanted = float8.by_columns(w), float8.by_rows(w.T.contiguous())
    assert torch.equal(turned.numbers.float(), wanted.numbers.float())
    assert torch.equal(turned.scales, wanted.scales)


@pytest.mark.parametrize("keep", [False, True])
def test_the_gelu_and_its_gradient_are_near_torchs(keep: bool) -> None:
    torch.manual_seed(1)
    before = torch.randn(70, 72, device=DEVICE).to(DTYPE)
    d = torch.randn(70, 72, device=DEVICE).to(DTYPE)
    leaf = before.float().requires_grad_()
    exact = torch.nn.functional.gelu(leaf, approximate="tanh")
    (slope,) = torch.autograd.grad(exact, leaf, d.float())

    after = mlp.gelu_by_rows(before)
    assert _apart(_whole(after), exact.detach()) < ROUNDING
    dx, sums, again = mlp.gelu_backward_by_rows(d, before, after if keep else None)
    assert (again is after) == keep
    assert torch.equal(again.numbers.float(), after.numbers.float())
    assert torch.equal(again.scales, after.scales)
    assert _apart(_whole(dx), slope) < ROUNDING
    assert _apart(sums, slope.sum(0)) < 0.004


@pytest.mark.parametrize("turned", [False, True], ids=["spatial", "temporal"])
def test_gradients_of_q_k_and_v_as_float8_are_the_usual_ones_rounded(turned: bool) -> None:
    torch.manual_seed(3)
    tokens, heads, width, frames = 18, 2, 24, 3
    qkv = torch.randn(tokens, 3, heads, width, device=DEVICE).to(DTYPE)
    weights = [torch.randn(width, device=DEVICE).to(DTYPE) for _ in range(2)]
    gradients = tuple(torch.randn(tokens, heads, width, device=DEVICE).to(DTYPE) for _ in range(3))
    cosine, sine = (torch.randn(frames, width, device=DEVICE) for _ in range(2))
    wave = (cosine, sine, tokens // frames) if turned else None
    usual, *sums = qk_norm.qk_norm_backward(qkv, *weights, wave, gradients)
    rounded, *rounded_sums = qk_norm.qk_norm_backward(qkv, *weights, wave, gradients, as_float8=True)
    assert isinstance(rounded, Scaled)
    assert isinstance(usual, Tensor)
    assert _apart(_whole(rounded), usual) < ROUNDING
    assert _are_powers_of_two(rounded.scales)
    for found, exact in zip(rounded_sums, sums, strict=True):
        assert _apart(found, exact) < 0.01


@pytest.mark.parametrize("tokens", [1, 45, 130, 256])
def test_a_weights_gradient_is_the_sum_of_the_rounded_rows_for_any_number_of_tokens(tokens: int) -> None:
    """Tokens whose scales are up to 2^17 apart, and one of zeros."""
    torch.manual_seed(tokens)
    (d, d_scales), (x, x_scales) = _on_grid(tokens, 48), _on_grid(tokens, 80)
    d[tokens // 2] *= tokens == 1
    x8 = Scaled(x.to(torch.float8_e4m3fn), x_scales)
    d8 = Scaled(d.to(torch.float8_e4m3fn), d_scales)
    exact = (d * d_scales[:, None]).double().T @ (x * x_scales[:, None]).double()
    found = matmul.weight_gradient(d8, x8, DTYPE)
    assert found.shape == (48, 80)
    assert found.dtype == DTYPE
    assert _apart(found, exact) < 0.004
    assert torch.equal(found, matmul.weight_gradient(d8, x8, DTYPE)), "the same input gives the same bits"


def test_a_weights_gradient_in_float8_is_as_far_from_float32_as_its_factors_roundings() -> None:
    """Gradients of tokens with very different sizes, heavy tails and a few large channels."""
    torch.manual_seed(5)
    tokens, size = (12_345, 1152) if ON_GPU else (150, 64)
    sizes = torch.exp(1.5 * torch.randn(tokens, 1, device=DEVICE))
    channels = torch.exp(torch.randn(1, size, device=DEVICE))
    d = (torch.randn(tokens, size, device=DEVICE) ** 3 * sizes * channels * 1e-6).to(DTYPE)
    x = torch.nn.functional.gelu(2 * torch.randn(tokens, size, device=DEVICE)).to(DTYPE)
    exact = d.double().T @ x.double()
    rows = [float8.by_rows(one) for one in (d, x)]
    assert all(_are_powers_of_two(one.scales) for one in rows)
    found = matmul.weight_gradient(*rows, DTYPE)
    by_rows = _whole(rows[0]).double().T @ _whole(rows[1]).double()
    assert _apart(found, by_rows) < (0.02 if ON_GPU else 0.004), "of one rounding, and the GPU's sums"
    assert _apart(found, exact) < 1.5 * ROUNDING
    by_channel = (found.double() - by_rows).norm(dim=1) / by_rows.norm(dim=1)
    assert float(by_channel.max()) < 0.05, "nor in any channel"


@pytest.mark.skipif(not ON_GPU, reason="Triton's interpreter has no NaN in float8")
def test_a_number_that_is_not_finite_reaches_the_weights_gradient() -> None:
    for value in (float("nan"), float("inf")):
        d, x = (torch.randn(40, 32, device=DEVICE).to(DTYPE) for _ in range(2))
        d[7, 3] = value
        found = matmul.weight_gradient(float8.by_rows(d), float8.by_rows(x), DTYPE)
        assert not found[3].isfinite().any()


def test_rows_of_zeros_alone_give_a_weights_gradient_of_zero() -> None:
    zeros = float8.by_rows(torch.zeros(40, 32, device=DEVICE).to(DTYPE))
    assert not matmul.weight_gradient(zeros, zeros, DTYPE).any()


@pytest.mark.parametrize(
    ("temporal", "frames", "places", "lean"),
    [(False, 2, 4, False), (True, 3, 3, True), (True, 1, 8, False)],
    ids=["spatial", "temporal_lean", "image"],
)
def test_a_block_of_float8_products_is_near_the_readable_one_forward_and_backward(
    temporal: bool, frames: int, places: int, lean: bool
) -> None:
    torch.manual_seed(frames)
    block = random_block(temporal=temporal, width=WIDTH, heads=HEADS).to(DEVICE)
    x, y = (torch.randn(2, count, WIDTH, device=DEVICE) for count in (frames * places, 5))
    modulation, seed = 0.3 * torch.randn(2, frames, 6, WIDTH, device=DEVICE), torch.randn_like(x)
    rope = layers.Rope(WIDTH // HEADS, rounded=False).to(DEVICE)
    torch.nn.init.zeros_(rope.freqs)
    wave = rope(frames) if temporal else None

    def outcome(run: Callable[..., Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        given = [part.to(dtype).requires_grad_() for part in (x, y, modulation)]
        out = run(*given, None, frames, wave)
        names = ["out", "dx", "dy", "dmodulation", *dict(block.named_parameters())]
        found = torch.autograd.grad(
            out, [*given, *block.parameters()], seed.to(dtype), materialize_grads=True
        )
        return dict(zip(names, [out.detach(), *found], strict=True))

    exact = outcome(block, torch.float32)
    block.to(DTYPE)
    ours = outcome(lambda *given: apply.fast_block(block, *given, lean=lean, float8=True), DTYPE)
    far = {name: _apart(ours[name], exact[name]) for name in exact if float(exact[name].norm()) > 1e-3}
    assert all(off < 2.5 * ROUNDING for off in far.values()), far
    if temporal:
        return
    with torch.no_grad():
        usual = apply.fast_block(block, *(part.to(DTYPE) for part in (x, y, modulation)), None, frames, None)
    assert far["out"] > _apart(usual, exact["out"]), "float8 rounds: it is not the usual product"
    again = outcome(lambda *given: apply.fast_block(block, *given, float8=True), DTYPE)
    assert all(torch.equal(again[name], ours[name]) for name in ours), "the same input gives the same bits"


def test_the_recipe_takes_float8_with_fast_blocks_alone() -> None:
    assert load(TINY, ["precision=float8", "blocks=fast"]).dtype == torch.bfloat16
    with pytest.raises(RecipeError, match="set blocks=fast, or precision=bfloat16"):
        load(TINY, ["precision=float8"])


def test_a_width_and_a_gpu_that_float8_does_not_fit_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requirements, "missing", lambda *, on_gpu: "")
    on_a_gpu = dataclasses.replace(ALONE, device=torch.device("cuda"))
    config = STDiT3Config(hidden_size=72, num_heads=3, depth=1, caption_channels=8, model_max_length=4)
    with pytest.raises(InputError, match="the model is 72 wide; float8 takes multiples of 16"):
        parallelize.parallelize_model(
            STDiT3(config), ParallelSpec(), on_a_gpu, torch.bfloat16, fast=True, float8=True
        )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    with pytest.raises(InputError, match=r"this GPU is a NVIDIA A100; float8 .* takes an H100 or later"):
        parallelize.parallelize_model(
            STDiT3(config.model_copy(update={"hidden_size": 96})),
            ParallelSpec(),
            on_a_gpu,
            torch.bfloat16,
            fast=True,
            float8=True,
        )
