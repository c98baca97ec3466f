"""A run folder with one checkpoint."""

from pathlib import Path

import pytest

from tests.trainer.run_folder.checkpoint.saved_parts import STATE, parts
from trainer.run_folder.checkpoint import checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "run", 100, parts(), STATE)
    return tmp_path / "run"
