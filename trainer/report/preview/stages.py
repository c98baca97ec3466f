"""Stages of a recipe, run or checkpoint, and the stage of a step.

Steps count over the whole run from 1, as in metrics.jsonl.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.model.encoders.registry import VideoSpec
from trainer.model.stdit import STDiT3Config
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import metrics, pointer
from trainer.run_folder.checkpoint import checkpoint
from trainer.training import data_position
from vidcurate.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStages:
    """A recipe with its opened stages. `done`: number of steps the run has made; 0 for a recipe."""

    recipe: TrainRecipe
    stages: tuple[StageData, ...]
    done: int

    @property
    def num_steps(self) -> int:
        return self.stages[-1].first_step + self.stages[-1].num_steps


def recipe_of(path: Path, settings: Sequence[str] = ()) -> TrainRecipe:
    """Return the recipe at `path`: a YAML file, a run's last recipe, or a checkpoint's."""
    if not path.is_dir():
        return recipes.load(path, settings)
    if settings:
        raise InputError(f"--set: {path} is a run or a checkpoint, whose recipe cannot change.")
    file, kept = path / run_folder_layout.RECIPE, run_folder_layout.read_recipe(path)
    if not kept:
        file = checkpoint.find_named(path) / "state.json"
        kept = checkpoint.read_state(file.parent).get("recipe") or {}
    try:
        return recipes.from_saved(kept)
    except ValueError as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{file}: holds no recipe of this version ({reason}).") from error


def read_stages(path: Path, settings: Sequence[str] = ()) -> RunStages:
    """Return the stages of a recipe, run or checkpoint; the shards must be where its recipe says.

    The stages of a run or checkpoint are those it was saved with: with its change log and, if the shards have
    changed since, with the index that was kept. Raises what `open_stages` does, CheckpointError, StateError.
    """
    recipe = recipe_of(path, settings)
    stages = data_stages.open_stages(recipe, complete=False)
    if not path.is_dir():
        return RunStages(recipe=recipe, stages=stages, done=0)
    is_run = not (path / "manifest.json").is_file()
    run, newest = (path, pointer.latest(path)) if is_run else (path.parent, path)
    lines = metrics.read_metrics(run / metrics.METRICS) if is_run else []
    state = checkpoint.read_state(newest) if newest else None
    if state and state["stage_number"] < len(stages):
        stages = _as_saved(stages, state, recipe.video_encoder, recipe.model, run)
    if state:
        stages = data_stages.with_skips(
            stages, data_position.guard_of(state, run if is_run else None).windows
        )
    done = int(lines[-1]["step"]) if lines else int(state["step"]) if state else 0
    return RunStages(recipe=recipe, stages=stages, done=done)


def _as_saved(
    stages: tuple[StageData, ...],
    state: dict[str, Any],
    encoder_spec: VideoSpec,
    model: STDiT3Config,
    run: Path,
) -> tuple[StageData, ...]:
    number, saved = state["stage_number"], state["loader"]
    stage = stages[number]
    index = data_position.saved_index(stage, saved, run)
    if index is not stage.index:
        plan = data_stages.stage_plan(index, stage.stage.data, stage.plan.seed)
        plan = replace(plan, costs=data_stages.costs(plan, stage.stage.data, encoder_spec, model))
        stages = (*stages[:number], replace(stage, index=index, plan=plan), *stages[number + 1 :])
    into = run / data_position.JOURNAL
    return data_position.continue_data(
        stages, number, saved, state["recipe"], encoder_spec, model, run=run, into=into
    ).stages


def at(planned: RunStages, step: int) -> tuple[StageData, int]:
    """Return the stage of a step of the run, and the step's number in it (from 0). Raises InputError."""
    for stage in planned.stages:
        if stage.first_step < step <= stage.first_step + stage.num_steps:
            return stage, step - stage.first_step - 1
    raise InputError(f"step {step}: {planned.recipe.name} has the steps 1 to {planned.num_steps}.")


def steps(planned: RunStages, first: int, last: int) -> Iterator[tuple[int, StageData, int]]:
    """Yield (step, its stage, number in the stage) of the steps `first` to `last`. Raises InputError."""
    at(planned, last)
    for step in range(first, last + 1):
        stage, number = at(planned, step)
        yield step, stage, number
