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
from trainer.model.kernels import apply, float8, matmul, mlp, requirements
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
    columns = (w.T.contiguous() * w_scales[:32].mean()).to(DTYPE)  # a weight whose columns lie on the grid
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
def test_the_gelu_and_its_gradient_are_torchs_and_their_float8_form_is_near(keep: bool) -> None:
    torch.manual_seed(1)
    before = torch.randn(70, 72, device=DEVICE).to(DTYPE)
    d = torch.randn(70, 72, device=DEVICE).to(DTYPE)
    leaf = before.float().requires_grad_()
    exact = torch.nn.functional.gelu(leaf, approximate="tanh")
    (slope,) = torch.autograd.grad(exact, leaf, d.float())

    after, rounded = mlp.gelu_by_rows(before, keep=keep)
    assert (after is not None) == keep
    assert _apart(_whole(rounded), exact.detach()) < ROUNDING
    dx, dx_rounded, sums, again = mlp.gelu_backward_by_rows(d, before, after)
    assert again is after or not keep
    assert _apart(again, exact.detach()) < 0.004
    assert _apart(dx, slope) < 0.004
    assert _apart(_whole(dx_rounded), slope) < ROUNDING
    assert _apart(sums, slope.sum(0)) < 0.004


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
