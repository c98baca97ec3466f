"""Recipe section of the plan: what orders the clips, but for seed and clips."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vidcurate.recipe.recipe import Recipe
from vidcurate.sampler.buckets import BucketSpec

Count = Annotated[int, Field(ge=1)]
Shares = dict[str, Annotated[float, Field(ge=0)]]


class PhaseSpec(Recipe):
    """One phase of a curriculum: what it shows, how long, and how the mixture comes to it.

    One of `levels`, `sources` and `weights` says what is shown; of the first two every clip equally often.
    All phases but the last have a length, `steps` or `epochs`, and the ramp is part of it.
    """

    levels: tuple[int, ...] = ()
    """levels that are shown, every clip equally often"""
    sources: tuple[str, ...] = ()
    """sources that are shown, every clip equally often; with cells_by: source"""
    weights: Shares = Field(default_factory=dict)
    """level (or source) → its share of the clips shown"""
    steps: Count | None = None
    """optimizer steps until the next phase"""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """epochs of the phase's clips until the next phase, instead of steps"""
    ramp_steps: Annotated[int, Field(ge=0)] = 0
    """the first steps, in which the mixture moves from the phase before to this one; 0: at once"""
    ramp: Literal["linear", "cosine"] = "linear"
    """shape of the ramp"""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if sum(map(bool, (self.levels, self.sources, self.weights))) != 1:
            raise ValueError("a phase needs one of levels, sources and weights, to say what it shows")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("a phase has steps or epochs, not both")
        if self.steps is not None and self.ramp_steps > self.steps:
            raise ValueError(
                f"ramp_steps {self.ramp_steps} is longer than the steps {self.steps} of its phase"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The levels or sources that the phase names."""
        return tuple(map(str, self.levels)) or self.sources or tuple(self.weights)


class BlocksSpec(Recipe):
    """Read a few blocks of shards at a time, for shards that are far away and a cache that is small."""

    shards_per_block: Count = 4
    """shards that follow each other and are taken together"""
    blocks_together: Count = 8
    """blocks whose clips are mixed: the cache should hold so many, and the next so many"""


class PlanSpec(Recipe):
    """Which clips, in what shapes, mixed how. All of it decides the order; ranks and workers do not."""

    fold: str | None = "train"
    """train or validation; null: all clips"""
    levels: tuple[int, ...] | None = None
    """levels to read; null: all"""
    leave_out: Path | None = None
    """file of clip ids that are not read: one a line, or a run's bad_clips.jsonl; null: none"""
    buckets: BucketSpec
    """the shapes, and the clips of a micro-batch in each"""
    micro_batches_per_step: int = Field(default=1, ge=1, le=1 << 16)
    """micro-batches of one optimizer step, over all ranks together"""
    cells_by: Literal["level", "source"] = "level"
    """what the clips of a micro-batch share besides the bucket, and what weights and curriculum name"""
    weights: Shares = Field(default_factory=dict)
    """level (or source) → its share of the clips shown; empty: every clip equally often"""
    curriculum: tuple[PhaseSpec, ...] = ()
    """phases with weights of their own, in turn; the last lasts to the end of training"""
    blocks: BlocksSpec | None = None
    """shuffle within blocks of shards; null: over all clips"""
    small_cells: Literal["merge", "shrink"] = "merge"
    """of a cell with fewer clips than a micro-batch: merge it into the nearest bucket, one that fits into
    none is refused by name; or shrink its micro-batches"""

    @model_validator(mode="after")
    def _plan_is_one(self) -> Self:
        if self.curriculum:
            self._check_curriculum()
        return self

    def _check_curriculum(self) -> None:
        if self.weights or self.levels is not None:
            raise ValueError("a curriculum says what is shown; leave out levels and weights beside it")
        for number, phase in enumerate(self.curriculum):
            where = f"curriculum.{number}"
            last = number + 1 == len(self.curriculum)
            has_length = phase.steps is not None or phase.epochs is not None
            if has_length == last:
                what = "lasts to the end; leave out its steps and epochs" if last else "needs steps or epochs"
                raise ValueError(f"{where} {what}")
            if (phase.levels and self.cells_by != "level") or (phase.sources and self.cells_by != "source"):
                raise ValueError(f"{where} names other things than cells_by={self.cells_by}")
            if number == 0 and phase.ramp_steps:
                raise ValueError(f"{where} is the first phase, there is nothing to ramp from")
