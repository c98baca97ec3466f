"""A learning rate that becomes too high: the slow rise is named, the rate scaled or the run ended."""

import json
from pathlib import Path

import pytest

from tests.forked_runs import Forks, program
from tests.guard_runs import make_poisoned, of_guard, words
from tests.trainer.shards_for_tests import numbers
from trainer.cli import exit_codes
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import pointer
from trainer.run_folder.checkpoint import checkpoint
from trainer.training.optim import schedule
from trainer.training.optim.schedule import OptimSpec

STEPS = 84
# The rate rises from 1e-3 to 0.25, which this model does not bear: its loss begins to rise near step 55.
RATE = {
    "schedule": "bump",
    "lr": 0.25,
    "min_lr": 1e-3,
    "max_lr": 0.25,
    "warmup_steps": 90,
    "cooldown_steps": 10,
}
LONG = (
    f"stages.0.steps={STEPS}",
    "stages.0.checkpoint_every=20",
    f"stages.0.optim={json.dumps(RATE)}",
)
# With spike_ratio 3 no step of the rise is a spike by itself, whatever the CPU's last bits.
SHORT_WINDOW = """
from trainer.recipe import guard_spec

guard_spec.THRESHOLDS["normal"] = guard_spec.Thresholds(divergence_window=16, spike_ratio=3.0)
guard_spec.LR_FACTOR, guard_spec.LR_STEPS = 0.1, 5
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_poisoned(tmp_path_factory.mktemp("made") / "sound", poison=None, clips=4 * STEPS)


def test_a_slow_divergence_is_found_and_the_rate_scaled_for_the_steps_that_were_asked_for(
    recipe: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    more = ("guard.divergence=scale_lr", "guard.spike=ignore")
    forks.start(program(SHORT_WINDOW, words(recipe, run, *LONG, *more))).succeed()

    event = next(event for event in of_guard(run) if event["finding"] == "divergence")
    assert (event["action"], event["shape"]) == ("scale_lr", "slow")
    assert 40 < event["first_step"] < event["step"] <= STEPS
    assert event["figures"]["rise"] > 0.1
    first, last = event["lr_steps"]
    assert (first, last) == (event["step"], event["step"] + 4)
    spec = OptimSpec.model_validate(RATE)
    for line in numbers(run)[: last + 1]:
        due = schedule.learning_rate(spec, line["step"] - 1, STEPS)
        assert line["lr"] == due * (0.1 if first <= line["step"] <= last else 1.0)
    assert checkpoint.load(run).state["guard"]["scales"][0] == [first, last, 0.1]
    assert not [each for each in of_guard(run) if each["finding"] == "lr"]  # a scaled rate is as it should be


def test_a_slow_divergence_can_stop_the_run_with_the_checkpoint_before_it(
    recipe: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    given = words(recipe, run, *LONG, "guard.divergence=stop", "guard.spike=ignore")
    started = forks.start(program(SHORT_WINDOW, given))
    assert started.codes() == [exit_codes.HALT], started.text()

    event = of_guard(run)[-1]
    assert (event["action"], event["finding"], event["shape"]) == ("stop", "divergence", "slow")
    assert "it rose slowly, without a spike before: such a rise seldom recovers" in started.text()
    assert len(numbers(run)) == event["step"] - 1
    newest = pointer.latest(run)
    assert newest
    assert run_folder_layout.step_of(newest) < event["step"]
