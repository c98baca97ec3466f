"""Periodic work of a training: checkpoints, sampled clips and validation."""

import time
from typing import Any

from trainer.data.stages import StageData
from trainer.distributed import mesh
from trainer.generation import sample_clips
from trainer.recipe import recipe as recipes
from trainer.run_folder import jsonl
from trainer.run_folder.checkpoint.async_save import AsyncSaver
from trainer.training import data_position, resume, validation
from trainer.training import log as training_log
from trainer.training.micro_batch import StepContext
from trainer.training.state import TrainState
from trainer.training.validation import Round
from vidcurate.errors import counted


def save_checkpoint(state: TrainState, context: StepContext, stage: StageData, saver: AsyncSaver) -> None:
    """Save a checkpoint, or start a background save once the previous one is written."""
    context.pulse.phase("save")
    training_log.record_save(saver.wait(), context)
    spec, tensors = stage.stage, state.tensors()

    def state_json() -> dict[str, Any]:
        return resume.state_json(
            state,
            tensors,
            recipes.to_json(context.recipe),
            stage_name=spec.name,
            loader=data_position.as_saved(stage, state.stage_step, state.clips_hash, state.delivered_hash),
            world_size=context.world.size,
            skip=stage.skip,
        )

    # The guard may roll back this far: the checkpoint before that step is kept.
    delay = context.recipe.guard.delay_steps()
    saver.save(
        state.step,
        tensors,
        state_json,
        keep_last=spec.keep_last,
        keep_every=spec.keep_every,
        keep_before=state.step - delay if delay else None,
        in_background=spec.checkpoint_in_background,
    )
    training_log.record_save(saver.take(), context)


def sample_if_due(state: TrainState, context: StepContext, last_step: int) -> None:
    """Generate clips for the recipe's prompts with the EMA weights, once per due step."""
    run, spec = context.recipe.output, context.recipe.sample
    if spec is None or state.step == 0 or (state.step % spec.every and state.step != last_step):
        return
    if mesh.run_on_first_rank(lambda: sample_clips.is_sampled(run, state.step), context.world):
        return
    context.pulse.phase("sample")
    weights = {}
    for name, value in state.ema.items():
        gathered = mesh.full_tensor(value)  # a collective, one tensor at a time
        if context.world.is_first:
            weights[name] = gathered

    def write() -> None:
        start = time.perf_counter()
        recipe = context.recipe
        model = sample_clips.sampling_model(recipe.model)
        flow = recipe.flow_of(state.stage)
        pipeline = sample_clips.pipeline_of(recipe.encoding, flow, recipe.dtype, model, weights)
        paths = sample_clips.sample_round(run, state.step, pipeline, spec, recipe.name)
        seconds = round(time.perf_counter() - start, 3)
        jsonl.record_event(run, "sample", state.step, clips=len(paths), seconds=seconds)
        text = f"step {state.step}: sampled {counted(len(paths), 'clip')} in {seconds:.1f} s"
        training_log.print_line(context.world, text)

    mesh.run_on_first_rank(write, context.world)


def validate_if_due(
    state: TrainState, context: StepContext, rounds: tuple[Round, ...], last_step: int, saver: AsyncSaver
) -> None:
    """Measure the validation loss, once per due step."""
    if not validation.is_due(context.recipe.validation, state.step, last_step):
        return
    context.pulse.phase("validate")
    saver.wait_for_copies()  # validation swaps the weights with their EMA in place
    line = validation.validate(state, context, rounds[state.stage])
    if line is not None:
        training_log.print_line(context.world, validation.console_line(line))
