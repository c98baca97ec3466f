"""Tiny models, and a run of small clips to score."""

from pathlib import Path

import polars as pl
import pytest

from tests.tiny_models import WIDTH, head_of, make_classifier, make_clip
from tests.vidcurate.curation.model_scores.scored_clips import CAPTIONS, pictures
from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.table import Provenance
from vidcurate.media import encode


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("models") / "tiny-clip")


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("head") / "linearMSE.pth"
    torch.save(head_of((WIDTH, 1024, 128, 64, 16, 1)), path)
    return path


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("watermark") / "tiny-vit")


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """Six clips: four whole ones of two sizes, one cut out of a file, one that does not decode."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(4):
        encode.write_video(videos / f"{number}.mp4", pictures(number), fps=8)
    (videos / "4.mp4").write_bytes(b"no video")
    encode.write_video(videos / "5.mp4", pictures(5, height=96, width=64), fps=8)
    frame = pl.DataFrame(
        {
            "clip_id": [f"{n}" for n in range(6)],
            "video_path": [f"{n}.mp4" for n in range(6)],
            "caption": CAPTIONS,
            "ingest_problem": pl.Series([None] * 6, dtype=pl.String),
            "source_id": [f"{n}" for n in range(6)],
            "file_size_bytes": [1] * 6,
            "start_seconds": [None, None, None, 0.5, None, None],
            "end_seconds": [None, None, None, 1.0, None, None],
            "width": [96] * 5 + [64],
            "height": [64] * 5 + [96],
        }
    )
    folder = tmp_path / "run"
    table.write(frame, table.stage_path(folder, "ingest"), Provenance(stage="ingest", settings={}, inputs={}))
    return folder, videos
