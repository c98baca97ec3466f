"""The training act, in the order of the act: stages in turn, and in each the same step over and over.

A step reads its micro-batches, encodes them, draws what is random (noise, timestep, mask, dropped captions:
keyed by seed, step and clip), sums the gradient of the mean loss over all clips of the step and all ranks,
clips, updates, averages, writes its line, and saves and samples when it is time. Given the same command
again, the run goes on from its newest checkpoint; on the CPU, with one world size and one number of threads,
bit for bit as if it had never stopped.
"""

import json
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
from trainer.generation import sample_clips
from trainer.health.watch import monitor, stop_requests
from trainer.health.watch.step_monitor import StepWatch
from trainer.health.watch.stop_requests import Stop
from trainer.model import flops
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder import jsonl, metrics
from trainer.run_folder.checkpoint.async_save import AsyncSaver
from trainer.run_folder.trackers_spec import TrackersSpec
from trainer.training import data_position, resume, run_lock, validation
from trainer.training import log as training_log
from trainer.training.guard import rollback
from trainer.training.guard.decide import GoBack
from trainer.training.guard.history import Memory
from trainer.training.guard.in_loop import Guarded
from trainer.training.optim import adamw
from trainer.training.outcome import Outcome
from trainer.training.preflight import command as preflight
from trainer.training.setup import Training, set_up
from trainer.training.state import Origin, TrainState
from trainer.training.step import Computed, StepContext, StepSync, train_step
from trainer.training.trackers import Mirrors
from trainer.training.validation import Round
from vidcurate.errors import VidcurateError
from vidcurate.sampler import order


@contextmanager
def _determinism(world: World) -> Iterator[None]:
    """On the CPU, refuse operations whose result can differ from run to run; it costs nothing there."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(world.device.type == "cpu")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


# ── beginning, saving, sampling ─────────────────────────────────────────────────────────────────────────────


def _save(state: TrainState, tools: StepContext, stage: StageData, saver: AsyncSaver) -> None:
    """Save a checkpoint, or begin to: the one before must be written first."""
    tools.pulse.phase("save")
    training_log.record_save(saver.wait(), tools)
    spec, tensors = stage.stage, state.tensors()

    def kept() -> dict[str, Any]:
        return resume.state_json(
            state,
            tensors,
            tools.recipe,
            stage_name=spec.name,
            loader=data_position.as_saved(stage, state.stage_step, state.clips_hash, state.delivered_hash),
            world_size=tools.world.size,
            skip=stage.skip,
        )

    delay = tools.recipe.guard.delay_steps()
    saver.save(
        state.step,
        tensors,
        kept,
        keep_last=spec.keep_last,
        keep_every=spec.keep_every,
        keep_before=state.step - delay if delay else None,
        in_background=spec.checkpoint_in_background,
    )
    training_log.record_save(saver.take(), tools)


def _sample_if_due(state: TrainState, tools: StepContext, last_step: int) -> None:
    """Sample the recipe's prompts from the moving average, once for a step whose turn it is."""
    run, spec = tools.recipe.output, tools.recipe.sample
    if spec is None or state.step == 0 or (state.step % spec.every and state.step != last_step):
        return
    if mesh.run_on_first_rank(lambda: sample_clips.is_sampled(run, state.step), tools.world):
        return
    tools.pulse.phase("sample")
    weights = {}
    for name, value in state.ema.items():
        joined = mesh.full_tensor(value)  # all ranks together, a tensor at a time
        if tools.world.is_first:
            weights[name] = joined

    def write() -> None:
        began = time.perf_counter()
        model = sample_clips.sampling_model(tools.recipe)
        paths = sample_clips.sample_round(run, state.step, model, weights, tools.recipe, state.stage)
        seconds = round(time.perf_counter() - began, 3)
        jsonl.record_event(run, "sample", state.step, clips=len(paths), seconds=seconds)
        training_log.say(tools.world, f"step {state.step}: sampled {len(paths)} clips in {seconds:.1f} s")

    mesh.run_on_first_rank(write, tools.world)


def _validate_if_due(state: TrainState, act: "_RunContext") -> None:
    """Measure the validation loss, once for a step whose turn it is."""
    tools = act.tools
    if not validation.is_due(tools.recipe, state.step, act.last_step):
        return
    tools.pulse.phase("validate")
    act.saver.let_copies_end()  # weights and average change places
    line = validation.validate(state, tools, act.rounds[state.stage])
    if line is not None:
        training_log.say(tools.world, validation.console_line(line))


def _read(
    read: Callable[[int], Sequence[Batch]], stage_step: int, events: list[dict[str, Any]]
) -> tuple[Sequence[Batch], VidcurateError | None]:
    """Return this rank's micro-batches of a step, or none and why they could not be read.

    A rank that cannot go on takes part in the step all the same: the others learn of it there, where they
    would else wait for it for ever, and all of them stop before anything of the step is kept.
    """
    try:
        return read(stage_step), None
    except VidcurateError as error:
        events.append({"event": "loader_stopped", "reason": str(error)})
        return [], error


def _fail(failure: VidcurateError | None) -> None:
    if failure is not None:
        raise failure


def _enter(stage: StageData, state: TrainState, tools: StepContext) -> None:
    """Begin a stage: say what it reads and what of its clips it does not, and carry over what it asks for."""
    tools.pulse.phase("start")
    if stage.number != state.stage:
        state.stage, state.stage_step, state.loader = stage.number, 0, None
        state.guard.memory = Memory(stage=stage.number)
        if stage.stage.carry_over == "weights":
            state.masters, state.ema_updates = adamw.masters(state.model), 0
    if tools.world.is_first and state.stage_step == 0:
        facts = {"stage": stage.stage.name, "steps": stage.num_steps, **data_stages.summary(stage)}
        jsonl.record_event(tools.recipe.output, "stage", state.step, **facts)
        data_position.keep_index(stage, tools.recipe.output)
        for note in facts["notes"]:
            training_log.say(tools.world, f"{stage.stage.name}: {json.dumps(note)}")


# ── the act ─────────────────────────────────────────────────────────────────────────────────────────────────


def train(
    recipe: TrainRecipe,
    origin: Origin | None = None,
    settings: Sequence[str] = (),
    *,
    check_nodes: bool = True,
) -> Outcome:
    """Train what `recipe` says, from its run's newest checkpoint if there is one, else from `origin`.

    `settings` are this command's `key=value` overrides, already part of `recipe`: a resumed run takes some
    changes only when they are named. `check_nodes` False leaves out the recipe's preflight. Raises
    VidcurateError and its children, the same on every rank.
    """
    origin = origin or Origin()
    resume.check_origin(origin)
    laid = data_stages.lay_out(recipe)
    rounds = validation.lay_out(recipe, laid)
    environment.apply(recipe.environment)
    world = mesh.init_process_groups()
    try:
        run = recipe.output
        with (
            stop_requests.listening() as stop,
            run_lock.held(run, world),
            distributed_rank.rank_log(run, world.rank, world.size),
            monitor.watching(recipe.watch, run, world, stop) as watched,
            _determinism(world),
        ):
            checked = None
            if check_nodes and recipe.preflight.at_start:
                checked = preflight.at_start(recipe, laid, world)
            saver = AsyncSaver(run, world)
            shown = recipe.trackers if world.is_first else TrackersSpec()
            try:
                with Mirrors(shown, run, recipes.to_json(recipe)) as mirrors:
                    ready = set_up(recipe, origin, settings, laid, world, watched.pulse)
                    if checked and world.is_first:
                        preflight.keep(checked, run, {})
                    return _run(ready, rounds, stop, saver, mirrors, watched.steps)
            finally:
                saver.close()
    finally:
        mesh.destroy_process_groups(world)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunContext:
    """What the act uses from its first step to its last."""

    tools: StepContext
    rounds: tuple[Round, ...]
    last_step: int
    stop: Stop
    saver: AsyncSaver
    mirrors: Mirrors
    steps: StepWatch


def _run(
    ready: Training,
    rounds: tuple[Round, ...],
    stop: Stop,
    saver: AsyncSaver,
    mirrors: Mirrors,
    steps: StepWatch,
) -> Outcome:
    state, tools, laid, last_step = ready.state, ready.tools, ready.laid, ready.last_step
    act = _RunContext(
        tools=tools, rounds=rounds, last_step=last_step, stop=stop, saver=saver, mirrors=mirrors, steps=steps
    )
    was_done = ready.begun.kind == "resume" and state.step == last_step
    if not was_done:
        if any(stage.stage.checkpoint_in_background for stage in laid):
            saver.prepare(state.tensors())
        training_log.beginning(ready.begun, state, tools, laid)
        if ready.continued:
            training_log.change(ready.continued, state, tools)
        mirrors.begin()
    if ready.begun.kind == "resume":
        _sample_if_due(state, tools, last_step)  # a kill may have come between save and sample
    _validate_if_due(state, act)

    line: dict[str, Any] | None = None
    while state.step < last_step:
        stage = laid[state.stage]
        if state.stage_step == stage.num_steps:
            stage = laid[state.stage + 1]
        _enter(stage, state, tools)
        try:
            line, stopped_by = _stage(stage, state, act)
        except GoBack as back:
            laid = rollback.roll_back(back, state, tools, laid, saver)
            continue
        if stopped_by:
            return _outcome(state, tools, last_step, line, stopped_by=stopped_by)
    training_log.record_save(saver.wait(), tools)
    if tools.world.is_first and not was_done:
        jsonl.record_event(tools.recipe.output, "done", state.step)
    return _outcome(state, tools, last_step, line, was_done=was_done)


def _stage(stage: StageData, state: TrainState, act: _RunContext) -> tuple[dict[str, Any], str | None]:
    """Make the steps that a stage has left; return the last one's line and the signal that cut it short."""
    tools, spec = act.tools, stage.stage
    run, world = tools.recipe.output, tools.world
    events: list[dict[str, Any]] = []
    paces: list[float] = []
    with open_stage.open_loader(
        stage,
        tools.recipe,
        rank=world.rank,
        world_size=world.size,
        on_event=events.append,
        pin=world.device.type == "cuda",
    ) as loader:

        def load(positions: Sequence[int]) -> Sequence[Batch]:
            return loader.load([order.micro_batch(stage.plan, position) for position in positions])

        def read(stage_step: int) -> Sequence[Batch]:
            return loader.step(data_stages.data_step(stage, stage_step))

        guard = Guarded(state=state, tools=tools, stage=stage, read=load)
        while True:
            tools.pulse.step(state.step)
            line, reported = _step(read, guard, act, events)
            is_last = state.stage_step == stage.num_steps
            paces = [*paces[-19:], line["seconds"]]
            if world.is_first:
                jsonl.append_line(run / metrics.METRICS, line)
            if state.step % spec.log_every == 0 or is_last or state.step == 1:
                training_log.say(world, metrics.console_line(line, act.last_step, sum(paces) / len(paces)))
                act.mirrors.check(state.step)
            if state.step % spec.checkpoint_every == 0 or is_last or reported.stop:
                _save(state, tools, stage, act.saver)
            _sample_if_due(state, tools, act.last_step)
            _validate_if_due(state, act)
            if reported.stop and state.step < act.last_step:
                training_log.record_save(act.saver.wait(), tools)
                name = stop_requests.foremost(mesh.all_gather(act.stop.name, world))
                if world.is_first:
                    jsonl.record_event(run, "stop", state.step, signal=name)
                return line, name
            if is_last:
                return line, None


def _step(
    read: Callable[[int], Sequence[Batch]],
    guard: Guarded,
    act: _RunContext,
    events: list[dict[str, Any]],
) -> tuple[dict[str, Any], StepSync]:
    """Make one step and return its line for metrics.jsonl, and what the ranks told each other in it."""
    state, stage, tools, saver = guard.state, guard.stage, act.tools, act.saver
    spec = stage.stage
    run, world = tools.recipe.output, tools.world
    began = time.perf_counter()
    plan = data_stages.step_plan(stage, state.stage_step, tools.recipe)
    batches, failure = _read(read, state.stage_step, events)
    data_seconds = time.perf_counter() - began

    def check(computed: Computed) -> bool:
        is_made = guard.check(computed, batches)
        saver.let_copies_end()  # the update changes what is copied
        return is_made

    try:
        line, reported = train_step(
            state,
            tools,
            stage,
            plan,
            batches,
            check=check,
            stop=bool(act.stop.name),
            save_failed=saver.failed,
            num_events=len(events),
            data_seconds=data_seconds,
        )
    except (VidcurateError, GoBack):  # on all ranks at once, before anything is updated
        training_log.record_data_events(events, state.step + 1, world, run)
        mesh.run_on_all_ranks(partial(_fail, failure), world)
        raise
    if reported.num_events:
        training_log.record_data_events(events, state.step, world, run)
        mesh.run_on_all_ranks(partial(_fail, failure), world)
    training_log.record_save(saver.wait() if reported.save_failed else saver.take(), tools)
    training_log.record_room(tools, state.step)
    training_log.record_kernels(tools, state.step)
    if state.step % spec.log_every == 0 or state.stage_step == stage.num_steps:
        line["weight_norm"] = float(adamw.norm(state.masters.learns.values()))
    guard.look_at_weights(line)
    seconds = time.perf_counter() - began
    line |= {"time": round(time.time(), 3), "seconds": seconds, "data_seconds": data_seconds}
    line["tokens_per_second"] = plan.num_tokens / seconds
    act.steps.add(state.step, reported.own, plan.buckets, line["tokens_per_second"])
    if world.device.type == "cuda":
        line["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    line |= flops.rates(line["model_flops"], seconds, mesh.device_name(world), world.size)
    return line, reported


def _outcome(
    state: TrainState,
    tools: StepContext,
    last_step: int,
    line: dict[str, Any] | None,
    *,
    stopped_by: str | None = None,
    was_done: bool = False,
) -> Outcome:
    return Outcome(
        run=str(tools.recipe.output),
        step=state.step,
        num_steps=last_step,
        loss=line["loss"] if line and math.isfinite(line["loss"]) else None,
        stopped_by=stopped_by,
        was_done=was_done,
        is_first_rank=tools.world.is_first,
        exit_code=monitor.exit_code(tools.recipe.watch, stopped_by),
    )
