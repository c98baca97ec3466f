"""Resumed equals uninterrupted, with real processes that are really killed."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.forked_runs import Forked, Forks
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers, smoke
from trainer.run_folder import metrics
from trainer.run_folder.checkpoint import checkpoint, checksum
from trainer.train import train

FORTY = (
    "stages.0.steps=40",
    "stages.0.checkpoint_every=4",
    "stages.0.keep_last=2",
    "stages.0.log_every=1",
    "loader.num_workers=0",
    "sample.every=20",
)
LIMIT_SECONDS = 300.0


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def undisturbed(shards: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    start(forks, shards, run).succeed()
    return run


def start(forks: Forks, shards: Path, run: Path, *more: str) -> Forked:
    return forks.start(command_words(shards, run, *FORTY, *more))


# However late the kill comes, the run is not over: it stands still before this step.
HOLDS = """
import json, os, sys, time
from trainer.run_folder import jsonl
from trainer.run_folder import metrics
from trainer.__main__ import main

append = jsonl.append_line


def held(path, line):
    while path.name == metrics.METRICS and line["step"] >= int(os.environ["HOLD"]):
        time.sleep(0.05)
    append(path, line)


jsonl.append_line = held
sys.exit(main(json.loads(os.environ["WORDS"])))
"""


def is_running(process: Forked) -> bool:
    """Whether the process is there and does something (it is not ours to wait for)."""
    try:
        return Path(f"/proc/{process.pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_steps(process: Forked, run: Path, steps: int) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while len(metrics.read_metrics(run / "metrics.jsonl")) < steps and is_running(process):
        assert time.monotonic() < end, f"no {steps} steps in {LIMIT_SECONDS} s"
        time.sleep(0.002)


def begun(run: Path) -> int:
    """Return how many starts of a run have said that they begin."""
    return len(events(run, "resume")) + len(events(run, "start"))


def wait_until_begun(process: Forked, run: Path, starts: int) -> None:
    """Wait for it: the steps of the start before are there already, perhaps more than are waited for."""
    end = time.monotonic() + LIMIT_SECONDS
    while begun(run) < starts and is_running(process):
        assert time.monotonic() < end, process.text()
        time.sleep(0.002)


def assert_same(one: Path, other: Path) -> None:
    assert numbers(one) == numbers(other)
    first, second = checkpoint.load(one), checkpoint.load(other)
    for part in checkpoint.PARTS:
        assert checksum.checksum(first.parts[part]) == checksum.checksum(second.parts[part]), part
        for file in (".metadata", "__0_0.distcp"):
            assert (first.path / part / file).read_bytes() == (second.path / part / file).read_bytes()
    differs = {"recipe", "recipe_digest"}  # the output folder's name is in them
    assert {k: v for k, v in first.state.items() if k not in differs} == {
        k: v for k, v in second.state.items() if k not in differs
    }
    for path in sorted(one.glob("samples/*/*.mp4")):
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.name


def test_forty_steps_are_fifteen_and_twenty_five_bit_for_bit(
    shards: Path, forks: Forks, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    start(forks, shards, run, "stages.0.steps=15").succeed()

    start(forks, shards, run).succeed()

    assert_same(undisturbed, run)
    assert len(numbers(run)) == 40


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_killed_at_random_moments_it_ends_the_same_bit_for_bit(
    shards: Path, forks: Forks, undisturbed: Path, tmp_path: Path, kills: int
) -> None:
    """In steps, between them and in saves; every other start saves in the background."""
    run = tmp_path / "run"
    moments = random.Random(5)
    in_a_save = 0
    for number in range(kills):
        background = f"stages.0.checkpoint_in_background={str(number % 2 == 0).lower()}"
        words = json.dumps(command_words(shards, run, *FORTY, background))
        process = forks.start(["-c", HOLDS], WORDS=words, HOLD=str(min(4 * number + 15, 39)))
        wait_until_begun(process, run, number + 1)
        wait_for_steps(process, run, 4 * number + 1)
        if number % 2:  # let it come to its next save
            end = time.monotonic() + 5
            while not list(run.glob(".step-*.partial")) and is_running(process) and time.monotonic() < end:
                time.sleep(0.0005)
            time.sleep(moments.uniform(0, 0.01))
        else:
            time.sleep(moments.uniform(0, 0.05))
        os.kill(process.pids[0], signal.SIGKILL)
        assert process.codes() == [-signal.SIGKILL], process.text()
        in_a_save += bool(list(run.glob(".step-*.partial")))

    start(forks, shards, run).succeed()

    assert in_a_save >= kills // 5
    assert_same(undisturbed, run)
    assert begun(run) == kills + 1
    assert not list(run.glob(".step-*"))


@pytest.mark.parametrize(
    ("number", "background"),
    [
        pytest.param(signal.SIGTERM, "false", id="TERM", marks=pytest.mark.soak),
        pytest.param(signal.SIGUSR1, "true", id="USR1"),
    ],
)
def test_a_signal_saves_and_asks_for_the_same_command_again(
    shards: Path, forks: Forks, tmp_path: Path, number: signal.Signals, background: str
) -> None:
    run = tmp_path / "run"
    long = (
        "stages.0.steps=5000",
        "stages.0.checkpoint_every=1",  # so the signal finds it in a save as often as not
        f"stages.0.checkpoint_in_background={background}",
        "sample=null",
    )
    process = start(forks, shards, run, *long)
    wait_for_steps(process, run, 3)
    os.kill(process.pids[0], number)

    assert process.codes() == [75], process.text()
    step = len(numbers(run))
    assert (
        f"{number.name}: saved {run}/step-{step:08d} of 5,000 steps; the same command resumes\n"
    ) in process.text()
    assert checkpoint.load(run).state["step"] == step
    assert events(run, "stop")[0]["signal"] == number.name
    assert len(events(run, "save")) == step
    whole = (f"stages.0.steps={step + 2}", *long[1:])
    for folder in (run, tmp_path / "whole"):
        start(forks, shards, folder, *whole).succeed()
    assert_same(tmp_path / "whole", run)


def test_what_a_kill_left_between_save_and_sample_is_sampled_later(
    shards: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    shutil.rmtree(run / "samples" / "step-00000040")

    train(smoke(shards, run, *FORTY))

    assert_same(undisturbed, run)
    assert [event["step"] for event in events(run, "sample")] == [20, 40, 40]
