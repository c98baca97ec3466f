"""Experiment arms: the process starts of each arm and seed.

Pure functions: nothing is read or written here. Segments that begin with `next` are stages of one start; a
`restart` is a start in the same folder with more stages (or more steps); `weights` is a start in a new
folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.report.experiment.spec import ArmSpec, ExperimentSpec, SegmentSpec
from vidcurate.errors import RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One process: its recipe, and the step of its folder at which it ends.

    `ckpt_path`: the folder of the run whose last weights it starts from.
    """

    recipe: TrainRecipe
    ends: int
    ckpt_path: Path | None = None

    @property
    def folder(self) -> Path:
        return self.recipe.output


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """One segment in its folder: its updates are those after `first`, up to `last`."""

    folder: Path
    begins: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One arm with one seed: its starts in order, and its segments."""

    arm: ArmSpec
    seed: int
    starts: tuple[Start, ...]
    parts: tuple[RunPart, ...]

    @property
    def num_steps(self) -> int:
        return sum(part.last - part.first for part in self.parts)

    @property
    def name(self) -> str:
        return f"{self.arm.name}, seed {self.seed}"


def merged(base: Any, changes: Any) -> Any:
    """Return `base` with `changes` merged: mappings key by key, anything else as a whole."""
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    return {**base, **{key: merged(base.get(key), value) for key, value in changes.items()}}


def _recipe(plain: Mapping[str, Any], where: str) -> TrainRecipe:
    try:
        return TrainRecipe.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RecipeError(f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}.") from error


def _stage(pattern: Mapping[str, Any], segment: SegmentSpec, number: int) -> dict[str, Any]:
    stage: dict[str, Any] = merged(pattern, segment.stage)
    named = f"segment-{number + 1}" if stage["name"] == pattern["name"] else stage["name"]
    length = stage["steps"] if "steps" in segment.stage else pattern["steps"]
    return {**stage, "name": named, "steps": length * segment.times}


def chain(spec: ExperimentSpec, arm: ArmSpec, seed: int, out: Path) -> Chain:
    """Return the starts and segments of one arm and seed. Raises RecipeError for invalid changes."""
    plain = merged(recipes.to_json(spec.recipe), arm.recipe)
    pattern = merged(plain["stages"][0], arm.stage)
    home = out / "runs" / arm.name / f"seed-{seed}"
    where = f"experiment {spec.recipe.name}, arm {arm.name}"
    starts: list[Start] = []
    parts: list[RunPart] = []
    stages: list[dict[str, Any]] = []
    folder, done, ckpt_path = home, 0, None
    for number, segment in enumerate(arm.segments):
        begins = segment.begins if number else "start"
        if begins == "weights":
            stages, done, ckpt_path = [], 0, folder
            folder = home.with_name(f"{home.name}-part-{number + 1}")
        if begins == "resume":
            begins, steps = "restart", pattern["steps"] * segment.times
            stages = [*stages[:-1], {**stages[-1], "steps": stages[-1]["steps"] + steps}]
        else:
            stages = [*stages, _stage(pattern, segment, number)]
            steps = stages[-1]["steps"]
        whole = {**plain, "name": f"{spec.recipe.name}-{arm.name}", "seed": seed, "output": str(folder)}
        start = Start(
            recipe=_recipe({**whole, "stages": stages}, where), ends=done + steps, ckpt_path=ckpt_path
        )
        if begins == "next":
            starts[-1] = start
        else:
            starts.append(start)
        parts.append(RunPart(folder=folder, begins=begins, first=done, last=done + steps))
        done += steps
    return Chain(arm=arm, seed=seed, starts=tuple(starts), parts=tuple(parts))


def chains(spec: ExperimentSpec, out: Path) -> tuple[Chain, ...]:
    """Return all arms with all seeds, the seeds of an arm in a row. Raises RecipeError."""
    return tuple(chain(spec, arm, seed, out) for arm in spec.arms for seed in spec.seeds)
