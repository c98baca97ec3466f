"""Own scores, as an example: `vidcurate score-own RUN --score recipes/own_scores.py:colourfulness`."""

import numpy as np


def colourfulness(frames: np.ndarray) -> float:
    """Return how colourful the frames are (Hasler and Süsstrunk, 2003); uint8 RGB (T, H, W, 3)."""
    red, green, blue = np.moveaxis(frames.astype(np.float32), -1, 0)
    first, second = red - green, (red + green) / 2 - blue
    return float(np.hypot(first.std(), second.std()) + 0.3 * np.hypot(first.mean(), second.mean()))


colourfulness.num_frames = 3  # type: ignore[attr-defined]
colourfulness.short_side_px = 144  # type: ignore[attr-defined]


def questions(caption: str | None) -> int:
    """Return the number of question marks in the caption."""
    return (caption or "").count("?")


def shape(row: dict[str, object]) -> dict[str, float]:
    """Return several columns: shape_pixels and shape_ratio."""
    height, width = float(str(row["height"])), float(str(row["width"]))
    return {"pixels": height * width, "ratio": height / width}


shape.unit = ""  # type: ignore[attr-defined]
