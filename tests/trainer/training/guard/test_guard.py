"""Guard checks: spikes by bucket and timestep, divergence, policies, windows, history."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recipe import skip_windows
from trainer.recipe.guard_spec import CHOICES, FIRMNESS, MOST, THRESHOLDS, GuardSpec, Kind, Thresholds
from trainer.training.guard import detect as guard_detect
from trainer.training.guard import history
from trainer.training.guard.decide import action_for, decide
from trainer.training.guard.history import GuardState, Rollback, StageHistory, StepStats
from vidcurate.errors import CheckpointError

LEVELS = {"small": 0.4, "large": 1.6}  # expected loss of two buckets; a timestep multiplies it
SPEC = Thresholds(divergence_window=40)


def figures(step: int, *, times: float = 1.0, bucket: str = "", grad_norm: float = 1.0) -> StepStats:
    """Return a step of 8 clips whose losses depend on bucket and timestep, with log-normal noise of 0.3."""
    random = np.random.default_rng(step)
    buckets = [bucket or ("small" if random.random() < 0.5 else "large")] * 8
    bins = [int(value) for value in random.integers(0, 10, 8)]
    losses = [LEVELS[name] * (0.3 + 0.1 * place) for name, place in zip(buckets, bins, strict=True)]
    noise = np.exp(random.normal(0, 0.3, 8))
    return StepStats(
        step=step,
        losses=np.array(losses) * noise * times,
        buckets=buckets,
        bins=[str(place) for place in bins],
        grad_norm=grad_norm * math.exp(random.normal(0, 0.1)),
    )


def after(steps: int, spec: Thresholds = SPEC, **last: float) -> StageHistory:
    past = StageHistory()
    for step in range(1, steps + 1):
        now = figures(step)
        guard_detect.update_history(past, now, guard_detect.find_problems(past, now, spec), spec)
    return past


def test_a_thousand_quiet_steps_of_two_buckets_have_no_finding() -> None:
    past = StageHistory()
    found: list[guard_detect.Problem] = []
    for step in range(1, 1001):
        now = figures(step)
        of_step = guard_detect.find_problems(past, now, SPEC)
        found += of_step
        guard_detect.update_history(past, now, of_step, SPEC)

    assert found == []


def test_a_bucket_with_four_times_the_loss_is_no_spike_and_a_step_at_twice_its_own_loss_is() -> None:
    past = after(120)

    assert guard_detect.find_problems(past, figures(121, bucket="large"), SPEC) == ()
    (found,) = guard_detect.find_problems(past, figures(121, bucket="small", times=3.0), SPEC)

    assert (found.kind, found.shape, found.first_step) == ("spike", "instant", 121)
    assert found.figures["ratio"] == pytest.approx(3.0, rel=0.5)
    # Three times the small bucket's loss is less than the large one's: the total loss would not show it.
    assert found.figures["loss"] < float(np.mean(figures(121, bucket="large").losses))


def test_hard_timesteps_alone_are_no_spike() -> None:
    past = after(200)
    bins = ["9"] * 8
    hard = StepStats(
        step=201, losses=np.full(8, LEVELS["small"] * 1.2), buckets=["small"] * 8, bins=bins, grad_norm=1.0
    )
    easy = StepStats(
        step=201,
        losses=np.full(8, LEVELS["small"] * 1.2),
        buckets=["small"] * 8,
        bins=["0"] * 8,
        grad_norm=1.0,
    )

    assert guard_detect.find_problems(past, hard, SPEC) == ()
    assert [found.kind for found in guard_detect.find_problems(past, easy, SPEC)] == ["spike"]


def test_a_bucket_never_seen_is_checked_by_nothing() -> None:
    past = after(120)
    new = StepStats(step=121, losses=np.full(8, 50.0), buckets=["new"] * 8, bins=["3"] * 8, grad_norm=1.0)

    assert guard_detect.find_problems(past, new, SPEC) == ()


def test_a_rise_over_many_steps_is_a_slow_divergence_and_a_jump_that_stays_is_one_after_a_spike() -> None:
    shapes = {}
    for name in ("slow", "jump"):
        past = after(200)
        found: list[guard_detect.Problem] = []
        for step in range(201, 401):
            times = 1.02 ** (step - 200) if name == "slow" else 2.5
            now = figures(step, times=min(times, 2.5))
            of_step = guard_detect.find_problems(past, now, SPEC)
            guard_detect.update_history(past, now, of_step, SPEC)
            found += of_step
        shapes[name] = next(each.shape for each in found if each.kind == "divergence")
        first = found[0]
        assert (first.kind, first.shape) == (
            ("divergence", "slow") if name == "slow" else ("spike", "instant")
        )

    assert shapes == {"slow": "slow", "jump": "after_spike"}


def test_one_spike_that_recovers_is_no_divergence() -> None:
    past = after(200)
    found: list[guard_detect.Problem] = []
    for step in range(201, 401):
        now = figures(step, times=20.0 if 210 <= step < 213 else 1.0)
        of_step = guard_detect.find_problems(past, now, SPEC)
        guard_detect.update_history(past, now, of_step, SPEC)
        found += of_step

    assert {each.kind for each in found} == {"spike"}
    assert found[-1].first_step == 210  # the problem of step 212 began there


def test_a_spike_at_the_end_of_a_rise_is_one_of_a_divergence() -> None:
    past = after(200)
    for step in range(201, 251):
        now = figures(step, times=1.015 ** (step - 200))
        guard_detect.update_history(past, now, guard_detect.find_problems(past, now, SPEC), SPEC)

    found = guard_detect.find_problems(past, figures(251, times=40.0), SPEC)
    assert [(each.kind, each.shape) for each in found if each.kind == "spike"] == [("spike", "diverging")]


def test_a_gradient_far_above_its_median_is_found() -> None:
    past = after(100)

    (found,) = guard_detect.find_problems(past, figures(101, grad_norm=5.0), SPEC)
    assert (found.kind, found.figures["ratio"]) == ("gradient", pytest.approx(5, rel=0.3))


def test_what_is_not_finite_names_clips_and_ranks() -> None:
    now = figures(1)
    bad = StepStats(
        step=1,
        losses=np.where(np.arange(8) == 3, np.nan, now.losses),
        buckets=now.buckets,
        bins=now.bins,
        grad_norm=math.nan,
        rank_norms=(1.0, math.inf),
    )

    (found,) = guard_detect.find_problems(StageHistory(), bad, SPEC)
    assert (found.kind, found.clips, found.figures["ranks"]) == ("nonfinite", (3,), [1])


def test_a_learning_rate_that_restarted_is_found_at_the_resume() -> None:
    assert guard_detect.learning_rate(10, 1e-4, 1e-4) is None
    found = guard_detect.learning_rate(30251, 1.77e-5, 2.5e-7)
    assert found
    assert (found.kind, found.first_step) == ("lr", 30251)
    assert "1.77e-05" in found.reason


def test_a_jump_of_the_weights_norm_is_found_and_slow_growth_is_not() -> None:
    past = StageHistory()
    for look in range(1, 30):
        norm = 100 * 1.001**look
        assert guard_detect.weight_norm(past, 10 * look, norm, SPEC) is None
        guard_detect.update_weight_history(past, 10 * look, norm)

    found = guard_detect.weight_norm(past, 300, norm * 1.1, SPEC)
    assert found
    assert (found.kind, found.first_step) == ("weights", 291)


def test_the_memory_read_back_from_json_is_the_same_and_decides_the_same() -> None:
    state = GuardState(memory=after(150), counts={"warn": 2}, scales=((5, 9, 0.5),))
    state.memory.weight = (150, 12.5)
    state.rollbacks = (Rollback(step=9, kind="spike", to_step=5, stage=0, first=6, last=12),)

    back = history.from_json(json.loads(json.dumps(history.to_json(state))))

    assert back == state
    now = figures(151, times=3.0)
    assert (
        guard_detect.find_problems(back.memory, now, SPEC)
        == guard_detect.find_problems(state.memory, now, SPEC)
        != ()
    )
    assert len(json.dumps(history.to_json(state))) < 50_000
    assert history.from_json(None) == GuardState()


def test_the_firmest_finding_decides_and_a_policy_used_up_gives_way_to_the_next() -> None:
    spec = GuardSpec(spike="skip", gradient="warn", max_rollbacks=1)
    state = GuardState()
    past = after(100)
    found = guard_detect.find_problems(past, figures(101, times=9.0, grad_norm=9.0), spec.thresholds)

    decision = decide(found, spec, state)
    assert decision
    assert (decision.action, decision.found.kind) == ("skip", "spike")
    assert [each.kind for each in decision.others] == ["gradient"]
    assert decide(found, GuardSpec(spike="ignore", gradient="ignore"), state) is None

    state.counts = {"skip": MOST["skip"]}
    assert action_for("spike", spec, state) == "scale_lr"
    assert action_for("nonfinite", GuardSpec(nonfinite="skip"), state) == "rollback"
    state.counts = dict(MOST)
    state.rollbacks = (Rollback(step=9, kind="spike", to_step=5, stage=0, first=6, last=12),)
    assert action_for("spike", spec, state) == "stop"


def test_sensitivity_moves_the_thresholds_away_from_no_difference_or_towards_it() -> None:
    normal, low, high = (GuardSpec(sensitivity=name).thresholds for name in ("normal", "low", "high"))

    assert normal == GuardSpec().thresholds == Thresholds() == Thresholds().scaled(1)
    assert set(THRESHOLDS) == {"low", "normal", "high"}
    assert (low.spike_z, high.spike_z) == (12.0, 4.5)
    assert (low.gradient_ratio, high.gradient_ratio) == (5.0, 2.5)
    assert low.divergence_window == normal.divergence_window == high.divergence_window == 200


@pytest.mark.parametrize("kind", list(CHOICES))
def test_the_choices_of_a_kind_are_those_of_its_recipe_key_mildest_first(kind: Kind) -> None:
    assert sorted(CHOICES[kind], key=FIRMNESS.index) == list(CHOICES[kind])
    assert GuardSpec().policy(kind) in CHOICES[kind]
    for policy in CHOICES[kind]:
        assert GuardSpec.model_validate({kind: policy}).policy(kind) == policy


WINDOWS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=5).map(
    lambda pairs: skip_windows.merged((first, first + length) for first, length in pairs)
)


@given(WINDOWS, st.integers(1, 80))
def test_update_k_reads_the_kth_data_step_that_no_window_holds(skip: skip_windows.Windows, step: int) -> None:
    left = [one for one in range(1, 200) if not any(first <= one <= last for first, last in skip)]

    assert skip_windows.data_step(skip, step) == left[step - 1]
    assert skip_windows.training_step(skip, left[step - 1]) == step
    for first, last in skip:
        assert skip_windows.training_step(skip, first) is skip_windows.training_step(skip, last) is None
        assert last + 1 in left
    assert skip_windows.before(skip, 201) == skip
    assert all(last < step for _, last in skip_windows.before(skip, step))


def test_the_rate_is_scaled_in_the_steps_that_were_asked_for_and_in_no_other() -> None:
    state = GuardState(scales=((10, 19, 0.5), (15, 24, 0.5)))

    assert [state.factor(step) for step in (9, 10, 14, 15, 19, 20, 24, 25)] == [
        1.0, 0.5, 0.5, 0.25, 0.25, 0.5, 0.5, 1.0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"counts": "x"}, {"memory": None}, {"rollbacks": [3]}, {"scales": [[1]]}, {"memory": {}}]
)
def test_a_forged_memory_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="the guard's state cannot be read"):
        history.from_json({**history.to_json(GuardState()), **change})
