"""Back to the last good checkpoint, and past the data that was there: what a rollback does, in its order.

A save in the background is waited for; the newest checkpoint from before the first suspicious step is chosen
and verified; the event is written; the decision is kept in RUN/guard.json, and with that it is made, whatever
is killed from then on; what was given up (checkpoints, samples, lines of metrics) goes; the state is loaded.
"""

from pathlib import Path

from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.distributed import mesh
from trainer.recipe import guard_spec
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder import metrics
from trainer.run_folder.checkpoint import checkpoint
from trainer.run_folder.checkpoint.async_save import AsyncSaver
from trainer.training import log as training_log
from trainer.training import resume
from trainer.training.guard import in_loop
from trainer.training.guard import rollbacks as guard_rollbacks
from trainer.training.guard.decide import Halted, RollbackRequested
from trainer.training.guard.history import Rollback
from trainer.training.state import TrainState
from trainer.training.step import StepContext
from vidcurate.errors import CheckpointError


def _last_good(before: int, context: StepContext) -> Path | None:
    """Return the newest checkpoint of a step below `before` that is whole by its hashes; None without one."""
    run, world = context.recipe.output, context.world
    there = mesh.run_on_first_rank(lambda: run_folder_layout.checkpoints(run), world)
    for path in reversed(there):
        if run_folder_layout.step_of(path) >= before:
            continue
        try:
            checkpoint.verify(path, world=world)
        except CheckpointError as error:
            training_log.print_line(world, f"guard: {error}")
            continue
        return path
    return None


def _window(stage: StageData, first: int, last: int, to_step: int, margin: int) -> tuple[int, int]:
    """Return the data steps to leave out, from 1 in the stage; `first` and `last` are steps of the run."""
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
    """Load the last good checkpoint into `state`; return the stages without the data window.

    All ranks go together. Raises Halted where no checkpoint is old enough, StorageError, CheckpointError.
    """
    context.pulse.phase("rollback")
    training_log.record_save(saver.wait(), context)
    run, world = context.recipe.output, context.world
    found = back.decision.found
    target = _last_good(found.first_step, context)
    if target is None:
        text = f"there is no checkpoint from before step {found.first_step} to go back to"
        in_loop.record(in_loop.stop_instead(back.decision, text), back.step, back.facts, context)
        raise Halted(f"step {back.step}: {found.reason}; {text}. Save more often (checkpoint_every).")
    to_step = run_folder_layout.step_of(target)
    first, last = _window(stages[state.stage], found.first_step, back.step, to_step, guard_spec.MARGIN_STEPS)
    rollbacks = (
        *state.guard.rollbacks,
        Rollback(step=back.step, kind=found.kind, to_step=to_step, stage=state.stage, first=first, last=last),
    )
    facts = {**back.facts, "to_step": to_step, "skip": [first, last], "number": len(rollbacks)}
    in_loop.record(back.decision, back.step, facts, context)

    def carry_out() -> None:
        guard_rollbacks.write_rollbacks(run, rollbacks)
        guard_rollbacks.finish_rollback(run)
        metrics.forget_after(run, to_step)

    mesh.run_on_first_rank(carry_out, world)
    resume.restore(target, state, context.recipe, world)
    state.guard.rollbacks = rollbacks
    training_log.print_line(
        world, f"guard: at step {to_step} again; data steps {first} to {last} of this stage are left out"
    )
    return data_stages.with_skips(stages, state.guard.windows)
