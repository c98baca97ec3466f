"""The kernels give what the readable layers give, forward and backward; here in Triton's interpreter."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed on this platform")

from tests.trainer.blocks_for_tests import random_block, small_tiles
from trainer.distributed import parallelize
from trainer.distributed.mesh import ALONE
from trainer.distributed.spec import ParallelSpec
from trainer.model import layers, rng
from trainer.model.kernels import apply, flash_attention, tiles
from trainer.model.kernels.temporal_attention import MAX_FRAMES, temporal_attention
from trainer.model.kernels.tiles import NUMBERS, ROWS, pieces
from trainer.model.stdit import STDiT3, STDiT3Config
from vidcurate.errors import InputError

WIDTH = 40  # one head of 32 + 16 columns, as 72 is 64 + 16
TOLERANCE = 5e-6  # relative to the largest value: float32, other order of sums


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch)


def _block(*, temporal: bool, width: int = WIDTH, heads: int = 1) -> layers.Block:
    return random_block(temporal=temporal, width=width, heads=heads)


def _wave(frames: int, head_dim: int) -> tuple[Tensor, Tensor]:
    rope = layers.Rope(head_dim, rounded=False)
    torch.nn.init.zeros_(rope.freqs)
    return rope(frames)


def _outcome(
    run: Callable[..., Tensor], given: list[Tensor], weights: list[Tensor], seed: Tensor
) -> list[Tensor]:
    """Return the result, and its gradients with regard to `given` and `weights`."""
    given = [tensor.clone().requires_grad_() for tensor in given]
    out = run(*given)
    return [out, *torch.autograd.grad(out, [*given, *weights], seed, materialize_grads=True)]


def _assert_fast_is_readable(
    block: layers.Block,
    x: Tensor,
    y: Tensor,
    modulation: Tensor,
    mask: Tensor | None,
    frames: int,
    *,
    lean: bool,
) -> None:
    wave = _wave(frames, block.attn.head_dim) if block.temporal else None
    weights, seed = dict(block.named_parameters()), torch.randn_like(x)

    def outcome(run: Callable[..., Tensor]) -> list[Tensor]:
        return _outcome(
            lambda x, y, m: run(x, y, m, mask, frames, wave), [x, y, modulation], [*weights.values()], seed
        )

    def run_fast(x: Tensor, y: Tensor, m: Tensor, mask: Tensor | None, *rest: Any) -> Tensor:
        rows, captions = apply.padded(y, mask)
        return apply.fast_block(block, x, rows, m, captions, *rest, lean=lean)

    ours = outcome(run_fast)
    _assert_near(ours, outcome(block), ["out", "dx", "dy", "dmodulation", *weights])


def _assert_near(ours: list[Tensor], readable: list[Tensor], names: list[str]) -> None:
    for name, mine, wanted in zip(names, ours, readable, strict=True):
        most = float(wanted.detach().abs().max())
        off = float((mine - wanted).detach().abs().max())
        assert off <= TOLERANCE * most + 1e-7, f"{name}: off by {off:.2e}, its largest value is {most:.2e}"


@pytest.mark.parametrize("temporal", [False, True], ids=["spatial", "temporal"])
@pytest.mark.parametrize(
    ("frames", "places", "per_frame", "captions"),
    [
        (3, 3, True, (4, 9)),
        (2, 2, False, None),
        (1, 3, True, (1, 9)),
        (3, 1, True, None),
    ],
    ids=["video", "shared_modulation", "image", "one_place"],
)
def test_the_fast_block_is_the_readable_block_forward_and_backward(
    temporal: bool, frames: int, places: int, per_frame: bool, captions: tuple[int, int] | None
) -> None:
    torch.manual_seed(frames)
    block = _block(temporal=temporal)
    x, y = torch.randn(2, frames * places, WIDTH), torch.randn(2, 9, WIDTH)
    modulation = 0.3 * torch.randn(2, frames if per_frame else 1, 6, WIDTH)
    mask = None if captions is None else (torch.arange(9) < torch.tensor(captions)[:, None])[:, None, None]
    _assert_fast_is_readable(block, x, y, modulation, mask, frames, lean=per_frame)


@pytest.mark.parametrize(
    ("temporal", "heads", "head_dim", "frames"),
    [(True, 2, 72, 5), (True, 1, 40, 17), (False, 3, 24, 2)],
    ids=["published", "more_than_a_tile", "heads_of_no_power_of_two"],
)
def test_heads_and_frames_of_any_number_are_attended_to(
    temporal: bool, heads: int, head_dim: int, frames: int
) -> None:
    torch.manual_seed(head_dim)
    width, places = heads * head_dim, 2
    block = _block(temporal=temporal, width=width, heads=heads)
    x, y = torch.randn(1, frames * places, width), torch.randn(1, 3, width)
    modulation = 0.3 * torch.randn(1, frames, 6, width)
    _assert_fast_is_readable(block, x, y, modulation, None, frames, lean=False)


def test_a_lean_block_gives_the_same_bits_as_one_that_keeps_all() -> None:
    torch.manual_seed(0)
    block, x, y = _block(temporal=True), torch.randn(1, 6, WIDTH), torch.randn(1, 4, WIDTH)
    modulation, wave, seed = torch.randn(1, 3, 6, WIDTH), _wave(3, WIDTH), torch.randn(1, 6, WIDTH)

    def run(lean: bool) -> dict[str, Tensor]:
        out = apply.fast_block(block, x.requires_grad_(), y, modulation, None, 3, wave, lean=lean)
        names = ["x", *dict(block.named_parameters())]
        return dict(zip(names, torch.autograd.grad(out, [x, *block.parameters()], seed), strict=True))

    kept, again = run(False), run(True)
    # The GELU is torch's own where it is kept, and the kernel's where it is made again.
    assert [name for name in kept if not torch.equal(kept[name], again[name])] in ([], ["mlp.fc2.weight"])
    _assert_near([again["mlp.fc2.weight"]], [kept["mlp.fc2.weight"]], ["mlp.fc2.weight"])


@pytest.mark.parametrize("trained", ["attn.proj.weight", "mlp.fc1.bias", None])
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(trained: str | None) -> None:
    torch.manual_seed(0)
    block, x, y = _block(temporal=False), torch.randn(1, 6, WIDTH), torch.randn(1, 4, WIDTH)
    modulation, seed = torch.randn(1, 3, 6, WIDTH), torch.randn(1, 6, WIDTH)

    def gradients() -> dict[str, Tensor | None]:
        for parameter in block.parameters():
            parameter.grad = None
        x.grad = None
        apply.fast_block(block, x.requires_grad_(), y, modulation, None, 3, None).backward(seed)
        return {"x": x.grad, **{name: parameter.grad for name, parameter in block.named_parameters()}}

    whole = gradients()
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(name == trained)
    part = gradients()
    assert {name for name, gradient in part.items() if gradient is not None} == {"x", trained} - {None}
    assert all(torch.equal(gradient, whole[name]) for name, gradient in part.items() if gradient is not None)


def test_a_caption_costs_its_own_length_and_what_lies_behind_it_is_not_read() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 5, 2, 40), torch.randn(60, 2, 40), torch.randn(60, 2, 40)
    starts, lengths = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([0, 30], [30, 3]))
    where = flash_attention.Ragged(starts, lengths, longest=30, has_gaps=True)
    out, lse = flash_attention.flash_attention(q, k, v, where)
    k[33:], v[33:] = torch.nan, torch.nan
    again, _ = flash_attention.flash_attention(q, k, v, where)
    assert torch.equal(again, out)
    gradients = flash_attention.flash_attention_backward(q, k, v, where, out, lse, torch.ones_like(out))
    assert all(part.isfinite().all() for part in gradients)
    assert not any(part[33:].any() for part in gradients[1:])
    # Packed, the rows between are not there, and the numbers are the same to the last bit.
    packed = [part[:33].clone() for part in (k, v)]
    where = where._replace(has_gaps=False)
    assert torch.equal(flash_attention.flash_attention(q, *packed, where)[0], out)
    found = flash_attention.flash_attention_backward(q, *packed, where, out, lse, torch.ones_like(out))
    for one, wanted in zip(found, gradients, strict=True):
        assert torch.equal(one, wanted[: len(one)])


def test_queries_split_over_programs_give_the_gradients_of_one() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, length, 1, 40, requires_grad=True) for length in (132, 20, 20))
    seed = torch.randn(1, 132, 1, 40)
    with torch.no_grad():
        out, lse = flash_attention.flash_attention(q, k, v)
        split = flash_attention.flash_attention_backward(q, k, v, None, out, lse, seed)
    library = torch.nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
    wanted = torch.autograd.grad(library.transpose(1, 2), [q, k, v], seed)
    _assert_near(list(split), list(wanted), ["dq", "dk", "dv"])


@pytest.mark.parametrize(
    ("tile", "sizes"),
    [
        ((ROWS, NUMBERS), ((1, 1, 3), (3, 7, 65), (2, 130, 64), (1, 1140, 70), (2, 2278, 144))),
        ((2, 64), ((1, 1, 3), (3, 7, 65), (2, 40, 33))),
    ],
    ids=["tiles_of_a_gpu", "small_tiles"],
)
def test_partial_sums_of_any_number_are_added_up(
    tile: tuple[int, int], sizes: tuple[tuple[int, int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "ROWS", tile[0])
    monkeypatch.setattr(tiles, "NUMBERS", tile[1])
    for size in sizes:
        parts = torch.randn(size)
        torch.testing.assert_close(tiles.add_up(parts, torch.float32), parts.sum(1), atol=1e-4, rtol=1e-5)


def test_the_same_input_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    block, x, y = _block(temporal=True), torch.randn(1, 6, WIDTH), torch.randn(1, 4, WIDTH)
    modulation, wave = torch.randn(1, 3, 6, WIDTH), _wave(3, WIDTH)

    def run() -> list[Tensor]:
        return _outcome(
            lambda x: apply.fast_block(block, x, y, modulation, None, 3, wave),
            [x],
            list(block.parameters()),
            torch.ones_like(x),
        )

    assert all(torch.equal(first, second) for first, second in zip(run(), run(), strict=True))


def test_more_frames_than_the_kernel_holds_are_refused() -> None:
    q = torch.zeros(MAX_FRAMES + 1, 1, 16)
    with pytest.raises(ValueError, match=f"{MAX_FRAMES + 1} latent frames; this kernel holds at most"):
        temporal_attention(q, q, q, MAX_FRAMES + 1, 1)


@pytest.mark.parametrize(
    ("width", "expected"),
    [(72, (64, 16)), (64, (64, 0)), (1152, (1024, 128)), (1872, (1024, 1024)), (8, (16, 0))],
)
def test_a_width_is_cut_into_two_powers_of_two(width: int, expected: tuple[int, int]) -> None:
    assert pieces(width, 16) == expected


def _model(heads: int = 1) -> STDiT3:
    config = STDiT3Config(
        hidden_size=WIDTH, depth=1, num_heads=heads, caption_channels=8, model_max_length=6, input_sq_size=32
    )
    return STDiT3(config, seed=1)


def test_a_model_laid_out_with_fast_blocks_learns_what_the_readable_one_learns() -> None:
    # bfloat16 is checked by benchmarks/block_distance.py on a GPU: the interpreter multiplies it wrongly.
    facts = {name: torch.full((1,), 32.0) for name in ("fps", "height", "width")}
    given = [torch.randn(1, 4, 2, 2, 4), torch.full((1,), 500.0), torch.randn(1, 1, 6, 8)]
    text = torch.arange(6)[None] < 4
    drop = torch.tensor([False])

    def gradients(is_fast: bool) -> dict[str, Tensor]:
        model = _model()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.add_(0.1 * rng.normal(0, "init", 0, [name], tuple(parameter.shape))[0])
        layout = parallelize.parallelize_model(
            model, ParallelSpec(recompute_blocks=1), ALONE, torch.float32, fast=is_fast
        )
        layout.begin_step()
        layout.recompute.choose_plan(given[0], given[2])
        layout.compute(*given, text, drop_caption=drop, **facts).square().mean().backward()
        layout.reduce_gradients()
        return {
            name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad
        }

    readable, quick = gradients(False), gradients(True)
    assert quick.keys() == readable.keys()
    for name, wanted in readable.items():
        off, most = float((quick[name] - wanted).norm()), float(wanted.norm())
        assert off < 1e-4 * most + 1e-6, f"{name}: {off:.1e} of {most:.1e}"


def test_the_tests_see_a_gpu_only_when_they_are_reported_to(pytestconfig: pytest.Config) -> None:
    """Seen on an H200: nineteen tests here gave tensors of the CPU to kernels built for the GPU."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == "" and not torch.cuda.is_available()
    assert hidden != pytestconfig.getoption("--gpu")


def test_fast_blocks_without_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InputError, match="blocks is fast and there is no GPU here"):
        parallelize.parallelize_model(_model(), ParallelSpec(), ALONE, torch.float32, fast=True)


def test_fast_blocks_in_float32_on_a_gpu_are_refused() -> None:
    on_a_gpu = dataclasses.replace(ALONE, device=torch.device("cuda"))
    with pytest.raises(InputError, match="precision is float32, which the kernels multiply as TF32"):
        parallelize.parallelize_model(_model(), ParallelSpec(), on_a_gpu, torch.float32, fast=True)


def test_heads_that_the_kernels_cannot_hold_are_refused() -> None:
    with pytest.raises(InputError, match="heads of 8; the kernels take heads of 16 or more"):
        parallelize.parallelize_model(_model(heads=5), ParallelSpec(), ALONE, torch.float32, fast=True)
