"""Training stages: each stage's index, order, number of steps and cost per cell.

`open_stages` opens every stage's data before anything heavy is built, so the number of steps and the clips of
each step are known before step 1. A stage reads clips, or their latents in the same order.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import curriculum_phases
from trainer.data.latents import request as latents_request
from trainer.data.latents.folder import LatentFolder
from trainer.data.latents.request import Missing
from trainer.model.encoders.registry import VideoSpec, video_encoder
from trainer.model.flops import forward_flops
from trainer.model.stdit import STDiT3Config
from trainer.recipe import skip_windows
from trainer.recipe.data_spec import DataSpec
from trainer.recipe.recipe import Stage, TrainRecipe, ValidationSpec
from trainer.recipe.skip_windows import Windows
from vidcurate.errors import RecipeError, ShardError, VidcurateError
from vidcurate.loader.caption_names import check_caption_names
from vidcurate.sampler import cost_table, order
from vidcurate.sampler.build_plan import plan_of
from vidcurate.sampler.plan import Plan
from vidcurate.sampler.plan_changes.change_log import Journal
from vidcurate.shards.index import Index, find_clip, read_index


@dataclass(frozen=True, slots=True, kw_only=True)
class StageData:
    """One stage with its clips and their order. `first_step` counts the updates of earlier stages.

    `folder`: the latents that the stage reads instead of clips; `missing`: latents that the folder lacks.
    `changes`: the accepted changes of the data, stored in the file `journal`. `skip`: data steps skipped by
    the recipe or a rollback; see `data_step`.
    """

    number: int
    stage: Stage
    index: Index
    plan: Plan
    first_step: int
    num_steps: int
    folder: LatentFolder | None = None
    missing: tuple[Missing, ...] = ()
    changes: Journal = ()
    journal: str = ""
    skip: Windows = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The clips that all ranks together read in one update: n clips in the order of positions.

    `slots` maps a micro-batch's position to the index of its first clip among the n.
    """

    clip_ids: tuple[str, ...]
    rows: NDArray[np.int64]
    buckets: tuple[str, ...]
    levels: tuple[str, ...]
    sources: tuple[str, ...]
    latent_shapes: tuple[tuple[int, int, int], ...]
    slots: dict[int, int]
    num_tokens: int


def stage_plan(index: Index, spec: DataSpec, seed: int) -> Plan:
    """Return the order of a stage's clips. Raises InputError if no clip fits."""
    return plan_of(index, spec, seed=seed)


def costs(plan: Plan, spec: DataSpec, encoder_spec: VideoSpec, model: STDiT3Config) -> tuple[int, ...]:
    """Return the cost of a micro-batch of each cell, by which ranks are balanced.

    With a measured table: microseconds. Without: FLOPs, with captions of the maximum length. Pixels would
    count an image, which is one latent frame, as a third of its cost, and would ignore that attention grows
    with the frame. Raises RecipeError for a table that lacks a bucket.
    """
    if spec.buckets.cost_table:
        table, where = cost_table.read_cost_table(spec.buckets.cost_table), str(spec.buckets.cost_table)
        return tuple(
            round(1e6 * (table.seconds_per_micro_batch + cell.micro_batch_size * per_clip))
            for cell in plan.cells
            for per_clip in [
                cost_table.seconds_per_clip(table, cell.bucket.resolution, cell.bucket.num_frames, where)
            ]
        )
    encoder = video_encoder(encoder_spec)
    shapes = [
        encoder.latent_shape(cell.bucket.num_frames, cell.bucket.height, cell.bucket.width)[1:]
        for cell in plan.cells
    ]
    return tuple(
        cell.micro_batch_size * forward_flops(model, *shape, model.model_max_length)
        for cell, shape in zip(plan.cells, shapes, strict=True)
    )


def cost_unit(data: StageData, plan: Plan) -> tuple[str, float]:
    """Return the unit of the plan's costs, and the size of cost 1 in that unit.

    Seconds with a table, else TFLOP of forward and backward; pixels for an older plan of a run that was
    resumed with changed data.
    """
    if plan.costs is None:
        return "pixels", 1.0
    return ("s", 1e-6) if data.stage.data.buckets.cost_table else ("TFLOP", 3e-12)


def open_stages(recipe: TrainRecipe, *, complete: bool = True) -> tuple[StageData, ...]:
    """Return every stage with its index, its plan and its number of steps.

    Raises MissingError for missing shards or latents, ShardError for damaged ones, InputError if no clip
    fits; RecipeError for latents of another recipe and, if `complete`, InputError for missing latents.
    """
    indexes: dict[Path | str, Index] = {}
    folders: dict[Path, LatentFolder] = {}
    encoding = recipe.encoding
    stages: list[StageData] = []
    first_step = 0
    for number, stage in enumerate(recipe.stages):
        spec = stage.data
        folder = latents_request.open_for(spec, number, encoding, folders) if spec.latents else None
        if folder:
            index = folder.index
        else:
            assert spec.shards is not None  # the recipe has one of the two
            index = indexes.get(spec.shards) or read_index(spec.shards, remote=recipe.loader)
            indexes[spec.shards] = index
        plan = stage_plan(index, spec, recipe.seed)
        plan = dataclasses.replace(plan, costs=costs(plan, spec, recipe.video_encoder, recipe.model))
        missing = latents_request.missing(folder, plan, spec) if folder else ()
        if complete:
            latents_request.check_complete(stage.name, spec, missing)
        num_steps = stage.steps or order.steps_for_epochs(plan, stage.epochs or 0.0)
        curriculum_phases.check(stage, plan, num_steps)
        if not folder:
            check_caption_names(index, plan, spec.caption_names)
        stages.append(
            StageData(
                number=number,
                stage=stage,
                index=index,
                plan=plan,
                first_step=first_step,
                num_steps=num_steps,
                folder=folder,
                missing=missing,
                skip=stage.skip,
            )
        )
        first_step += num_steps
    return tuple(stages)


def data_step(data: StageData, stage_step: int) -> int:
    """Return the step of the plan that the stage's update number `stage_step` reads, both from 0."""
    return skip_windows.data_step(data.skip, stage_step + 1) - 1


def update_of(data: StageData, step: int) -> int | None:
    """Return the update that reads step `step` of the plan, both from 0; None for a skipped step."""
    found = skip_windows.training_step(data.skip, step + 1)
    return None if found is None else found - 1


def with_skips(
    stages: tuple[StageData, ...], skips: Callable[[int], Iterable[Sequence[int]]]
) -> tuple[StageData, ...]:
    """Return the stages with the skips of their recipe and those that `skips` gives per stage number."""
    return tuple(
        dataclasses.replace(stage, skip=skip_windows.merged((*stage.stage.skip, *skips(stage.number))))
        for stage in stages
    )


def step_plan(
    data: StageData, stage_step: int, encoder_spec: VideoSpec, patch: tuple[int, int, int]
) -> StepPlan:
    """Return the clips that the stage's update number `stage_step` (from 0) reads.

    `patch`: the model's patch size, by which tokens are counted.
    """
    step = data_step(data, stage_step)
    batches, cells = order.step_micro_batches(data.plan, step), order.at_step(data.plan, step).cells
    encoder = video_encoder(encoder_spec)
    shapes: dict[int, tuple[int, int, int]] = {}
    for number in {batch.cell for batch in batches}:
        bucket = cells[number].bucket
        _, *shape = encoder.latent_shape(bucket.num_frames, bucket.height, bucket.width)
        shapes[number] = (shape[0], shape[1], shape[2])
    slots: dict[int, int] = {}
    buckets: list[str] = []
    latent_shapes: list[tuple[int, int, int]] = []
    num_tokens = 0
    for batch in batches:
        count, (frames, rows, columns) = len(batch.rows), shapes[batch.cell]
        slots[batch.position] = len(buckets)
        buckets += [cells[batch.cell].bucket.name] * count
        latent_shapes += [shapes[batch.cell]] * count
        num_tokens += count * -(-frames // patch[0]) * -(-rows // patch[1]) * -(-columns // patch[2])
    all_rows = np.concatenate([batch.rows for batch in batches])
    levels, which = np.unique(data.index.level[all_rows], return_inverse=True)
    names = [str(level) for level in levels.tolist()]
    return StepPlan(
        clip_ids=tuple(data.index.words("clip_id").take(all_rows).to_pylist()),
        rows=all_rows,
        buckets=tuple(buckets),
        levels=tuple(names[number] for number in which.tolist()),
        sources=tuple(
            name or "unknown" for name in data.index.words("source_dataset").take(all_rows).to_pylist()
        ),
        latent_shapes=tuple(latent_shapes),
        slots=slots,
        num_tokens=num_tokens,
    )


def rows_delivered(data: StageData, plan: StepPlan, first: int, clip_ids: Sequence[str]) -> list[int]:
    """Return the rows of the clips read for a step's positions from `first` on, fallback clips included."""
    planned = zip(plan.rows[first:].tolist(), plan.clip_ids[first:], strict=True)
    return [
        row if clip_id == due else find_clip(data.index, clip_id)
        for clip_id, (row, due) in zip(clip_ids, planned, strict=False)
    ]


def delivered(data: StageData, plan: StepPlan, rows: NDArray[np.int64], step: int) -> tuple[str, ...]:
    """Return the ids of the clips at these rows. Raises VidcurateError if a clip was not read."""
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise VidcurateError(
            f"step {step}: no rank has read clip {plan.clip_ids[missing[0]]!r} ({len(missing)} of "
            f"{len(rows)} are missing). No weight was updated. This is a bug of the trainer."
        )
    if np.array_equal(rows, plan.rows):
        return plan.clip_ids
    return tuple(data.index.words("clip_id").take(rows).to_pylist())


def summary(data: StageData) -> dict[str, Any]:
    """Return a stage's number of clips, the clips that fit no bucket, and the notes.

    `phases`: the step of the run, from 1, at which each phase of its curriculum starts.
    """
    return {
        "clips": data.plan.num_clips,
        "phases": [
            data.first_step + first
            for first in curriculum_phases.first_updates(data.plan, data.skip).values()
        ],
        "clips_left_out": {name: len(rows) for name, rows in data.plan.left_out.items() if len(rows)},
        "notes": [*map(dict, data.plan.notes), *curriculum_phases.notes(data.plan, data.skip)],
    }


def unread(data: StageData, end: int) -> list[tuple[int, int]]:
    """Return the skipped windows before data step `end`, from 0, with exclusive ends."""
    return [(first - 1, last) for first, last in skip_windows.before(data.skip, end + 1)]


def _before(data: StageData, step: int) -> Iterator[tuple[str, int]]:
    cells = order.at_step(data.plan, step).cells
    counts = order.micro_batches_before(data.plan, step)
    return ((cell.name, count) for cell, count in zip(cells, counts, strict=True))


def check_projection(stages: tuple[StageData, ...], digest: str) -> None:
    """Raise ShardError for latents whose captions were projected by another model's projection."""
    for data in stages:
        made_with = data.folder.manifest["weights"]["projection"] if data.folder else digest
        if made_with != digest:
            raise ShardError(
                f"{data.stage.data.latents}: its texts were made by a caption projection with the digest "
                f"{str(made_with)[:12]}, the model's has {digest[:12]}. Start from the weights that were "
                "given to `python -m trainer precompute` (--ckpt-path), or encode the clips again."
            )


def _levels_shown(spec: DataSpec) -> tuple[int, ...] | None:
    """Return the levels that a stage ever shows; None for all."""
    if spec.levels is not None or spec.cells_by != "level":
        return spec.levels
    named = [*spec.weights, *(name for phase in spec.curriculum for name in phase.names)]
    return tuple(dict.fromkeys(map(int, named))) or None


def validation_spec(spec: ValidationSpec, trained: DataSpec) -> DataSpec:
    """Return the validation data of a stage that trains on `trained`: the other fold, in whole cells."""
    return trained.model_copy(
        update={
            "fold": "validation",
            "buckets": spec.buckets or trained.buckets,
            "levels": spec.levels or _levels_shown(trained),
            "weights": {},
            "curriculum": (),
            "blocks": None,
            "small_cells": "shrink",
            "crop": "center",
            "flip": 0.0,
            "micro_batches_per_step": 1,
        }
    )


def check_lengths(stages: tuple[StageData, ...], stage: int, stage_step: int) -> None:
    """Raise RecipeError if a stage has fewer steps than the run has already trained."""
    if stage < len(stages) and stages[stage].num_steps < stage_step:
        raise RecipeError(
            f"stages.{stage} has {stages[stage].num_steps} steps and this run has already trained "
            f"{stage_step} of them. Give it at least as many."
        )
