"""Two films, a file that is none, and the table of their scenes."""

from pathlib import Path

import numpy as np
import pytest

from tests.frame_clips import Frames, panned
from tests.vidcurate.curation.scenes.films import FILMS, FPS, SPEC
from vidcurate.curation.scenes.split import run_split_scenes
from vidcurate.media import encode


def film(lengths: tuple[int, ...], seed: int) -> Frames:
    return np.concatenate(
        [panned(2, 1, length, 144, 256, seed=seed + number) for number, length in enumerate(lengths)]
    )


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two films, a file that is none, and the table of their scenes."""
    home = tmp_path_factory.mktemp("scenes")
    videos = home / "films"
    (videos / "more").mkdir(parents=True)
    encode.write_video(videos / "a.mp4", film(FILMS["a.mp4"], 0), fps=FPS, gop=60)
    encode.write_video(videos / "more" / "b.mkv", film(FILMS["b.mkv"], 50), fps=FPS, gop=12)
    (videos / "broken.mp4").write_bytes(b"no film")
    run_split_scenes([videos], SPEC, out=home / "scenes.parquet")
    return home
