"""The cost of a micro-batch: what made the times is found again, no term is made up, and ranks share it."""

import dataclasses

import pytest

from tests.order_plans import plan, rows_of
from trainer.distributed import step_time
from trainer.distributed.step_time import Cost, Measured, Work
from vidcurate.sampler import mixture, order
from vidcurate.sampler.plan import Plan

TRUTH = Cost(forward=(4e-6, 4e-10, 3e-9, 1e-6, 2e-3), backward=(8e-6, 9e-10, 7e-9, 2e-6, 1e-3))
SHAPES = {
    "144p_51f": Work(clips=17, frames=15, places=144, text_tokens=300),
    "240p_102f": Work(clips=2, frames=30, places=405, text_tokens=300),
    "360p_51f": Work(clips=2, frames=15, places=920, text_tokens=300),
    "480p_204f": Work(clips=1, frames=60, places=1590, text_tokens=120),
    "720p_51f": Work(clips=1, frames=15, places=3600, text_tokens=300),
    "256_image": Work(clips=96, frames=1, places=256, text_tokens=300),
    "144p_image": Work(clips=10, frames=1, places=144, text_tokens=50),
}


def _measured(name: str, micro_batches: int = 2, recomputed: float = 0.0) -> Measured:
    work = SHAPES[name]
    forward = TRUTH.seconds(work) - sum(a * b for a, b in zip(TRUTH.backward, work.terms, strict=True))
    whole = TRUTH.seconds(work, recomputed)
    return Measured(
        name=name,
        works=(work,) * micro_batches,
        forward=micro_batches * forward,
        backward=micro_batches * (whole - forward),
        recomputed=recomputed,
    )


def test_the_coefficients_that_made_the_times_are_found() -> None:
    steps = [_measured(name, 1 + number % 3) for number, name in enumerate(SHAPES)]
    found = step_time.fit(steps, noise=0)
    assert found.forward == pytest.approx(TRUTH.forward, rel=1e-5)
    assert found.backward == pytest.approx(TRUTH.backward, rel=1e-5)
    for name, (error, left_out) in step_time.errors(steps, noise=0).items():
        assert abs(error) < 1e-6, name
        assert abs(left_out) < 1e-3, name


def test_a_recomputed_share_is_paid_by_the_forward_pass() -> None:
    steps = [_measured(name, recomputed=0.5 if name == "720p_51f" else 0.0) for name in SHAPES]
    found, work = step_time.fit(steps, noise=0), SHAPES["720p_51f"]
    assert found.seconds(work, 0.5) == pytest.approx(TRUTH.seconds(work, 0.5), rel=1e-5)
    assert found.seconds(work) == pytest.approx(TRUTH.seconds(work), rel=1e-5)
    assert found.seconds(work) < found.seconds(work, 0.5) < found.seconds(work, 1.0)


def test_no_coefficient_is_below_zero_whatever_was_measured() -> None:
    steps = [
        Measured(name=name, works=(work,), forward=1.0 / (1 + number), backward=2.0 - 0.2 * number)
        for number, (name, work) in enumerate(SHAPES.items())
    ]
    found = step_time.fit(steps)
    assert min(found.forward + found.backward) >= 0
    assert max(found.forward) > 0


def test_a_term_that_the_noise_hides_is_left_at_zero() -> None:
    """Here captions and the fixed part are below a hundredth of the time of any step but the images'."""
    steps = [_measured(name) for name in SHAPES if "image" not in name]
    found = step_time.fit(steps)
    assert found.forward[3:] == found.backward[3:] == (0.0, 0.0)
    assert found.forward[0] > 0
    assert all(abs(found.error(step)) < 0.02 for step in steps)


def test_one_measured_step_is_met_by_one_term() -> None:
    step = _measured("240p_102f")
    found = step_time.fit([step])
    assert found.error(step) == pytest.approx(0, abs=1e-9)
    assert sum(value > 0 for value in found.forward) == 1


def test_there_is_no_cost_without_a_measured_step() -> None:
    with pytest.raises(ValueError, match="no measured step"):
        step_time.fit([])


# ── ranks share a step by cost ──────────────────────────────────────────────────────────────────────────────

WORLDS = (1, 2, 3, 5, 8, 12, 64)
COSTS = (700, 90, 2400, 1100)  # nothing that pixels would tell


def _uneven(micro_batches_per_step: int = 48) -> Plan:
    cells = [(100, 8, 3), (100, 4, 5), (100, 2, 1), (60, 1, 2)]
    one = plan(cells, micro_batches_per_step=micro_batches_per_step)
    return dataclasses.replace(one, costs=COSTS)


def _imbalance(one: Plan, shares: tuple[tuple[int, ...], ...]) -> float:
    loads = [
        sum(COSTS[mixture.stream_at(one.mixture, position)[0]] for position in share) for share in shares
    ]
    return max(loads) * len(loads) / sum(loads)


@pytest.mark.parametrize("world", WORLDS)
def test_the_ranks_share_out_the_step_whatever_it_costs(world: int) -> None:
    one = _uneven()
    plain = dataclasses.replace(one, costs=None)
    for step in (0, 7, 10**6):
        shares = [order.rank_share(one, step, rank, world) for rank in range(world)]
        assert sorted((b.position, b.rows.tolist()) for share in shares for b in share) == rows_of(one, step)
        assert rows_of(one, step) == rows_of(plain, step)
        assert order.shares(_uneven(), step, world) == order.shares(one, step, world)
    assert one.fingerprint == plain.fingerprint


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_wait_no_longer_when_the_cost_is_known(world: int) -> None:
    one = _uneven()
    plain = dataclasses.replace(one, costs=None)
    for step in range(12):
        positions = range(step * 48, (step + 1) * 48)
        in_turn = tuple(tuple(positions[rank::world]) for rank in range(world))
        by_cost = _imbalance(one, order.shares(one, step, world))
        assert by_cost <= _imbalance(one, order.shares(plain, step, world)) + 1e-12
        assert by_cost <= _imbalance(one, in_turn) + 1e-12
        dearest = max(COSTS[mixture.stream_at(one.mixture, position)[0]] for position in positions)
        mean = sum(COSTS[mixture.stream_at(one.mixture, position)[0]] for position in positions) / world
        assert by_cost <= max(4 / 3, 1 + dearest / mean), "Graham's bound"
    if world == 8:
        assert _imbalance(one, order.shares(one, 3, 8)) < 1.05 < _imbalance(one, order.shares(plain, 3, 8))
