"""A model laid over one process: rounded copies, float32 sums, recomputed blocks."""

import pytest
import torch
from torch import Tensor

from trainer.distributed import parallelize
from trainer.distributed.mesh import ALONE
from trainer.distributed.parallelize import Layout
from trainer.distributed.spec import ParallelSpec
from trainer.model.stdit import STDiT3, STDiT3Config
from trainer.run_folder.checkpoint.checksum import checksum
from trainer.training.optim import adamw
from vidcurate.errors import RecipeError
from vidcurate.recipe.recipe import parse

CONFIG = STDiT3Config(hidden_size=24, depth=2, num_heads=2, caption_channels=8, model_max_length=6)


def model() -> STDiT3:
    made = STDiT3(CONFIG, seed=3)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adamw.trained(made).values():  # none zero: every gradient is
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.1)
    return made


def loss(layout: Layout, number: int) -> Tensor:
    draw = torch.Generator().manual_seed(number)
    latents = torch.randn(2, 4, 2, 4, 6, generator=draw)
    features = torch.randn(2, 1, 6, 8, generator=draw)
    layout.recompute.choose_plan(latents, features)
    out: Tensor = layout.compute(
        latents,
        torch.tensor([300.0, 700.0]),
        features,
        fps=torch.tensor([24.0, 24.0]),
        height=torch.tensor([32.0]),
        width=torch.tensor([48.0]),
    )
    return out.square().mean()


def gradients(spec: ParallelSpec, dtype: torch.dtype, numbers: range) -> dict[str, Tensor]:
    laid = model()
    layout = parallelize.parallelize_model(laid, spec, ALONE, dtype)
    layout.begin_step()
    for number in numbers:
        loss(layout, number).backward()  # type: ignore[no-untyped-call]
    layout.reduce_gradients()
    found = {}
    for name, parameter in adamw.trained(laid).items():
        assert parameter.grad is not None, name
        found[name] = parameter.grad
    return found


def test_alone_the_norm_of_the_own_gradient_is_that_of_the_sum_bit_for_bit() -> None:
    laid = model()
    layout = parallelize.parallelize_model(laid, ParallelSpec(), ALONE, torch.float32)
    layout.begin_step()
    loss(layout, 0).backward()  # type: ignore[no-untyped-call]
    for name, parameter in adamw.trained(laid).items():
        if "temporal" in name:  # as with images alone
            parameter.grad = None

    own = float(layout.local_grad_norm())
    layout.reduce_gradients()

    assert own == adamw.gradient_norm(adamw.masters(laid)) > 0


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return float(adamw.norm(one[name] - other[name] for name in one) / adamw.norm(one.values()))


def test_recomputed_blocks_give_the_same_gradients() -> None:
    plain = gradients(ParallelSpec(), torch.float32, range(2))

    for count in (1, 3, 99):
        again = gradients(ParallelSpec(recompute_blocks=count), torch.float32, range(2))
        assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_bfloat16_computes_in_a_rounded_copy_and_sums_in_float32() -> None:
    exact = gradients(ParallelSpec(), torch.float32, range(8))
    rounded = gradients(ParallelSpec(), torch.bfloat16, range(8))
    each = [gradients(ParallelSpec(), torch.bfloat16, range(n, n + 1)) for n in range(8)]
    summed = {name: torch.stack([one[name] for one in each]).sum(0) for name in exact}

    assert all(value.dtype == torch.float32 for value in rounded.values())
    assert 1e-4 < apart(exact, rounded) < 0.05
    assert apart(summed, rounded) < 1e-6  # no rounding to bfloat16 between micro-batches


def test_the_copy_takes_the_masters_values_at_every_step_and_leaves_them_alone() -> None:
    laid = model()
    layout = parallelize.parallelize_model(laid, ParallelSpec(recompute_blocks=2), ALONE, torch.bfloat16)
    before = checksum(laid.state_dict())
    layout.begin_step()
    first = loss(layout, 0).item()
    assert checksum(laid.state_dict()) == before

    with torch.no_grad():
        for parameter in laid.parameters():
            parameter.mul_(1.5)
    assert loss(layout, 0).item() == first
    with layout.gathered_weights():
        assert loss(layout, 0).item() != first
    assert {value.dtype for value in laid.state_dict().values()} == {torch.float32}


def test_one_rank_alone_holds_everything_whatever_the_sharding() -> None:
    for spec in (ParallelSpec(sharding="full"), ParallelSpec(sharding=4)):
        assert isinstance(
            parallelize.parallelize_model(model(), spec, ALONE, torch.float32), parallelize.Replicated
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [("sharding: half", "none.*full.*hybrid"), ("sharding: 0", "none.*full.*hybrid")],
)
def test_a_layout_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        parse(text, ParallelSpec)
