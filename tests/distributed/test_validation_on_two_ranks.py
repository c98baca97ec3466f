"""A round of validation is the same on one rank and on two, however the model lies over them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.shards_for_tests import TINY, make_shards, numbers, settings, smoke
from trainer.run_folder import metrics
from trainer.train import train

ON = ("validation.every=1", "stages.0.steps=2", "stages.0.data.micro_batches_per_step=3", "sample=null")
LIMIT_SECONDS = 120


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards", validation=(7, 8, 9, 10, 11))


@pytest.fixture(scope="module")
def alone(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    train(smoke(shards, run, *ON))
    return run


def rounds(run: Path) -> list[dict[str, Any]]:
    return metrics.read_metrics(run / metrics.VALIDATION)


@pytest.mark.soak
def test_a_round_is_the_same_on_two_ranks(shards: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    values = settings(shards, run, *ON, "parallel.sharding=full")
    words = [word for value in values for word in ("--set", value)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*torchrun, "-m", "trainer", str(TINY), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        cwd=TINY.parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr

    assert [line["step"] for line in rounds(run)] == [0, 1, 2]
    # Before the first step the weights are the same to the last bit, and so is all that is measured of them.
    first, there = rounds(alone)[0], rounds(run)[0]
    assert {key: there[key] for key in first if key not in ("time", "seconds")} == {
        key: value for key, value in first.items() if key not in ("time", "seconds")
    }
    for one, two in zip(rounds(alone), rounds(run), strict=True):
        assert two["loss_by_clip"] == pytest.approx(one["loss_by_clip"], rel=1e-5)
    assert [line["loss"] for line in numbers(run)] == pytest.approx(
        [line["loss"] for line in numbers(alone)], rel=1e-5
    )
