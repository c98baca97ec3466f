"""Schedules are functions of the step; the optimizer and the average keep nothing else."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from trainer.training.optim.adamw import (
    Masters,
    clip_factor,
    device_clip_factor,
    gradient_norm,
    masters,
    moments,
    norm,
    set_update_count,
    update,
    update_count,
)
from trainer.training.optim.ema import reset_ema
from trainer.training.optim.schedule import OptimSpec, learning_rate
from vidcurate.errors import RecipeError
from vidcurate.recipe.recipe import parse


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model.register_buffer("table", torch.arange(3.0))
    model[0].bias.requires_grad_(False)
    return model


def gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator)


BUMP = OptimSpec(
    lr=1.6e-4, schedule="bump", min_lr=1.6e-5, max_lr=6.4e-4, warmup_steps=400, cooldown_steps=400
)


@pytest.mark.parametrize(
    ("step", "rate"),
    # the 1-cycle of the published stages 4 and 5
    [
        (0, 1.6e-5),
        (100, 1.07e-4),
        (200, 3.28e-4),
        (300, 5.49e-4),
        (400, 6.4e-4),
        (500, 5.70e-4),
        (600, 4.0e-4),
        (700, 2.30e-4),
        (800, 1.6e-4),
        (5000, 1.6e-4),
    ],
)
def test_the_bump_goes_through_the_published_values(step: int, rate: float) -> None:
    assert learning_rate(BUMP, step, 10_000) == pytest.approx(rate, rel=5e-3)


def test_the_warm_up_is_linear_and_does_not_lose_its_first_step() -> None:
    spec = OptimSpec(lr=1e-4, warmup_steps=9)

    rates = [learning_rate(spec, step, 100) for step in range(12)]

    assert rates[:10] == pytest.approx([1e-5 * (step + 1) for step in range(10)])
    assert rates[9:] == [1e-4] * 3


def test_the_cosine_ends_at_its_floor() -> None:
    spec = OptimSpec(lr=1e-3, schedule="cosine", min_lr=1e-5, warmup_steps=10)

    assert learning_rate(spec, 10, 110) == 1e-3
    assert learning_rate(spec, 60, 110) == pytest.approx((1e-3 + 1e-5) / 2)
    assert learning_rate(spec, 110, 110) == pytest.approx(1e-5)
    assert learning_rate(spec, 500, 110) == pytest.approx(1e-5)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "bump"])
def test_no_schedule_jumps(schedule: str) -> None:
    given = {"constant": OptimSpec(lr=1.6e-4, warmup_steps=400), "bump": BUMP}
    spec = given.get(schedule, OptimSpec(lr=1.6e-4, schedule="cosine", warmup_steps=400))

    rates = [learning_rate(spec, step, 2000) for step in range(2000)]

    assert max(abs(b - a) for a, b in pairwise(rates)) < 3e-6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr: 0", "lr is 0: give 1e-12 to 1"),
        ("{schedule: bump, lr: 1e-4}", "needs max_lr"),
        (
            "{schedule: bump, lr: 1e-3, max_lr: 1e-4, warmup_steps: 1, cooldown_steps: 1}",
            "min_lr <= lr <= max_lr",
        ),
        ("{lr: 1e-4, max_lr: 1e-3}", "belong to the schedule bump"),
        ("{lr: 1e-4, min_lr: 1e-5}", "not to constant"),
        ("{lr: 1e-4, min_lr: 1e-3, schedule: cosine}", "must not be above lr"),
        ("betas: [0.9, 1.0]", "betas.1 is 1.0: give 0 to 0.999999"),
        ("warmup: 3", "Did you mean warmup_steps?"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        parse(text, OptimSpec)


def test_the_moments_exist_before_the_first_update_and_cover_what_learns() -> None:
    model = small_model()
    optimizer = masters(model).optimizer

    names = set(moments(model, optimizer))

    assert "exp_avg.0.weight" in names
    assert "exp_avg.0.bias" not in names  # frozen
    assert len(names) == 2 * 5
    assert update_count(optimizer) == 0


def test_an_optimizer_continues_from_its_moments_and_count_bit_for_bit() -> None:
    def updates(model: nn.Module, its: Masters, seeds: range) -> None:
        for seed in seeds:
            gradients(model, seed)
            update(its, BUMP, lr=learning_rate(BUMP, seed, 100), ema_decay=0.9)

    model, other = small_model(), small_model()
    its, again = masters(model), masters(other)
    updates(model, its, range(3))

    other.load_state_dict(model.state_dict())
    for name, value in moments(other, again.optimizer).items():
        value.copy_(moments(model, its.optimizer)[name])
    set_update_count(again.optimizer, update_count(its.optimizer))
    updates(model, its, range(3, 6))
    updates(other, again, range(3, 6))

    assert update_count(again.optimizer) == 6
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_the_average_follows_what_learns_and_copies_what_does_not() -> None:
    model = small_model()
    its = masters(model)
    ema = its.ema
    with torch.no_grad():
        model[0].weight.add_(1.0)
        model[0].bias.add_(1.0)  # frozen: changed by hand, so copied
    before = ema["0.weight"].clone()
    gradients(model, 0)

    update(its, OptimSpec(), lr=0.0, ema_decay=0.9)

    assert torch.allclose(ema["0.weight"], before + 0.1)
    assert torch.equal(ema["0.bias"], model[0].bias)
    assert torch.equal(ema["table"], torch.arange(3.0))
    assert set(ema) == set(model.state_dict())
    reset_ema(ema, model)
    assert all(torch.equal(ema[name], value) for name, value in model.state_dict().items())


def test_an_update_clips_the_gradients_by_their_common_norm() -> None:
    model = small_model()
    its = masters(model)
    gradients(model, 0)
    together = [p.grad for p in model.parameters() if p.grad is not None]
    expected = math.sqrt(sum(float(g.double().square().sum()) for g in together))

    before = gradient_norm(its)
    update(its, OptimSpec(), lr=1e-3, ema_decay=0.9, clip_factor=clip_factor(before, 0.5))

    assert before == pytest.approx(expected)
    firsts = [value for name, value in moments(model, its.optimizer).items() if name.startswith("exp_avg.")]
    assert float(norm(firsts)) == pytest.approx(0.1 * 0.5)  # 1 - beta1 of what was clipped
    assert all(parameter.grad is None for parameter in model.parameters())
    assert clip_factor(before, None) == clip_factor(before, 2 * before) == 1.0


@pytest.mark.parametrize("limit", [None, 1.0, 0.3, 1e9])
def test_the_clip_factor_on_the_device_has_the_bits_of_the_hosts(limit: float | None) -> None:
    for seed in range(50):
        norm = torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3
        given = torch.randn(40, generator=torch.Generator().manual_seed(seed + 1))

        factor = device_clip_factor(norm, limit)

        wanted, found = [given.clone()], [given.clone()]
        torch._foreach_mul_(wanted, clip_factor(float(norm), limit))
        torch._foreach_mul_(found, factor)
        assert torch.equal(wanted[0], found[0])
        assert float(factor) == float(torch.tensor(clip_factor(float(norm), limit)))
