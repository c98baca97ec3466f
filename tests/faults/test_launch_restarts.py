"""A launch whose real ranks die or are signalled leaves on disk what an undisturbed run leaves."""

import os
import signal
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.patched_ranks import HANG, SLOW, SLOW_SAVE, patched
from tests.pressed_runs import wait_for
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from trainer.run_folder.checkpoint import checkpoint

SHORT = (
    "stages.0.steps=40",
    "stages.0.checkpoint_every=5",
    "stages.0.log_every=1",
    "loader.num_workers=0",
    "sample=null",
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


def process_of(run: Path, rank: int) -> int:
    """Return the process id of a rank, as the newest head of its log says it."""
    log = (run / "logs" / f"rank-{rank:05d}.log").read_text()
    return int(next(line for line in reversed(log.splitlines()) if line.startswith("── ")).rpartition(" ")[2])


@pytest.fixture(scope="module")
def whole(shards: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nothing disturbs."""
    run = tmp_path_factory.mktemp("whole") / "run"
    forks.start(command_words(shards, run, *SHORT), ranks=2).succeed()
    return run


def test_a_launch_over_a_damaged_newest_checkpoint_resumes_from_the_one_before_and_restarts_nothing(
    shards: Path, forks: Forks, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    forks.start(command_words(shards, run, *SHORT, "stages.0.steps=10")).succeed()
    file = run / "step-00000010/model/__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    words = ["launch", *command_words(shards, run, *SHORT, "stages.0.steps=12"), "--nproc-per-node", "1"]
    launched = forks.start(words)

    assert launched.codes() == [0], launched.text()
    assert events(run, "restart") == []
    assert [event["step"] for event in events(run, "resume")] == [5]
    assert "Kept as damaged-step-00000010; resuming from step-00000005." in launched.text()
    assert [line["step"] for line in numbers(run)] == list(range(1, 13))


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_the_middle_is_restarted_and_the_losses_are_those_of_an_undisturbed_run(
    shards: Path, forks: Forks, whole: Path, tmp_path: Path, rank: int
) -> None:
    run = tmp_path / "run"
    words = ["launch", *command_words(shards, run, *SHORT), "--nproc-per-node", "2"]
    launched = forks.start([*words, "--backoff-seconds", "0.1"])
    wait_for(lambda: len(numbers(run)) >= 7, launched.text)
    os.kill(process_of(run, rank), signal.SIGKILL)

    assert launched.codes() == [0], launched.text()

    assert numbers(run) == numbers(whole)
    (restart,) = events(run, "restart")
    assert restart["codes"][str(rank)] == -signal.SIGKILL
    assert restart["rank"] == rank
    assert 7 <= restart["step_after"] < 40
    (resumed,) = events(run, "resume")
    assert resumed["step"] == restart["step_after"] - restart["step_after"] % 5
    assert f"rank {rank} was killed by SIGKILL" in launched.text()
    assert "done: 40 steps" in launched.text()


@pytest.mark.soak
def test_ranks_that_hang_end_themselves_and_are_restarted(
    shards: Path, forks: Forks, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["launch", *command_words(shards, run, *SHORT, "watch.stall_seconds=4"), "--nproc-per-node", "2"]
    launched = forks.start([*words, "--backoff-seconds", "0.1"], 1, **patched(tmp_path / "patch", HANG))

    assert launched.codes() == [0], launched.text()

    assert numbers(run) == numbers(whole)
    (restart,) = events(run, "restart")
    assert set(restart["codes"].values()) == {76}
    assert restart["step_after"] == 7
    assert [line["step"] for line in events(run, "resume")] == [5]
    assert len(events(run, "stall")) == 1


@pytest.mark.soak
def test_a_slow_rank_whose_policy_is_restart_has_the_run_saved_and_restarted(
    shards: Path, forks: Forks, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    slow = ("watch.on_slow_rank=restart", "watch.max_slowdown=4")
    words = ["launch", *command_words(shards, run, *SHORT, *slow), "--nproc-per-node", "2"]
    program = f"{SLOW}\nfrom trainer.health.watch import spec\nspec.SLOW_RANK_STEPS = 6\n"
    launched = forks.start([*words, "--backoff-seconds", "0.1"], 1, **patched(tmp_path / "patch", program))

    assert launched.codes() == [0], launched.text()

    (stop,), (restart,) = events(run, "stop"), events(run, "restart")
    assert stop["signal"] == "slow_rank"
    assert set(restart["codes"].values()) == {76}
    assert [line["step"] for line in events(run, "resume")] == [stop["step"]]  # nothing was lost
    assert numbers(run) == numbers(whole)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_in_the_middle_of_a_save_leaves_nothing_half_written(
    shards: Path, forks: Forks, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    words = ["launch", *command_words(shards, run, *SHORT), "--nproc-per-node", "2"]
    launched = forks.start(words, 1, **patched(tmp_path / "patch", SLOW_SAVE))
    wait_for(lambda: list(run.glob(".step-*.partial/ema")), launched.text)
    os.kill(launched.pids[0], number)

    assert launched.codes() == [75], launched.text()
    assert f"{number.name}: every rank saves and leaves; once more kills them" in launched.text()
    assert checkpoint.load(run).state["step"] == len(numbers(run))  # every file's checksum is looked at
    assert not list(run.glob(".step-*"))
    assert not events(run, "restart")
    name = "SIGUSR1" if number == signal.SIGUSR1 else "SIGTERM"
    assert [line["signal"] for line in events(run, "stop")] == [name]
