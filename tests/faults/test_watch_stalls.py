"""A rank that hangs, is stopped or is killed ends the run in a known state, and its function is named."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked_runs import Forked, Forks
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from trainer import exit_codes, metrics, processes

KILLED = -signal.SIGKILL
SPEC = (
    "sample=null",
    "stages.0.steps=400",
    "stages.0.checkpoint_every=2",
    "loader.num_workers=0",
    "watch.stall_seconds=4",
    "watch.slow_phase_seconds=90",
)

Start = Callable[..., Forked]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("stalls") / "shards", num_clips=6)


@pytest.fixture
def start(forks: Forks, shards: Path, tmp_path: Path) -> Start:
    def begin(fault: str, *, rank: int, ranks: int, at: int = 3, more: tuple[str, ...] = ()) -> Forked:
        words = command_words(shards, tmp_path / "run", *SPEC, *more)
        program = f"from tests.watch_faults import run; run({fault!r}, {rank}, {at}, {words!r})"
        return forks.start(["-c", program], ranks=ranks)

    return begin


def stall_of(run: Path) -> dict[str, Any]:
    """Return the one event `stall` of a run; it may come a moment after the ranks have ended."""
    until = time.monotonic() + 20
    while not (found := events(run, "stall")) and time.monotonic() < until:
        time.sleep(0.1)
    (stall,) = found
    return stall


def wait_for_steps(run: Path, count: int) -> None:
    until = time.monotonic() + 60
    while len(metrics.read(run / metrics.METRICS)) < count:
        assert time.monotonic() < until, "the run makes no steps"
        time.sleep(0.05)


def test_a_rank_that_hangs_in_the_loader_is_named_and_all_end_to_begin_again(
    start: Start, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    started = start("hangs_in_the_loader", rank=1, ranks=3)

    assert started.codes() == [exit_codes.RESTART] * 3, started.text()

    stall = stall_of(run)
    assert stall["kind"] == "stall"
    assert (stall["step"], stall["rank"], stall["phase"]) == (3, 1, "data")
    assert stall["host"] == processes.host_name()
    assert stall["function"] == "waits_for_a_clip"
    assert stall["at"].startswith("watch_faults.py:")
    assert stall["why"] == "is not in the collective in which the others wait"
    assert stall["seconds"] >= 4
    folder = run / stall["stacks"]
    summary = json.loads((folder / "summary.json").read_text())
    assert [len(group["who"]) for group in summary["groups"]] == [2, 1]
    assert summary["did_not_move"] == 3
    text = (folder / "stacks.txt").read_text()
    assert text.startswith(f"odd: {processes.host_name()} rank 1 is not in the collective")
    assert "waits_for_a_clip" in text
    assert {path.name for path in folder.glob("rank-*")} == {
        f"rank-{rank:05d}-{number}.json" for rank in range(3) for number in (1, 2)
    }


def test_a_rank_that_never_comes_to_the_collective_is_named_and_the_same_command_goes_on(
    start: Start, forks: Forks, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    started = start("hangs_before_a_collective", rank=0, ranks=2)

    assert started.codes() == [exit_codes.RESTART] * 2, started.text()
    stall = stall_of(run)
    assert (stall["rank"], stall["function"], stall["phase"]) == (0, "<lambda>", "update")
    assert "error: rank 0 ends: stall at step 3" in started.text()

    short = command_words(shards, run, *SPEC, "stages.0.steps=6")
    forks.start(short, ranks=2).succeed()

    assert [line["step"] for line in numbers(run)] == list(range(1, 7))
    assert not (run / "stacks" / "now.json").exists()


def test_a_rank_that_holds_the_interpreters_lock_is_found_and_killed(start: Start, tmp_path: Path) -> None:
    started = start("holds_the_lock", rank=1, ranks=2)

    # It cannot end by itself: its watcher does it. The other one ends in order.
    assert started.codes() == [exit_codes.RESTART, KILLED], started.text()
    stall = stall_of(tmp_path / "run")
    assert (stall["kind"], stall["rank"], stall["function"]) == ("stall", 1, "<lambda>")


def test_a_rank_that_was_stopped_is_found_and_killed(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = start("hangs_in_the_loader", rank=1, ranks=2, at=10_000)
    wait_for_steps(run, 3)
    time.sleep(2.0)  # its watcher is there

    os.kill(started.pids[1], signal.SIGSTOP)

    assert started.codes() == [exit_codes.RESTART, KILLED], started.text()
    stall = stall_of(run)
    assert (stall["kind"], stall["rank"], stall["why"]) == ("stall", 1, "is stopped (SIGSTOP)")


def test_a_rank_that_was_killed_is_lost_and_the_others_end_to_begin_again(
    start: Start, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    started = start("dies", rank=2, ranks=3, at=10)

    assert started.codes() == [exit_codes.RESTART] * 2 + [KILLED], started.text()
    stall = stall_of(run)
    assert (stall["kind"], stall["rank"], stall["why"]) == ("lost", 2, "has ended")
    assert "rank 2 on" in started.text()


def test_one_process_alone_is_watched_too(start: Start, tmp_path: Path) -> None:
    started = start("holds_the_lock", rank=0, ranks=1)

    assert started.codes() == [KILLED], started.text()
    stall = stall_of(tmp_path / "run")
    assert (stall["rank"], stall["function"], stall["step"]) == (0, "<lambda>", 3)


def test_with_the_policy_warn_a_stall_is_told_once_and_nothing_ends(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "run"
    started = start("hangs_in_the_loader", rank=0, ranks=1, more=("watch.on_stall=warn",))
    stall = stall_of(run)

    time.sleep(5.0)

    assert stall["policy"] == "warn"
    assert len(events(run, "stall")) == 1
    assert processes.state(started.pids[0]) != "ended"
    os.kill(started.pids[0], signal.SIGKILL)
    assert started.codes() == [KILLED]
