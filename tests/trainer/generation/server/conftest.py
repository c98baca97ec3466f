"""A short training run whose checkpoints are served."""

import shutil
from pathlib import Path

import pytest

from tests.trainer.generation.server.served_runs import SHORT
from tests.trainer.shards_for_tests import make_shards, smoke
from trainer.train import train


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards", validation=(10, 11))


@pytest.fixture(scope="session")
def trained(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4 steps with checkpoints at 2 and 4, whose training has sampled step 4."""
    run = tmp_path_factory.mktemp("trained") / "001-run"
    more = ("validation.every=2", "validation.clips_per_bucket=2")
    train(smoke(shards, run, *SHORT, *more))
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run as rsync makes it: without optimizer state."""
    return Path(shutil.copytree(trained, tmp_path / trained.name, ignore=shutil.ignore_patterns("optimizer")))
