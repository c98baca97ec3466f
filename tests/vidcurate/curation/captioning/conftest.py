"""A small probed run of eight clips, one of them without a caption, one broken, one without a file."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.stage import run_ingest
from vidcurate.curation.probe.stage import ProbeSpec, run_probe

NAMES = [f"c{number}" for number in range(8)]
NO_CAPTION, BROKEN, MISSING = "c2", "c3", "c4"
ASKED = [name for name in NAMES if name not in (BROKEN, MISSING)]


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """A folder with `videos` and `run`, after ingest and probe."""
    home = tmp_path_factory.mktemp("captioning")
    (home / "videos").mkdir()
    lines = ["video,caption"]
    for number, name in enumerate(NAMES):
        lines.append(f"{name}.mp4,{'' if name == NO_CAPTION else f'old caption {number}'}")
        if name != MISSING:
            shutil.copy(
                make_video(f"{name}.mp4", num_frames=6 + number, height=34, width=50),
                home / "videos" / f"{name}.mp4",
            )
    (home / "videos" / f"{BROKEN}.mp4").write_bytes(b"no video" * 100)
    (home / "clips.csv").write_text("\n".join(lines) + "\n")
    run_ingest(home / "run", IngestSpec(metadata=home / "clips.csv", videos=home / "videos"))
    run_probe(home / "run", ProbeSpec(videos=home / "videos"))
    return home


@pytest.fixture
def home(probed: Path, tmp_path: Path) -> Path:
    """A copy of the probed run for one test; the videos are shared."""
    shutil.copytree(probed / "run", tmp_path / "run")
    (tmp_path / "videos").symlink_to(probed / "videos")
    return tmp_path
