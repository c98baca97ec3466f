"""The cost of a micro-batch: what made the times is found again, and no term is made up."""

import pytest

from trainer import cost
from trainer.cost import Cost, Measured, Work

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
    found = cost.fit(steps)
    assert found.forward == pytest.approx(TRUTH.forward, rel=1e-5)
    assert found.backward == pytest.approx(TRUTH.backward, rel=1e-5)
    for name, (error, left_out) in cost.errors(steps).items():
        assert abs(error) < 1e-6, name
        assert abs(left_out) < 1e-3, name


def test_a_recomputed_share_is_paid_by_the_forward_pass() -> None:
    steps = [_measured(name, recomputed=0.5 if name == "720p_51f" else 0.0) for name in SHAPES]
    found, work = cost.fit(steps), SHAPES["720p_51f"]
    assert found.seconds(work, 0.5) == pytest.approx(TRUTH.seconds(work, 0.5), rel=1e-5)
    assert found.seconds(work) == pytest.approx(TRUTH.seconds(work), rel=1e-5)
    assert found.seconds(work) < found.seconds(work, 0.5) < found.seconds(work, 1.0)


def test_no_coefficient_is_below_zero_whatever_was_measured() -> None:
    steps = [
        Measured(name=name, works=(work,), forward=1.0 / (1 + number), backward=2.0 - 0.2 * number)
        for number, (name, work) in enumerate(SHAPES.items())
    ]
    found = cost.fit(steps)
    assert min(found.forward + found.backward) >= 0
    assert max(found.forward) > 0


def test_one_measured_step_is_met_by_one_term() -> None:
    step = _measured("240p_102f")
    found = cost.fit([step])
    assert found.error(step) == pytest.approx(0, abs=1e-9)
    assert sum(value > 0 for value in found.forward) == 1


def test_there_is_no_cost_without_a_measured_step() -> None:
    with pytest.raises(ValueError, match="no measured step"):
        cost.fit([])
