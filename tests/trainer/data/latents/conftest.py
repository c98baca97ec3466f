"""Clips and their latents, encoded once for each file of tests."""

from pathlib import Path

import pytest

from tests.trainer.data.latents.made import CUT_SHORT, encode
from tests.trainer.shards_for_tests import make_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.fixture(scope="module")
def hurt_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same clips, one of which cannot be decoded."""
    return make_shards(tmp_path_factory.mktemp("hurt") / "shards", cut_short=(CUT_SHORT,))


@pytest.fixture(scope="module")
def latents(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both views of all clips, three to a shard; copy it before changing it."""
    out = tmp_path_factory.mktemp("latents") / "latents"
    encode(shards, out)
    return out
