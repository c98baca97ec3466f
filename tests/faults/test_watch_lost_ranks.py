"""A rank that can do nothing (killed, stopped, the lock held in C) is found, and the others begin again."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import command_words, make_shards
from tests.watch_faults import SPEC, faulty, stall_of, wait_for_steps
from trainer.cli import exit_codes

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("lost") / "shards", num_clips=6)


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["holds_the_lock", "holds_the_lock_before_it_is_watched"])
def test_a_rank_that_holds_the_interpreters_lock_is_found_and_killed(
    forks: Forks, shards: Path, tmp_path: Path, fault: str
) -> None:
    """It cannot end by itself: its watcher does it, or that of another. The other one ends in order."""
    words = command_words(shards, tmp_path / "run", *SPEC)
    with faulty(forks, words, fault, rank=1, ranks=2) as started:
        assert started.codes() == [exit_codes.RESTART, KILLED], started.text()
    stall = stall_of(tmp_path / "run")
    assert (stall["kind"], stall["rank"], stall["function"]) == ("stall", 1, "<lambda>")


@pytest.mark.soak
def test_a_rank_that_was_stopped_is_found_and_killed(forks: Forks, shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # No save, as a rank that is stopped within one is given the time that a save may take.
    words = command_words(shards, run, *SPEC, "stages.0.steps=4000", "stages.0.checkpoint_every=4000")
    with faulty(forks, words, "hangs_in_the_loader", rank=1, ranks=2, at=10_000) as started:
        wait_for_steps(run, 3)
        time.sleep(2.0)  # its watcher is there

        os.kill(started.pids[1], signal.SIGSTOP)

        assert started.codes() == [exit_codes.RESTART, KILLED], started.text()
    stall = stall_of(run)
    assert (stall["kind"], stall["rank"], stall["why"]) == ("stall", 1, "is stopped (SIGSTOP)")


def test_a_rank_that_was_killed_is_lost_and_the_others_end_to_begin_again(
    forks: Forks, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with faulty(forks, command_words(shards, run, *SPEC), "dies", rank=2, ranks=3, at=10) as started:
        assert started.codes() == [exit_codes.RESTART] * 2 + [KILLED], started.text()
    stall = stall_of(run)
    assert (stall["kind"], stall["rank"], stall["why"]) == ("lost", 2, "has ended")
    assert "rank 2 on" in started.text()


@pytest.mark.soak
def test_one_process_alone_is_watched_too(forks: Forks, shards: Path, tmp_path: Path) -> None:
    words = command_words(shards, tmp_path / "run", *SPEC)
    with faulty(forks, words, "holds_the_lock", rank=0, ranks=1) as started:
        assert started.codes() == [KILLED], started.text()
    stall = stall_of(tmp_path / "run")
    assert (stall["rank"], stall["function"], stall["step"]) == (0, "<lambda>", 3)
