"""A run of small clips, scored by tiny models."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.model_scores.spec import ModelsSpec
from vidcurate.curation.model_scores.stage import run_models


def pictures(seed: int, num_frames: int = 12, height: int = 64, width: int = 96) -> np.ndarray:
    rng = np.random.default_rng(seed)
    block = np.kron(
        rng.integers(0, 255, (height // 8, width // 8, 3), np.uint8), np.ones((8, 8, 1), np.uint8)
    )
    return np.stack([np.roll(block, 2 * number, 1) for number in range(num_frames)])


CAPTIONS = ["a dog runs", "a red cat", None, "the sea at night", "a broken one", "a portrait"]


def scored(run: tuple[Path, Path], **settings: Any) -> pl.DataFrame:
    run_models(run[0], ModelsSpec(**settings), videos=run[1])
    return table.scan(run[0], "models").collect()
