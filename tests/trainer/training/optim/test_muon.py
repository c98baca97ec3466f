"""Muon orthogonalises the blocks' matrices; AdamW keeps all that is none."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.training.optim import adamw, muon
from trainer.training.optim.schedule import OptimSpec

CONFIG = STDiT3Config(
    hidden_size=16, depth=1, num_heads=2, in_channels=4, caption_channels=8, model_max_length=4
)
SPEC = OptimSpec(weight_decay=0.1, betas=(0.9, 0.99), muon=2.0)


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def given_gradients(masters: adamw.Masters, seed: int) -> dict[str, Tensor]:
    found = {}
    for number, (name, parameter) in enumerate(masters.learns.items()):
        found[name] = draw(tuple(parameter.shape), 1000 * seed + number)
        parameter.grad = found[name].clone()
    return found


def test_the_matrices_are_the_linear_layers_of_blocks_and_nothing_else() -> None:
    model = STDiT3(CONFIG)
    masters = adamw.masters(model, with_muon=True)

    assert masters.matrices is not None
    names = masters.matrices.names
    layers = ("attn.qkv", "attn.proj", "cross_attn.q_linear", "cross_attn.kv_linear", "cross_attn.proj")
    assert sorted(names) == sorted(
        f"{kind}_blocks.0.{layer}.weight"
        for kind in ("spatial", "temporal")
        for layer in (*layers, "mlp.fc1", "mlp.fc2")
    )
    held = masters.optimizer_tensors(model)
    assert {name for name in held if name.startswith("momentum.")} == {f"momentum.{name}" for name in names}
    assert not any(name.endswith(names) for name in held if name.startswith("exp_avg"))
    assert masters.optimizer_name == "Muon"


def test_an_update_is_nearly_orthogonal_with_a_singular_value_for_each_direction() -> None:
    wide, high, stacked = draw((6, 20), 1), draw((20, 6), 2), draw((18, 6), 3)

    found = muon.orthogonalised([wide, high, stacked], [1, 1, 3])

    for part in (found[0], found[1], *found[2].chunk(3)):
        values = torch.linalg.svdvals(part)
        assert values.min() > 0.6
        assert values.max() < 1.3
    u, _, v = torch.linalg.svd(wide, full_matrices=False)
    assert float((found[0] * (u @ v)).sum() / (found[0].norm() * (u @ v).norm())) > 0.97


def test_matrices_of_one_shape_do_not_change_each_other() -> None:
    several = [draw((6, 6), seed) for seed in range(4)]

    alone = [muon.orthogonalised([one], [1])[0] for one in several]

    for one, other in zip(muon.orthogonalised(several, [1] * 4), alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_an_update_is_momentum_then_orthogonal_then_scaled_and_the_rest_is_adamw() -> None:
    model, plain = STDiT3(CONFIG, seed=2), STDiT3(CONFIG, seed=2)
    masters, theirs = adamw.masters(model, with_muon=True), adamw.masters(plain)
    name = "temporal_blocks.0.mlp.fc1.weight"
    weight, momentum = masters.learns[name].detach().clone(), torch.zeros(64, 16)
    average = masters.ema[name].clone()

    for seed in (1, 2):
        gradient = given_gradients(masters, seed)[name] * 0.5
        given_gradients(theirs, seed)
        for each in (masters, theirs):
            adamw.update(each, SPEC, lr=1e-2, ema_decay=0.8, clip_factor=0.5)
        momentum = 0.95 * momentum + 0.05 * gradient
        look_ahead = 0.05 * gradient + 0.95 * momentum
        (update,) = muon.orthogonalised([look_ahead], [1])
        weight = weight * (1 - 2e-2 * 0.1) - 2e-2 * 0.2 * 64**0.5 * update
        average = 0.8 * average + 0.2 * weight

    torch.testing.assert_close(masters.learns[name].detach(), weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(masters.ema[name], average, rtol=1e-5, atol=1e-6)
    assert masters.matrices is not None
    for other, value in theirs.learns.items():
        if other not in masters.matrices.names:
            assert torch.equal(masters.learns[other], value), other
            assert torch.equal(masters.ema[other], theirs.ema[other]), other
    assert adamw.update_count(masters.optimizer) == 2


def test_the_largest_matrices_are_assigned_first_and_evenly() -> None:
    shapes = [(16, 16), (64, 16), (16, 64), (48, 16), (16, 16)]

    assert muon.owners_of(shapes, 1) == (0,) * 5
    owners = muon.owners_of(shapes, 2)
    assert {owners[1], owners[2]} == {0, 1}
    assert set(muon.owners_of(shapes, 8)) == set(range(5))


@pytest.mark.parametrize(("height", "size", "rows"), [(7, 3, (0, 3, 6, 7)), (2, 4, (0, 1, 2, 2, 2))])
def test_shards_are_those_of_torch_chunk(height: int, size: int, rows: tuple[int, ...]) -> None:
    assert muon._first_rows(height, size) == rows
    sizes = [len(part) for part in torch.zeros(height, 1).chunk(size)]
    assert [end - start for start, end in pairwise(rows)][: len(sizes)] == sizes
