"""Average of any width from a run's checkpoints, chosen after the training.

Each checkpoint of a run with `power_ema` holds two averages. The more checkpoints a run keeps (`keep_every`),
the nearer the result is to the average of that width, tracked all along.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.model import power_average
from trainer.model.power_average import PARTS, WIDEST, Kept
from trainer.run_folder.checkpoint import checkpoint
from trainer.run_folder.layout import checkpoints
from vidcurate.errors import CheckpointError, InputError

MOST_ERROR = 0.1  # of the profile's norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """Weights of an average, float32, by name; its profile's `error`; the `checkpoints` it is made of."""

    weights: dict[str, Tensor]
    error: float
    checkpoints: tuple[str, ...]


def _widths(state: Mapping[str, Any]) -> tuple[float, ...] | None:
    spec = state.get("recipe", {}).get("power_ema")
    return tuple(spec["widths"] if isinstance(spec, dict) else spec) if spec else None  # once {widths: …}


def _began(state: Mapping[str, Any]) -> int:
    """Return the number of the stage with whose first update the averages began."""
    stages = state["recipe"]["stages"][: state["stage_number"] + 1]
    fresh = [number for number, stage in enumerate(stages) if number and stage["carry_over"] == "weights"]
    return max(fresh, default=0)


def average_of_width(source: Path, width: float) -> Averaged:
    """Return the average of `width` at the checkpoint `source`, or a run's newest.

    It is made of this checkpoint and the earlier ones beside it. Raises InputError for a width that no
    average has, CheckpointError for a run without averages, and where the checkpoints do not suffice.
    """
    if not 0 < width < WIDEST:
        raise InputError(f"--ema is {width:g}; it must be between 0 and {WIDEST:.4f}.")
    newest = checkpoint.find(source)
    state = checkpoint.read_state(newest)
    widths = _widths(state)
    if widths is None or not set(PARTS) <= state["checksums"].keys():
        raise CheckpointError(
            f"{newest}: holds no averages to make one of width {width:g}; set power_ema in the recipe of the "
            "next run, or leave --ema out for the average that is there."
        )
    found: list[tuple[Path, str, Kept]] = []
    for path in checkpoints(newest.parent):
        theirs = checkpoint.read_state(path)
        usable = _widths(theirs) == widths and set(PARTS) <= theirs["checksums"].keys()
        if not usable or _began(theirs) != _began(state) or theirs["step"] > state["step"]:
            continue
        if not theirs["ema_updates"]:
            continue
        for part, one in zip(PARTS, widths, strict=True):
            kept = Kept(theirs["ema_updates"], power_average.exponent(one))
            found.append((path, part, kept))
    wanted = Kept(state["ema_updates"], power_average.exponent(width))
    if not found:
        raise CheckpointError(f"{newest}: is of a run before its first update; there is no average yet.")
    mixed = power_average.mixture([kept for _, _, kept in found], wanted)
    if mixed.error > MOST_ERROR:
        raise CheckpointError(
            f"{newest.parent}: its {len(found) // len(PARTS)} checkpoints give an average of width {width:g} "
            f"with an error of {mixed.error:.0%}; the limit is {MOST_ERROR:.0%}. Choose a width near "
            f"{widths[0]:g} or {widths[1]:g}, or keep more checkpoints (stages.N.keep_every)."
        )
    sums: dict[str, Tensor] = {}
    for (path, part, _), factor in zip(found, mixed.factors, strict=True):
        for name, value in checkpoint.read_part(path, part).items():
            scaled = value.double() * float(factor)
            sums[name] = scaled if name not in sums else sums[name].add_(scaled)
    whole = checkpoint.read_part(newest, "ema")  # what is not trained is in no average
    weights = whole | {name: value.to(torch.float32) for name, value in sums.items()}
    names = tuple(dict.fromkeys(path.name for path, _, _ in found))
    return Averaged(weights=weights, error=float(np.round(mixed.error, 6)), checkpoints=names)
