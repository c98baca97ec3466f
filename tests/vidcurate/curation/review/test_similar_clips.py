"""Clips that look alike: by embedding where there is one, else by perceptual hash."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.shard_runs import write_table
from vidcurate.curation.review.clip_rows import ClipRows
from vidcurate.curation.review.similar_clips import distances, has_hashes, look_distances
from vidcurate.errors import ColumnError, InputError

VECTORS = {"clip0": [1.0, 0.0], "clip1": [0.6, 0.8], "clip2": [-2.0, 0.0]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    looks = [(0xF0F0F0F0F0F0F0F0, 0x0F0F0F0F0F0F0F0F)[number % 2] for number in range(4)]
    rows = [
        {"clip_id": f"clip{number}", "video_path": f"{number}.mp4", "source_dataset": "made",
         "ingest_problem": None, "caption": "a clip", "perceptual_hashes": [looks[number]] * 5}
        for number in range(4)
    ]  # fmt: skip
    write_table(tmp_path, rows, stage="frames")
    return tmp_path


def embed(run: Path) -> None:
    pl.DataFrame({"clip_id": [*VECTORS], "embedding": [*VECTORS.values()]}).write_parquet(
        run / "embeddings.parquet"
    )


def test_embeddings_decide_where_the_clip_has_one(run: Path) -> None:
    embed(run)
    found = distances(ClipRows(run), 0)
    assert found[:3] == pytest.approx([0.0, 0.4, 2.0], abs=1e-6)
    assert np.isnan(found[3])


def test_a_clip_without_an_embedding_is_compared_by_its_hashes(run: Path) -> None:
    rows = ClipRows(run)
    assert np.array_equal(distances(rows, 3), look_distances(rows, 3), equal_nan=True)
    embed(run)
    assert np.array_equal(distances(rows, 3), look_distances(rows, 3), equal_nan=True)
    assert distances(rows, 3)[1] == 0.0 < distances(rows, 3)[0]


def test_what_cannot_be_compared_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row 4; the table has 4"):
        distances(ClipRows(run), 4)
    (run / "embeddings.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="no embeddings can be read"):
        distances(ClipRows(run), 0)
    bare = tmp_path / "bare"
    write_table(bare, [{"clip_id": "a", "video_path": "a.mp4", "ingest_problem": None}], stage="ingest")
    assert not has_hashes(ClipRows(bare))
    with pytest.raises(ColumnError, match="score-frames"):
        distances(ClipRows(bare), 0)
