"""Ctrl-C in what `vidcurate train` and `vidcurate launch` started: the first saves, the second ends."""

from pathlib import Path

import pytest

from tests.patched_ranks import ENDLESS
from tests.pressed_runs import pressed
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from trainer.run_folder.checkpoint import checkpoint

# A decode worker, so that there is a process besides the ranks that could be left behind.
LONG = ("stages.0.steps=5000", "stages.0.checkpoint_every=1000", "sample=null", "loader.num_workers=1")
AT_ONCE = "interrupted; the same command continues from the newest checkpoint"
# What starts the training, what it says when it has heard the first Ctrl-C, and its processes at least: each
# rank has a decode worker; a launch is a launcher and an agent, too.
ALONE = (["vidcurate", "train"], [], "SIGINT: the run saves after this step and stops; once more ends it", 2)
ON_TWO_RANKS = (
    ["vidcurate", "launch"],
    ["--nproc-per-node", "2"],
    "SIGINT: every rank saves and leaves; once more kills them",
    6,
)
NAMES = ("command", "more", "heard", "least")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.mark.parametrize(
    NAMES,
    [
        pytest.param(*ALONE, id="train"),
        pytest.param(
            *ON_TWO_RANKS, id="launch", marks=pytest.mark.soak
        ),  # torchrun's and ssh's ranks do it, too
    ],
)
def test_the_first_ctrl_c_saves_and_stops_and_the_same_command_continues(
    shards: Path, tmp_path: Path, command: list[str], more: list[str], heard: str, least: int
) -> None:
    run = tmp_path / "run"
    words = [*command, *command_words(shards, run, *LONG), *more]
    with pressed(words, tmp_path / "first") as job:
        job.wait_for_steps(run, 2)
        assert len(job.processes()) >= least
        job.press()
        code = job.end()

    assert code == 75, job.text()
    assert heard in job.text()
    step = checkpoint.load(run).state["step"]
    assert step == len(numbers(run))
    said = [line for line in job.text().splitlines() if line.startswith("interrupted")]
    assert said == [
        AT_ONCE
        if more
        else f"interrupted; the same command continues from {run}/step-{step:08d} of 5,000 steps"
    ]
    assert "Traceback" not in job.text()
    assert len(events(run, "stop")) == 1

    with pressed(words, tmp_path / "again") as job:
        job.wait_for_steps(run, step + 1)
        job.press()
        assert job.end() == 75, job.text()

    (resumed,) = events(run, "resume")
    assert resumed["step"] == step
    steps = [line["step"] for line in numbers(run)]
    assert steps == list(range(1, checkpoint.load(run).state["step"] + 1))


@pytest.mark.parametrize(NAMES, [ALONE, ON_TWO_RANKS], ids=["train", "launch"])
def test_the_second_ctrl_c_ends_at_once_and_leaves_no_process(
    shards: Path, tmp_path: Path, command: list[str], more: list[str], heard: str, least: int
) -> None:
    """The ranks are in a step that never ends: only the second can end them."""
    run = tmp_path / "run"
    words = [*command, *command_words(shards, run, *LONG), *more]
    with pressed(words, tmp_path / "job", ENDLESS) as job:
        job.wait_for_steps(run, 2)
        assert len(job.processes()) >= least
        job.press_twice(heard)
        code = job.end()

    assert code == 130, job.text()
    assert job.text().splitlines()[-1] == AT_ONCE
    assert "Traceback" not in job.text()
    assert not (run / "LATEST").exists()
    assert events(run, "restart") == []
