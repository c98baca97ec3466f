"""Averages of any width from two that were tracked, against one tracked directly."""

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from trainer.model import power_average
from trainer.model.power_average import WIDEST, Kept, Widths

UPDATES = 400


def tracked(walk: np.ndarray, gamma: float) -> np.ndarray:
    """Return the average after each update [updates, weights], by the update rule."""
    average, found = np.full(walk.shape[1], np.nan), []
    for number, weights in enumerate(walk, start=1):
        beta = power_average.decay(gamma, number)
        average = weights if beta == 0 else beta * average + (1 - beta) * weights
        found.append(average)
    return np.stack(found)


@pytest.mark.parametrize("width", [0.03, 0.05, 0.1, 0.2])
def test_a_profile_has_its_width_and_is_the_power_of_the_update(width: float) -> None:
    gamma = power_average.exponent(width)
    profile = tracked(np.eye(UPDATES), gamma)[-1]  # what each update counts in the last average
    times = np.arange(1, UPDATES + 1) / UPDATES

    assert profile.sum() == pytest.approx(1)
    deviation = np.sqrt((profile * times**2).sum() - (profile * times).sum() ** 2)
    assert deviation == pytest.approx(width, rel=0.02)
    np.testing.assert_allclose(profile[50:] / profile[-1], times[50:] ** gamma, rtol=0, atol=0.02)


@pytest.mark.parametrize("width", [0.04, 0.07, 0.13, 0.2])
def test_an_average_made_afterwards_is_the_one_tracked_all_along(width: float) -> None:
    walk = np.cumsum(np.random.default_rng(1).standard_normal((UPDATES, 50)), axis=0)
    gammas = [power_average.exponent(one) for one in (0.05, 0.10)]
    runs = [tracked(walk, gamma) for gamma in gammas]
    at = range(25, UPDATES + 1, 25)
    kept = [
        (Kept(update, gamma), run[update - 1])
        for update in at
        for gamma, run in zip(gammas, runs, strict=True)
    ]
    wanted = Kept(UPDATES, power_average.exponent(width))

    mixed = power_average.mixture([one for one, _ in kept], wanted)
    made = sum(factor * values for factor, (_, values) in zip(mixed.factors, kept, strict=True))

    direct = tracked(walk, wanted.gamma)[-1]
    assert mixed.error < 0.03
    assert np.linalg.norm(made - direct) < 0.01 * np.linalg.norm(direct)
    nearest = min(runs, key=lambda run: np.linalg.norm(run[-1] - direct))[-1]
    assert np.linalg.norm(made - direct) < 0.2 * np.linalg.norm(nearest - direct)


def test_two_averages_of_one_update_alone_do_not_make_a_far_width() -> None:
    kept = [Kept(UPDATES, power_average.exponent(width)) for width in (0.05, 0.10)]

    assert power_average.mixture(kept, kept[1]).error < 1e-9
    assert power_average.mixture(kept, Kept(UPDATES, power_average.exponent(0.01))).error > 0.1


@pytest.mark.parametrize("widths", ["[0.1, 0.05]", "[0, 0.1]", "[0.1, 0.3]"])
def test_widths_that_no_profile_has_are_refused(widths: str) -> None:
    with pytest.raises(ValidationError, match="narrow < wide"):
        TypeAdapter(Widths).validate_json(widths)
    with pytest.raises(ValueError, match="between 0 and"):
        power_average.exponent(WIDEST)
