"""What may take longer than a step ends no run: a first step, a second training, a rollback, a step again."""

from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.guard_runs import STEPS, make_poisoned, of_guard, words
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from tests.watch_faults import LONG_SECONDS, faulty

SHORT = ("watch.stall_seconds=4", "loader.num_workers=0", "sample=null")
assert LONG_SECONDS > 4


@pytest.mark.soak
def test_two_trainings_in_one_process_are_each_watched_by_themselves(forks: Forks, tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", num_clips=6)
    runs = [tmp_path / name for name in ("one", "two")]
    one, two = [command_words(shards, run, *SHORT, "stages.0.steps=30") for run in runs]
    program = f"""
import sys
from tests.watch_faults import begins_slowly
from trainer.__main__ import main
begins_slowly(0)
sys.exit(main({one!r}) or main({two!r}))
"""
    started = forks.start(["-c", program])
    started.succeed()

    assert started.text().count("watched by 1 process\n") == 2
    for run in runs:
        assert not events(run, "stall")
        assert len(numbers(run)) == 30


@pytest.mark.parametrize(
    "fault", ["computes_again_slowly", pytest.param("goes_back_slowly", marks=pytest.mark.soak)]
)
def test_what_the_guard_does_may_take_longer_than_a_step(forks: Forks, tmp_path: Path, fault: str) -> None:
    recipe, run = make_poisoned(tmp_path / "poisoned"), tmp_path / "run"
    more = ("guard.spike=rollback", "guard.gradient=rollback", *SHORT)
    with faulty(forks, words(recipe, run, *more), fault, rank=0, ranks=1) as started:
        started.succeed()

    assert [event["action"] for event in of_guard(run)] == ["rollback"]
    assert not events(run, "stall")
    assert len(numbers(run)) == STEPS
