"""Clips that several tests of the probe copy and cut."""

from pathlib import Path

import pytest

from tests.numbered_clips import write
from tests.vidcurate.curation.probe.copied_clips import OPEN_GOP


@pytest.fixture(scope="module", params=["libx264", "libx265"])
def open_gop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open_gop") / f"{request.param}.mkv"
    return write(path, codec=request.param, options=OPEN_GOP[request.param], num_frames=36)
