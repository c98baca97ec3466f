"""Guard history: statistics of a stage's previous steps, in every checkpoint.

A new stage starts a new history, as its clips, lengths and learning rates differ. Logarithms are rounded when
they are added, so values read back from JSON equal the saved ones.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import CheckpointError
from vidcurate.storage import json_shape

CELL_VALUES = 32  # losses kept per bucket and timestep bin
SCORES = 64  # step scores kept per bucket, and over all clips
GRADIENTS = 128
CHANGES = 32  # of the weights' norm
LOUD_STEPS = 64  # steps for which a loud step is remembered
DIGITS = 5  # of logarithms


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """A step before its update, the same on all ranks.

    `step` counts updates of the run from 1. `losses`, `buckets` and `bins` (of the timestep) have one entry
    per clip; `rank_norms` has the norm of each rank's own gradient, before the sum.
    """

    step: int
    losses: NDArray[np.float64]
    buckets: Sequence[str]
    bins: Sequence[str]
    grad_norm: float
    rank_norms: Sequence[float] = ()

    @property
    def is_finite(self) -> bool:
        norms = (self.grad_norm, *self.rank_norms)
        return bool(np.isfinite(self.losses).all()) and all(map(math.isfinite, norms))


@dataclass(slots=True, kw_only=True)
class Smoothed:
    """A bucket's last losses (logarithms, one per step that read it), and their lowest median so far."""

    values: list[float] = field(default_factory=list)
    best: float | None = None
    best_step: int = 0


@dataclass(slots=True, kw_only=True)
class StageHistory:
    """The history of one stage that the detectors need.

    `cells`: "bucket|bin" → logarithms of its last losses. `scores`: bucket, or "" for all → scores of the
    last steps (`spike_scores.scores`). `loud`: [step, z] of steps near a threshold. `spike_step`: the last
    instant spike. `weight`: step and norm at the last check.
    """

    stage: int = 0
    cells: dict[str, list[float]] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)
    smoothed: dict[str, Smoothed] = field(default_factory=dict)
    gradients: list[float] = field(default_factory=list)
    weight: tuple[int, float] | None = None
    weight_changes: list[float] = field(default_factory=list)
    loud: list[tuple[int, float]] = field(default_factory=list)
    spike_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A completed rollback: when, why, to which checkpoint, and which data it skips.

    `first` and `last` are data steps of stage number `stage`, counted from 1, both skipped.
    """

    step: int
    kind: str
    to_step: int
    stage: int
    first: int
    last: int


@dataclass(slots=True, kw_only=True)
class GuardState:
    """Guard state in a checkpoint. `scales`: (first step, last step, learning-rate factor)."""

    memory: StageHistory = field(default_factory=StageHistory)
    rollbacks: tuple[Rollback, ...] = ()
    scales: tuple[tuple[int, int, float], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def factor(self, step: int) -> float:
        """Return the learning-rate factor of update number `step` (from 1)."""
        return math.prod(factor for first, last, factor in self.scales if first <= step <= last)

    def windows(self, stage: int) -> tuple[tuple[int, int], ...]:
        """Return the data steps of a stage that rollbacks skip."""
        return tuple((back.first, back.last) for back in self.rollbacks if back.stage == stage)

    def used(self, policy: str) -> int:
        """Return how often the run has used a policy."""
        return len(self.rollbacks) if policy == "rollback" else self.counts.get(policy, 0)


def to_json(state: GuardState) -> dict[str, Any]:
    """Return the state as plain values."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(state)))
    return plain


def from_json(kept: dict[str, Any] | None) -> GuardState:
    """Return the state from `to_json`'s values; an empty one for checkpoints older than the guard.

    Raises CheckpointError for other values.
    """
    if not kept:
        return GuardState()
    try:
        state = json_shape.parse(json.dumps(kept).encode(), GuardState)
        if missing := {one.name for one in fields(StageHistory)} - kept.get("memory", {}).keys():
            raise ValueError(f"memory: has no {min(missing)}")
        return state
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"state.json: the guard's state cannot be read ({error}). Take another checkpoint."
        ) from error


def rollbacks_from(kept: Sequence[dict[str, Any]]) -> tuple[Rollback, ...]:
    """Return the rollbacks from their JSON values."""
    return tuple(Rollback(**each) for each in kept)


def keep(values: list[float], value: float, most: int) -> None:
    """Append a value and keep the newest `most`."""
    values.append(round(value, DIGITS))
    del values[:-most]
