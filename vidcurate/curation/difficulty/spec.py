"""What a split may be asked for, as a recipe model."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vidcurate.recipe.recipe import Recipe
from vidcurate.sampler.buckets import BucketSpec


class SplitSpec(Recipe):
    """How to cut the kept clips into levels and folds, and what the advice on ramps supposes."""

    column: str = "noun_count"
    """the score that is the difficulty"""
    levels: Annotated[int, Field(ge=1)] = 5
    """how many levels"""
    balance: Literal["clips", "frames", "tokens"] = "clips"
    """what the levels have equal shares of; tokens are those that the model trains on"""
    buckets: BucketSpec | None = None
    """the training's bucket table: tokens are counted in a clip's bucket, and levels.yaml carries the table;
    null: tokens are counted at the clip's own size"""
    ties: Literal["together", "split"] = "together"
    """clips of equal difficulty: all in one level, or parted by a hash of their ids"""
    drop_hardest: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    """share of the hardest clips that is rejected first (0.0001 is 0.01 %)"""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] | None = None
    """share of the sources that goes to validation; null: 0.01, and one source where that takes none of
    several"""
    seed: Annotated[int, Field(ge=0)] = 0
    """changes which sources are for validation and how ties are parted"""
    warn_effect_size: ClassVar[float] = 4.0
    """warn when neighbours' means differ by more pooled standard deviations"""
    warn_tail_ratio: ClassVar[float] = 2.0
    """warn when the 99 % quantile grows by a larger factor"""
    warn_ks_distance: ClassVar[float] = 0.5
    """warn when another column (caption length, frames, duration) shifts by more between neighbours"""
    steps_per_increment: ClassVar[int] = 1000
    """optimizer steps that an increment of a ramp lasts, 1 / (1 - beta2) of the optimizer; a ramp has no more
    steps than its level has clips"""
    epochs: ClassVar[float] = 2.0
    """epochs of a level in levels.yaml; the published curriculum made two"""
