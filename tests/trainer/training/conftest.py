"""Shards, a short run and one cut off in its midst, made once for each file of tests."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.shards_for_tests import make_shards, smoke
from tests.trainer.training.states import SHORT
from trainer.train import train


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def short_run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 4 steps with checkpoints at 2 and 4; copy it before changing it."""
    run = tmp_path_factory.mktemp("short") / "run"
    train(smoke(shards, run, *SHORT))
    return run


@pytest.fixture
def half_run(short_run: Path, tmp_path: Path) -> Path:
    """The short run as it was after its second step, killed while it saved the third."""
    run = tmp_path / "half"
    shutil.copytree(short_run, run)
    shutil.rmtree(run / "step-00000004")
    (run / "LATEST").write_text("step-00000002\n")
    (run / ".step-00000003.partial").mkdir()
    return run
