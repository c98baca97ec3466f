"""Experiment spec: one recipe, named arms that change it, and seeds.

The recipe has one stage, the pattern of every segment. An arm is a chain of segments: each says how it
begins, what it changes in the pattern, and how many times the pattern's steps it lasts.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainer.recipe.recipe import Name, TrainRecipe
from vidcurate.recipe.recipe import Recipe

Count = Annotated[int, Field(ge=1)]
EXPERIMENT = "experiment"


class SegmentSpec(Recipe):
    """What an arm trains from one of its marks to the next."""

    begins: Literal["next", "restart", "resume", "weights"] = "next"
    """next: as the next stage, in the same process; restart: as the next stage, in a new process from the
    last checkpoint; resume: more steps of the previous stage in such a process; weights: a new run starts
    from the last weights only (--ckpt-path). An arm's first segment starts the run in any case"""
    times: Count = 1
    """its length, in lengths of the recipe's stage"""
    stage: dict[str, Any] = Field(default_factory=dict)
    """what it changes in the recipe's stage, nested as there: {data: {levels: [1]}}"""

    @model_validator(mode="after")
    def _resumes_or_changes(self) -> Self:
        if self.begins == "resume" and self.stage:
            raise ValueError("a segment with begins: resume continues the previous stage; leave out stage")
        return self


class ArmSpec(Recipe):
    """One way to train, under one name."""

    name: Name
    """what the arm is called in table, plot and folders"""
    what: str = ""
    """one line for the table: what is done here"""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """what it changes in the recipe outside the stage, nested as there"""
    stage: dict[str, Any] = Field(default_factory=dict)
    """what it changes in the recipe's stage, for all of its segments"""
    segments: tuple[SegmentSpec, ...] = Field(min_length=1)
    """the chain of segments"""

    @model_validator(mode="after")
    def _changes_what_it_may(self) -> Self:
        fixed = sorted({"output", "seed", "stages"} & set(self.recipe))
        if fixed:
            raise ValueError(f"arm {self.name} changes {', '.join(fixed)}: the experiment decides that")
        if self.segments[0].begins == "resume":
            raise ValueError(f"arm {self.name}: its first segment needs a stage of its own")
        return self


class ExperimentSpec(Recipe):
    """A question with arms, for `python -m trainer experiment`. The first arm is the one to compare with."""

    question: str
    """what it asks, a sentence or two; it stands above the table"""
    recipe: TrainRecipe
    """a whole training recipe with one stage, which has `steps`; its name and `output` are the
    experiment's"""
    arms: tuple[ArmSpec, ...] = Field(min_length=2)
    """the ways to train"""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(1, 2, 3), min_length=1)
    """every arm is trained with each of these seeds"""
    window_steps: Count = 10
    """steps before and after a mark whose mean losses are compared, and over which curves are drawn"""
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """name → settings (dotted key: value) for `--scale NAME`, such as a larger model for a GPU"""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        names = [arm.name for arm in self.arms]
        for name in names:
            if names.count(name) > 1 or name == EXPERIMENT:
                raise ValueError(f"arms: {name} is taken; give each arm its own name")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: one of them is given twice")
        if len(self.recipe.stages) != 1 or self.recipe.stages[0].steps is None:
            raise ValueError(
                "recipe: an experiment's recipe has one stage with steps, the pattern of segments"
            )
        return self
