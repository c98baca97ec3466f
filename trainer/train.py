"""Train a recipe: resume, then for each stage repeat the training step.

One step: each rank reads its micro-batches, encodes them and sums the gradient of the mean loss over all
clips of the step; the ranks reduce the gradient; the guard checks it; AdamW updates the weights and their
EMA. Noise, timestep, frame mask and dropped captions are random numbers keyed by (seed, step, clip). Rank 0
appends a line to metrics.jsonl. When a step is due, the loop saves a checkpoint, samples clips or validates.

The same command resumes the run from its newest checkpoint. On the CPU, with the same world size and number
of threads, a resumed run is bit-identical to one that never stopped.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainer.data import open_stage
from trainer.data import stages as data_stages
from trainer.data.model_inputs import Batch
from trainer.data.stages import StageData
from trainer.distributed import environment, mesh
from trainer.distributed import rank as distributed_rank
from trainer.distributed.mesh import World
from trainer.health.watch import monitor, stop_requests
from trainer.health.watch.step_monitor import StepWatch
from trainer.health.watch.stop_requests import Stop
from trainer.model import flops
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder import jsonl, metrics
from trainer.run_folder.checkpoint.async_save import AsyncSaver
from trainer.run_folder.trackers_spec import TrackersSpec
from trainer.training import data_position, outcome, resume, save_sample_validate, validation
from trainer.training import log as training_log
from trainer.training.guard import rollback
from trainer.training.guard.decide import RollbackRequested
from trainer.training.guard.history import StageHistory
from trainer.training.guard.step_guard import StepGuard
from trainer.training.micro_batch import StepContext
from trainer.training.optim import adamw
from trainer.training.outcome import Outcome
from trainer.training.preflight import command as preflight
from trainer.training.setup import Training, locked_run, set_up
from trainer.training.state import Origin, TrainState
from trainer.training.step import Computed, StepSync, train_step
from trainer.training.validation import Round
from trainer.training.wandb_tensorboard import Mirrors
from vidcurate.errors import VidcurateError
from vidcurate.sampler import order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Services:
    """What runs beside the training steps: validation rounds, signals, saves, trackers, the step monitor."""

    rounds: tuple[Round, ...]
    stop: Stop
    saver: AsyncSaver
    mirrors: Mirrors
    steps: StepWatch


def train(
    recipe: TrainRecipe,
    origin: Origin | None = None,
    settings: Sequence[str] = (),
    *,
    check_nodes: bool = True,
) -> Outcome:
    """Train `recipe`, from its run's newest checkpoint if there is one, else from `origin`.

    `settings` are this command's `key=value` overrides, already applied to `recipe`: a resumed run accepts
    some changes only if an override names them. `check_nodes=False` skips the recipe's preflight. Raises
    VidcurateError and its children, the same on every rank.
    """
    origin = origin or Origin()
    resume.check_origin(origin)
    stages = data_stages.open_stages(recipe)
    rounds = validation.plan_rounds(recipe.validation, stages, recipe.seed)
    environment.apply(recipe.environment)
    world = mesh.init_process_groups()
    try:
        run = recipe.output
        with (
            stop_requests.listening(is_first=world.is_first) as stop,
            locked_run(run, world),
            outcome.end_recorded(run, world, stop),
            distributed_rank.rank_log(run, world.rank, world.size),
            monitor.watching(recipe.watch, run, world, stop) as watched,
            _deterministic_on_cpu(world),
        ):
            checked = None
            if check_nodes and recipe.preflight.at_start:
                checked = preflight.at_start(recipe, stages, world)
            saver = AsyncSaver(run, world)
            trackers = recipe.trackers if world.is_first else TrackersSpec()
            try:
                with Mirrors(trackers, run, recipes.to_json(recipe)) as mirrors:
                    training = set_up(recipe, origin, settings, stages, world, watched.pulse)
                    if checked and world.is_first:
                        preflight.write_report(checked, run, {})
                    services = _Services(
                        rounds=rounds, stop=stop, saver=saver, mirrors=mirrors, steps=watched.steps
                    )
                    return _run_stages(training, services)
            finally:
                saver.close()
    finally:
        mesh.destroy_process_groups(world)


def _run_stages(training: Training, services: _Services) -> Outcome:
    """Run the stages in turn; after a guard rollback, continue from the checkpoint it restored."""
    state, context, stages = training.state, training.context, training.stages
    saver, last_step = services.saver, training.last_step
    is_resumed = training.start_report.kind == "resume"
    was_done = is_resumed and state.step == last_step
    if not was_done:
        if any(stage.stage.checkpoint_in_background for stage in stages):
            saver.prepare(state.tensors())
        training_log.record_start(training.start_report, state, context, stages)
        if training.continued:
            training_log.record_data_change(training.continued, state, context)
        services.mirrors.begin()
    if is_resumed:  # the run may have been killed between saving and sampling
        save_sample_validate.sample_if_due(state, context, last_step)
    save_sample_validate.validate_if_due(state, context, services.rounds, last_step, saver)

    line: dict[str, Any] | None = None
    while state.step < last_step:
        stage = stages[state.stage]
        if state.stage_step == stage.num_steps:
            stage = stages[state.stage + 1]
        _start_stage(stage, state, context)
        try:
            line, stopped_by = _run_stage(stage, state, context, services, last_step)
        except RollbackRequested as request:
            stages = rollback.roll_back(request, state, context, stages, saver)
            continue
        if stopped_by:
            return _outcome(state, context, last_step, line, stopped_by=stopped_by)
    training_log.record_save(saver.wait(), context)
    if context.world.is_first and not was_done:
        jsonl.record_event(context.recipe.output, "done", state.step)
    return _outcome(state, context, last_step, line, was_done=was_done)


def _start_stage(stage: StageData, state: TrainState, context: StepContext) -> None:
    """Reset the stage's counters, carry over weights or optimizer, and record what data the stage reads."""
    context.pulse.phase("start")
    if stage.number != state.stage:
        state.stage, state.stage_step, state.loader = stage.number, 0, None
        state.guard.memory = StageHistory(stage=stage.number)
        if stage.stage.carry_over == "weights":
            with_muon = stage.stage.optim.muon is not None
            state.masters = adamw.masters(state.model, with_muon=with_muon, world=context.world)
            state.ema_updates = 0
    if context.world.is_first and state.stage_step == 0:
        facts = {"stage": stage.stage.name, "steps": stage.num_steps, **data_stages.summary(stage)}
        jsonl.record_event(context.recipe.output, "stage", state.step, **facts)
        data_position.keep_index(stage, context.recipe.output)
        for note in facts["notes"]:
            training_log.print_line(context.world, f"{stage.stage.name}: {training_log.note_as_text(note)}")


def _run_stage(
    stage: StageData, state: TrainState, context: StepContext, services: _Services, last_step: int
) -> tuple[dict[str, Any], str | None]:
    """Run a stage's remaining steps; return the last metrics line and the signal that stopped it, if any."""
    spec, run, world = stage.stage, context.recipe.output, context.world
    saver = services.saver
    events: list[dict[str, Any]] = []  # what the loader reports during a step
    durations: list[float] = []
    with open_stage.open_loader(
        stage,
        context.recipe.loader,
        context.recipe.video_encoder,
        rank=world.rank,
        world_size=world.size,
        on_event=events.append,
        pin=world.device.type == "cuda",
    ) as loader:

        def load(positions: Sequence[int]) -> Sequence[Batch]:
            return loader.load([order.micro_batch(stage.plan, position) for position in positions])

        def read(stage_step: int) -> Sequence[Batch]:
            return loader.step(data_stages.data_step(stage, stage_step))

        guard = StepGuard(state=state, context=context, stage=stage, read=load)
        while True:
            context.pulse.step(state.step)
            line, sync = _run_step(read, guard, services, events)
            is_last = state.stage_step == stage.num_steps
            durations = [*durations[-19:], line["seconds"]]
            if world.is_first:
                jsonl.append_line(run / metrics.METRICS, line)
            if state.step % spec.log_every == 0 or is_last or state.step == 1:
                mean_seconds = sum(durations) / len(durations)
                width = training_log.terminal_width()
                training_log.print_line(world, metrics.console_line(line, last_step, mean_seconds, width))
                services.mirrors.check(state.step)
            if state.step % spec.checkpoint_every == 0 or is_last or sync.stop:
                save_sample_validate.save_checkpoint(state, context, stage, saver)
            save_sample_validate.sample_if_due(state, context, last_step)
            save_sample_validate.validate_if_due(state, context, services.rounds, last_step, saver)
            if sync.stop and state.step < last_step:
                training_log.record_save(saver.wait(), context)
                signal_name = stop_requests.deciding_name(mesh.all_gather(services.stop.name, world))
                if world.is_first:
                    jsonl.record_event(run, "stop", state.step, signal=signal_name)
                return line, signal_name
            if is_last:
                return line, None


def _run_step(
    read: Callable[[int], Sequence[Batch]],
    guard: StepGuard,
    services: _Services,
    events: list[dict[str, Any]],
) -> tuple[dict[str, Any], StepSync]:
    """Run one step: read, compute, check, update. Return its metrics line and the values the ranks shared."""
    state, stage, context, saver = guard.state, guard.stage, guard.context, services.saver
    run, world = context.recipe.output, context.world
    start = time.perf_counter()
    plan = data_stages.step_plan(
        stage, state.stage_step, context.recipe.video_encoder, context.recipe.model.patch_size
    )
    batches, failure = _read(read, state.stage_step, events)
    data_seconds = time.perf_counter() - start

    done: list[Computed] = []

    def check(computed: Computed) -> bool:
        is_made = guard.check(computed, batches)
        done.append(computed)
        saver.wait_for_copies()  # the update overwrites tensors that a background save is copying
        return is_made

    try:
        line, sync = train_step(
            state,
            context,
            stage,
            plan,
            batches,
            check=check,
            stop=bool(services.stop.name),
            save_failed=saver.failed,
            num_events=len(events),
            data_seconds=data_seconds,
        )
    except (VidcurateError, RollbackRequested):  # raised on all ranks together, before the update
        training_log.record_data_events(events, state.step + 1, world, run)
        mesh.run_on_all_ranks(partial(_raise, failure), world)
        raise
    if sync.num_events:
        training_log.record_data_events(events, state.step, world, run)
        mesh.run_on_all_ranks(partial(_raise, failure), world)
    training_log.record_save(saver.wait() if sync.save_failed else saver.take(), context)
    training_log.record_recomputation(context, state.step)
    training_log.record_kernels(context, state.step)
    if state.step % stage.stage.log_every == 0 or state.stage_step == stage.num_steps:
        line["weight_norm"] = float(adamw.norm(state.masters.learns.values()))
    guard.check_weights(line)
    training_log.record_clip_losses(context, stage, state.step, done[0])
    seconds = time.perf_counter() - start
    line |= {"time": round(time.time(), 3), "seconds": seconds, "data_seconds": data_seconds}
    line["tokens_per_second"] = plan.num_tokens / seconds
    services.steps.add(state.step, sync.own, plan.buckets, line["tokens_per_second"])
    if world.device.type == "cuda":
        line["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    line |= flops.rates(line["model_flops"], seconds, mesh.device_name(world), world.size)
    return line, sync


def _read(
    read: Callable[[int], Sequence[Batch]], stage_step: int, events: list[dict[str, Any]]
) -> tuple[Sequence[Batch], VidcurateError | None]:
    """Return this rank's micro-batches of a step, or none and the error.

    A rank that cannot read still joins the step's collectives, or the other ranks would wait forever. All
    ranks learn of the error there and stop before the update.
    """
    try:
        return read(stage_step), None
    except VidcurateError as error:
        events.append({"event": "loader_stopped", "reason": str(error)})
        return [], error


def _raise(failure: VidcurateError | None) -> None:
    if failure is not None:
        raise failure


@contextmanager
def _deterministic_on_cpu(world: World) -> Iterator[None]:
    """On the CPU, forbid nondeterministic torch operations: there the deterministic ones cost nothing."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(world.device.type == "cpu")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _outcome(
    state: TrainState,
    context: StepContext,
    last_step: int,
    line: dict[str, Any] | None,
    *,
    stopped_by: str | None = None,
    was_done: bool = False,
) -> Outcome:
    return Outcome(
        run=str(context.recipe.output),
        step=state.step,
        num_steps=last_step,
        loss=line["loss"] if line and math.isfinite(line["loss"]) else None,
        stopped_by=stopped_by,
        was_done=was_done,
        is_first_rank=context.world.is_first,
        exit_code=monitor.exit_code(context.recipe.watch, stopped_by),
    )
