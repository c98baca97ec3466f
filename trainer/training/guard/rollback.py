"""Rollback: restore the last good checkpoint and skip the data that followed it.

In order: wait for a background save; choose and verify the newest checkpoint before the first suspicious
step; write the event; write the decision to RUN/guard.json, from which point a killed rollback is completed
by the next start; delete the discarded checkpoints, samples and metrics lines; load the state.
"""

from pathlib import Path

from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.distributed import mesh
from trainer.recipe import guard_spec
from trainer.run_folder import clip_losses, metrics
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint, whole
from trainer.run_folder.checkpoint.async_save import AsyncSaver
from trainer.training import log as training_log
from trainer.training import resume
from trainer.training.guard import rollback_file, step_guard
from trainer.training.guard.decide import Halted, RollbackRequested
from trainer.training.guard.history import Rollback
from trainer.training.micro_batch import StepContext
from trainer.training.state import TrainState


def _last_good(before: int, context: StepContext) -> Path | None:
    """Return the newest checkpoint below step `before` whose hashes match; None if there is none."""
    run, world = context.recipe.output, context.world
    there = mesh.run_on_first_rank(lambda: run_folder_layout.checkpoints(run), world)
    older = [path for path in reversed(there) if run_folder_layout.step_of(path) < before]
    found, damaged = whole.first_whole(older, lambda path: checkpoint.verify(path, world=world))
    for one in damaged:
        training_log.print_line(world, f"guard: {one.reason}")
    return found


def _window(stage: StageData, first: int, last: int, to_step: int, margin: int) -> tuple[int, int]:
    """Return the data steps to skip, from 1 in the stage; `first` and `last` are steps of the run."""
    begin = max(first - margin, to_step + 1, stage.first_step + 1) - stage.first_step
    end = last + margin - stage.first_step
    return data_stages.data_step(stage, begin - 1) + 1, data_stages.data_step(stage, end - 1) + 1


def roll_back(
    back: RollbackRequested,
    state: TrainState,
    context: StepContext,
    stages: tuple[StageData, ...],
    saver: AsyncSaver,
) -> tuple[StageData, ...]:
    """Load the last good checkpoint into `state`; return the stages without the skipped data.

    All ranks call this together. Raises Halted if no checkpoint is old enough, StorageError, CheckpointError.
    """
    context.pulse.phase("rollback")
    training_log.record_save(saver.wait(), context)
    run, world = context.recipe.output, context.world
    found = back.decision.found
    target = _last_good(found.first_step, context)
    if target is None:
        text = f"no checkpoint from before step {found.first_step} exists to roll back to"
        step_guard.record(step_guard.stop_instead(back.decision, text), back.step, back.facts, context)
        raise Halted(f"step {back.step}: {found.reason}; {text}. Save more often (checkpoint_every).")
    to_step = run_folder_layout.step_of(target)
    first, last = _window(stages[state.stage], found.first_step, back.step, to_step, guard_spec.MARGIN_STEPS)
    rollbacks = (
        *state.guard.rollbacks,
        Rollback(step=back.step, kind=found.kind, to_step=to_step, stage=state.stage, first=first, last=last),
    )
    facts = {**back.facts, "to_step": to_step, "skip": [first, last], "number": len(rollbacks)}
    step_guard.record(back.decision, back.step, facts, context)

    def carry_out() -> None:
        rollback_file.write_rollbacks(run, rollbacks)
        rollback_file.finish_rollback(run)
        metrics.forget_after(run, to_step)
        clip_losses.forget_after(run, to_step)

    mesh.run_on_first_rank(carry_out, world)
    resume.restore(target, state, context.recipe.model, world)
    state.guard.rollbacks = rollbacks
    training_log.print_line(
        world, f"guard: rolled back to step {to_step}; skipping data steps {first}–{last} of this stage"
    )
    return data_stages.with_skips(stages, state.guard.windows)
