"""Cost table: micro-batch sizes from measured seconds per clip of each bucket.

Micro-batches that take equally long keep all ranks busy, whichever bucket each of them has. A micro-batch of
m clips takes seconds_per_micro_batch + m · seconds_per_clip; `clips` returns the largest m that fits. A light
module.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from vidcurate.errors import RecipeError
from vidcurate.recipe.recipe import Recipe, load

Seconds = Annotated[float, Field(gt=0)]


class CostTable(Recipe):
    """Measured seconds of forward and backward passes, in a separate JSON or YAML file."""

    measured_on: str
    """the hardware, and how the model was run"""
    seconds_per_micro_batch: Annotated[float, Field(ge=0)] = 0.0
    """s that a micro-batch takes whatever its size"""
    seconds_per_clip: dict[str, dict[str, Seconds]]
    """resolution → number of frames → s for each clip"""


def read_cost_table(path: Path) -> CostTable:
    """Return the cost table at `path`. Raises RecipeError, naming the key."""
    return load(path, CostTable)


def seconds_per_clip(table: CostTable, resolution: str, num_frames: int, where: str) -> float:
    """Return seconds per clip of a bucket. Raises RecipeError when the table, read at `where`, lacks it."""
    try:
        return table.seconds_per_clip[resolution][str(num_frames)]
    except KeyError:
        known = ", ".join(f"{name} x {n}" for name, row in table.seconds_per_clip.items() for n in row)
        raise RecipeError(
            f"{where} has no seconds_per_clip for {resolution} with {num_frames} frames (known: {known}). "
            "Measure them, or write the micro-batch size into the bucket table instead of auto."
        ) from None


def clips(table: CostTable, resolution: str, num_frames: int, seconds: float, where: str) -> int:
    """Return the most clips that fit into `seconds`, at least one. Raises as `seconds_per_clip` does."""
    per_clip = seconds_per_clip(table, resolution, num_frames, where)
    return max(1, int((seconds - table.seconds_per_micro_batch) / per_clip + 1e-9))
