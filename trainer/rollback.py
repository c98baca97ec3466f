"""Back to the last good checkpoint, and past the data that was there: what a rollback does, in its order.

A save in the background is waited for; the newest checkpoint from before the first suspicious step is chosen
and verified; the event is written; the decision is kept in RUN/guard.json, and with that it is made, whatever
is killed from then on; what was given up (checkpoints, samples, lines of metrics) goes; the state is loaded.
"""

from pathlib import Path

from trainer import checkpoint, data, guarded, mesh, metrics, resume, telling
from trainer.data import StageData
from trainer.guard import kept
from trainer.guard.decide import GoBack, Halted
from trainer.guard.memory import Rollback
from trainer.resume import TrainState
from trainer.saver import Saver
from trainer.step import Tools
from vidcurate.errors import CheckpointError


def _last_good(before: int, tools: Tools) -> Path | None:
    """Return the newest checkpoint of a step below `before` that is whole by its hashes; None without one."""
    run, world = tools.recipe.output, tools.world
    there = mesh.first_does(lambda: checkpoint.checkpoints(run), world)
    for path in reversed(there):
        if checkpoint.step_of(path) >= before:
            continue
        try:
            checkpoint.verify(path, world=world)
        except CheckpointError as error:
            telling.say(world, f"guard: {error}")
            continue
        return path
    return None


def _window(stage: StageData, first: int, last: int, to_step: int, margin: int) -> tuple[int, int]:
    """Return the data steps to leave out, from 1 in the stage; `first` and `last` are steps of the run."""
    begin = max(first - margin, to_step + 1, stage.first_step + 1) - stage.first_step
    end = last + margin - stage.first_step
    return data.data_step(stage, begin - 1) + 1, data.data_step(stage, end - 1) + 1


def go_back(
    back: GoBack, state: TrainState, tools: Tools, laid: tuple[StageData, ...], saver: Saver
) -> tuple[StageData, ...]:
    """Load the last good checkpoint into `state`; return the stages without the data window.

    All ranks go together. Raises Halted where no checkpoint is old enough, StorageError, CheckpointError.
    """
    tools.pulse.phase("rollback")
    telling.record_save(saver.wait(), tools)
    run, world, spec = tools.recipe.output, tools.world, tools.recipe.guard
    found = back.decision.found
    target = _last_good(found.first_step, tools)
    if target is None:
        text = f"there is no checkpoint from before step {found.first_step} to go back to"
        guarded.record(guarded.instead(back.decision, text), back.step, back.facts, tools)
        raise Halted(f"step {back.step}: {found.reason}; {text}. Save more often (checkpoint_every).")
    to_step = checkpoint.step_of(target)
    first, last = _window(laid[state.stage], found.first_step, back.step, to_step, spec.margin_steps)
    rollbacks = (
        *state.guard.rollbacks,
        Rollback(step=back.step, kind=found.kind, to_step=to_step, stage=state.stage, first=first, last=last),
    )
    facts = {**back.facts, "to_step": to_step, "skip": [first, last], "number": len(rollbacks)}
    guarded.record(back.decision, back.step, facts, tools)

    def carry_out() -> None:
        kept.write(run, rollbacks)
        kept.settle(run)
        metrics.forget_after(run, to_step)

    mesh.first_does(carry_out, world)
    resume.return_to(target, state, tools.recipe, world)
    state.guard.rollbacks = rollbacks
    telling.say(
        world, f"guard: at step {to_step} again; data steps {first} to {last} of this stage are left out"
    )
    return data.with_skips(laid, state.guard.windows)
