"""Form of a checkpoint's state.json: the keys that a resume reads, by their types.

A checkpoint may be forged or edited, with a matching manifest; what resumes from it must not meet a text
where a number was saved.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.run_folder.checkpoint.checkpoint import PARTS
from vidcurate.errors import CheckpointError
from vidcurate.storage import json_shape
from vidcurate.storage.json_shape import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedRecipe:
    model: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedLoader:
    step: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """The keys of state.json that a resume reads, by their types."""

    step: Count
    stage_number: Count
    stage_step: Count
    world_size: Count
    optimizer_updates: Count
    ema_updates: Count
    lr: float
    clips_hash: str
    optimizer: str
    checksums: dict[str, str]
    recipe: _SavedRecipe
    loader: _SavedLoader | None


def require_form(saved: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError for a state.json without the keys that a resume reads, or of other types."""
    try:
        found = json_shape.parse(json.dumps(saved).encode(), _Saved)
        if lacking := set(PARTS) - found.checksums.keys():
            raise ValueError(f"checksums: has no {min(lacking)}")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path / 'state.json'}: is not the state of a training ({error}). Take another checkpoint."
        ) from error
