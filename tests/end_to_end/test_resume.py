"""Resumed equals uninterrupted, with real processes that are really killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import SMOKE, events, make_shards, numbers, settings, smoke
from trainer import checkpoint, metrics
from trainer.loop import train

TWENTY = ("stages.0.checkpoint_every=1", "stages.0.keep_last=2", "sample.every=10")
LIMIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def undisturbed(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train(smoke(shards, run, *TWENTY))
    return run


def start(shards: Path, run: Path, *more: str) -> "subprocess.Popen[str]":
    words = [word for value in settings(shards, run, *TWENTY, *more) for word in ("--set", value)]
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", str(SMOKE), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_steps(process: "subprocess.Popen[str]", run: Path, steps: int) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while len(metrics.read(run / "metrics.jsonl")) < steps and process.poll() is None:
        assert time.monotonic() < end, f"no {steps} steps in {LIMIT_SECONDS} s"
        time.sleep(0.002)


def assert_same(one: Path, other: Path) -> None:
    assert numbers(one) == numbers(other)
    first, second = checkpoint.load(one), checkpoint.load(other)
    for part in checkpoint.PARTS:
        assert checkpoint.checksum(first.parts[part]) == checkpoint.checksum(second.parts[part]), part
    differs = {"recipe", "recipe_digest"}  # the output folder's name is in them
    assert {k: v for k, v in first.state.items() if k not in differs} == {
        k: v for k, v in second.state.items() if k not in differs
    }
    for path in sorted(one.glob("samples/*/*.mp4")):
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.name


def test_twenty_steps_are_ten_and_ten_bit_for_bit(shards: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(smoke(shards, run, *TWENTY, "stages.0.steps=10"))

    train(smoke(shards, run, *TWENTY))

    assert_same(undisturbed, run)
    assert len(numbers(run)) == 20


def test_killed_at_any_moment_and_run_again_it_ends_the_same(
    shards: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    moments = random.Random(5)
    for steps in (4, 11):
        process = start(shards, run)
        wait_for_steps(process, run, steps)
        time.sleep(moments.uniform(0, 0.03))  # in a step, a save, or between
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == -signal.SIGKILL

    last = start(shards, run)
    _, told = last.communicate(timeout=LIMIT_SECONDS)

    assert last.returncode == 0, told
    assert_same(undisturbed, run)
    assert len(events(run, "resume")) >= 1
    assert not list(run.glob(".step-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_asks_for_the_same_command_again(
    shards: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run, long = tmp_path / "run", ("stages.0.steps=5000", "stages.0.checkpoint_every=5000", "sample=null")
    process = start(shards, run, *long)
    wait_for_steps(process, run, 3)
    process.send_signal(number)
    answer, _ = process.communicate(timeout=LIMIT_SECONDS)

    assert process.returncode == 75
    step = len(numbers(run))
    assert answer == (
        f"{number.name}: saved {run}/step-{step:08d} of 5000 steps; the same command goes on from it\n"
    )
    assert checkpoint.load(run).state["step"] == step
    assert events(run, "stop")[0]["signal"] == number.name
    whole = (f"stages.0.steps={step + 2}", *long[1:])
    train(smoke(shards, run, *TWENTY, *whole))
    train(smoke(shards, tmp_path / "whole", *TWENTY, *whole))
    assert_same(tmp_path / "whole", run)


def test_what_a_kill_left_between_save_and_sample_is_sampled_later(
    shards: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(smoke(shards, run, *TWENTY, "stages.0.steps=10", "sample=null"))

    train(smoke(shards, run, *TWENTY))

    assert_same(undisturbed, run)
    assert [event["step"] for event in events(run, "sample")] == [10, 20]
