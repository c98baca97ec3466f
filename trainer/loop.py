"""The training act, in the order of the act: stages in turn, and in each the same step over and over.

A step reads its micro-batches, encodes them, draws what is random (noise, timestep, mask, dropped captions:
keyed by seed, step and clip), sums the gradient of the mean loss over all clips of the step and all ranks,
clips, updates, averages, writes its line, and saves and samples when it is time. Given the same command
again, the run goes on from its newest checkpoint; on the CPU, with one world size and one number of threads,
bit for bit as if it had never stopped.
"""

import dataclasses
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainer import (
    checkpoint,
    data,
    flops,
    inputs,
    mesh,
    metrics,
    optim,
    parallel,
    place,
    position,
    resume,
    sample,
    validation,
)
from trainer import recipe as recipes
from trainer.data import StageData
from trainer.encode import text_encoder, video_encoder
from trainer.inputs import Batch
from trainer.mesh import World
from trainer.position import GoneOn
from trainer.recipe import TrainRecipe
from trainer.resume import Begun, Origin, TrainState
from trainer.saver import Saved, Saver
from trainer.stdit import STDiT3
from trainer.step import Tools, train_step
from trainer.trackers import Mirrors, TrackersSpec
from trainer.validation import Round
from vidcurate.errors import InputError, VidcurateError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
NEXT_CLIPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How `train` ended. `stopped_by` is a signal's name, or None when every step is done."""

    run: str
    step: int
    num_steps: int
    loss: float | None
    stopped_by: str | None
    was_done: bool
    is_first_rank: bool

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "is_first_rank"}

    def in_words(self) -> str:
        newest = f"{self.run}/{checkpoint.folder_name(self.step)}"
        if self.stopped_by:
            return (
                f"{self.stopped_by}: saved {newest} of {self.num_steps} steps; "
                "the same command goes on from it"
            )
        if self.was_done:
            return f"{self.run} is done: {self.step} of {self.num_steps} steps, the last is {newest}"
        return f"done: {self.step} steps, loss {self.loss:.6f}, {newest}"


class _Stop:
    """The name of the first stop signal that came, "" before."""

    def __init__(self) -> None:
        self.name = ""

    def __call__(self, number: int, frame: object) -> None:
        self.name = self.name or signal.Signals(number).name


@contextmanager
def _signals() -> Iterator[_Stop]:
    """Listen for STOP_SIGNALS; the step in progress ends first."""
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _run_folder(run: Path, world: World) -> Iterator[None]:
    """Make the run's folder and hold it: two processes that train into one folder would ruin it."""

    def take() -> int:
        try:
            run.mkdir(parents=True, exist_ok=True)
            handle = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"output {run}: cannot be written ({error.strerror}).") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise InputError(
                f"output {run}: another process is training into it; wait or stop it."
            ) from error
        return handle

    handle = mesh.first_does(take, world)
    try:
        yield
    finally:
        if world.is_first:
            os.close(handle)


@contextmanager
def _determinism(world: World) -> Iterator[None]:
    """On the CPU, refuse operations whose result can differ from run to run; it costs nothing there."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(world.device.type == "cpu")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _say(world: World, text: str) -> None:
    if world.is_first:
        print(text, file=sys.stderr, flush=True)


# ── beginning, saving, sampling ─────────────────────────────────────────────────────────────────────────────


def _tell_beginning(begun: Begun, state: TrainState, tools: Tools, laid: tuple[StageData, ...]) -> None:
    """Print and record how the run begins, with the proof of what was loaded and what comes next."""
    run, world = tools.recipe.output, tools.world
    stage = laid[state.stage]
    is_over = state.stage_step >= stage.num_steps
    proof = dict(begun.proof)
    proof["lr_after"] = (
        None if is_over else optim.learning_rate(stage.stage.optim, state.stage_step, stage.num_steps)
    )
    proof["structure_fingerprint"] = stage.index.structure_fingerprint
    ids = () if is_over else data.step_plan(stage, state.stage_step, tools.recipe).clip_ids
    proof["next_clip_ids"] = list(ids[:NEXT_CLIPS])
    proof["changed"] = {key: list(values) for key, values in begun.changed.items()}
    if world.is_first:
        checkpoint.clean(run)
        proof["repeated_steps"] = metrics.forget_after(run, state.step)
        metrics.record_event(
            run, begun.kind, state.step, stage=stage.stage.name, world_size=world.size, **proof
        )
        checkpoint.write_text(run / "recipe.json", json.dumps(recipes.as_json(tools.recipe), indent=1) + "\n")
    if begun.kind == "start":
        return
    _say(world, f"{begun.kind}: {begun.path}, step {state.step}, stage {stage.stage.name}")
    for key, value in proof.items():
        if key != "path" and value not in ({}, [], None, 0):
            _say(world, f"  {key}: {', '.join(value) if isinstance(value, list) else value}")


def _tell_change(gone_on: GoneOn, state: TrainState, tools: Tools) -> None:
    """Print and record what was changed and accepted; keep the index that the run goes on with."""
    run = tools.recipe.output
    if tools.world.is_first:
        position.keep_index(gone_on.laid[state.stage], run)
    if gone_on.change is None:
        return
    for text in position.in_words(gone_on.verdict, gone_on.change):
        _say(tools.world, f"  data changed: {text}")
    if tools.world.is_first:
        metrics.record_event(run, "data_changed", state.step, **position.event(gone_on.change))


def _save(state: TrainState, tools: Tools, stage: StageData, saver: Saver) -> None:
    """Save a checkpoint, or begin to: the one before must be written first."""
    _record_save(saver.wait(), tools)
    spec = stage.stage
    kept = resume.state_json(
        state,
        tools.recipe,
        stage_name=spec.name,
        loader=position.as_saved(stage, state.stage_step, state.clips_hash, state.delivered_hash),
        world_size=tools.world.size,
    )
    saver.save(
        state.step,
        state.tensors(),
        kept,
        keep_last=spec.keep_last,
        keep_every=spec.keep_every,
        in_background=spec.checkpoint_in_background,
    )
    _record_save(saver.take(), tools)


def _record_save(saved: Saved | None, tools: Tools) -> None:
    if saved is not None and tools.world.is_first:
        facts = {"path": saved.path.name, "seconds": round(saved.seconds, 3), "deleted": saved.deleted}
        facts["stall_seconds"] = round(saved.stall_seconds, 3)
        metrics.record_event(tools.recipe.output, "save", saved.step, **facts)


def _sample_if_due(state: TrainState, tools: Tools, last_step: int) -> None:
    """Sample the recipe's prompts from the moving average, once for a step whose turn it is."""
    run, spec = tools.recipe.output, tools.recipe.sample
    if spec is None or state.step == 0 or (state.step % spec.every and state.step != last_step):
        return
    if mesh.first_does(lambda: sample.is_sampled(run, state.step), tools.world):
        return
    weights = {}
    for name, value in state.ema.items():
        joined = mesh.whole(value)  # all ranks together, a tensor at a time
        if tools.world.is_first:
            weights[name] = joined

    def write() -> None:
        began = time.perf_counter()
        model = sample.sampling_model(tools.recipe)
        paths = sample.sample_round(run, state.step, model, weights, tools.recipe, state.stage)
        seconds = round(time.perf_counter() - began, 3)
        metrics.record_event(run, "sample", state.step, clips=len(paths), seconds=seconds)
        _say(tools.world, f"step {state.step}: sampled {len(paths)} clips in {seconds:.1f} s")

    mesh.first_does(write, tools.world)


def _validate_if_due(state: TrainState, tools: Tools, rounds: tuple[Round, ...], last_step: int) -> None:
    """Measure the validation loss, once for a step whose turn it is."""
    if not validation.is_due(tools.recipe, state.step, last_step):
        return
    line = validation.validate(state, tools, rounds[state.stage])
    if line is not None:
        _say(tools.world, validation.console_line(line))


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


def _in_words(event: dict[str, Any]) -> str:
    """Return a loader's event for the console; events.jsonl has all of it."""
    if event["event"] == "clip_substituted":
        return f"clip {event['clip_id']} cannot be read ({event['kind']}); {event['spare']} stands in for it"
    return json.dumps({key: value for key, value in event.items() if key != "stack"})


def _record_data_events(events: list[dict[str, Any]], step: int, world: World, run: Path) -> None:
    """Record what the loaders of all ranks had to tell of a step (a clip replaced, a worker restarted)."""
    for rank, theirs in enumerate(mesh.gather(list(events), world)):
        for event in theirs:
            if world.is_first:
                facts = {key: value for key, value in event.items() if key not in ("event", "step")}
                metrics.record_event(run, event["event"], step, rank=rank, **facts)
            _say(world, f"step {step}: {_in_words(event)}")
    events.clear()


def _enter(stage: StageData, state: TrainState, tools: Tools) -> None:
    """Begin a stage: say what it reads and what of its clips it does not, and carry over what it asks for."""
    if stage.number != state.stage:
        state.stage, state.stage_step, state.loader = stage.number, 0, None
        if stage.stage.carry_over == "weights":
            state.optimizer = optim.make_optimizer(state.model)
            state.ema, state.ema_updates = optim.make_ema(state.model), 0
    if tools.world.is_first and state.stage_step == 0:
        facts = {"stage": stage.stage.name, "steps": stage.num_steps, **data.summary(stage)}
        metrics.record_event(tools.recipe.output, "stage", state.step, **facts)
        position.keep_index(stage, tools.recipe.output)
        for note in stage.plan.notes:
            _say(tools.world, f"{stage.stage.name}: {json.dumps(note)}")


# ── the act ─────────────────────────────────────────────────────────────────────────────────────────────────


def train(recipe: TrainRecipe, origin: Origin | None = None, settings: Sequence[str] = ()) -> Outcome:
    """Train what `recipe` says, from its run's newest checkpoint if there is one, else from `origin`.

    `settings` are this command's `key=value` overrides, already part of `recipe`: a resumed run takes some
    changes only when they are named. Raises VidcurateError and its children, the same on every rank.
    """
    origin = origin or Origin()
    resume.check_origin(origin)
    laid = data.lay_out(recipe)
    rounds = validation.lay_out(recipe, laid)
    world = mesh.join()
    try:
        run = recipe.output
        with (
            _signals() as stop,
            _run_folder(run, world),
            place.rank_log(run, world.rank, world.size),
            _determinism(world),
        ):
            saver = Saver(run, world)
            shown = recipe.trackers if world.is_first else TrackersSpec()
            try:
                with Mirrors(shown, run, recipes.as_json(recipe)) as mirrors:
                    return _act(recipe, origin, settings, laid, rounds, world, stop, saver, mirrors)
            finally:
                saver.close()
    finally:
        mesh.leave(world)


def _act(
    recipe: TrainRecipe,
    origin: Origin,
    settings: Sequence[str],
    laid: tuple[StageData, ...],
    rounds: tuple[Round, ...],
    world: World,
    stop: _Stop,
    saver: Saver,
    mirrors: Mirrors,
) -> Outcome:
    run, last_step = recipe.output, laid[-1].first_step + laid[-1].num_steps
    mesh.agree(
        {
            "recipe": recipes.digest(recipe),
            "data": " ".join(stage.index.structure_fingerprint for stage in laid),
            "order": " ".join(stage.plan.fingerprint for stage in laid),
        },
        world,
    )
    model = STDiT3(recipe.model, recipe.seed)
    layout = parallel.lay_out(
        model, recipe.parallel, world, getattr(torch, recipe.precision), fast=recipe.blocks == "fast"
    )
    state = TrainState(model=model, optimizer=optim.make_optimizer(model), ema=optim.make_ema(model))
    tools = Tools(
        recipe=recipe,
        world=world,
        layout=layout,
        video=video_encoder(recipe.video_encoder),
        text=text_encoder(recipe.text_encoder),
    )
    begun = resume.begin(recipe, origin, state, settings, world)
    if recipe.model.skip_y_embedder:
        projection = inputs.frozen_projection(model, world.device)
        tools = dataclasses.replace(tools, projection=projection)
        data.check_projection(laid, inputs.weights_digest(projection))
    gone_on: GoneOn | None = None
    if state.loader is not None and state.stage < len(laid):
        assert begun.path is not None
        gone_on = position.go_on(
            laid,
            state.stage,
            state.loader,
            begun.recipe,
            recipe,
            run=begun.path.parent,
            into=run / position.JOURNAL,
            accept=origin.accept,
            world=world,
        )
        laid = gone_on.laid
        last_step = laid[-1].first_step + laid[-1].num_steps
    data.check_lengths(laid, state.stage, state.stage_step)
    mesh.agree({"weights": checkpoint.checksum(model.state_dict()), "step": str(state.step)}, world)
    was_done = begun.kind == "resume" and state.step == last_step
    if not was_done:
        if any(stage.stage.checkpoint_in_background for stage in laid):
            saver.prepare(state.tensors())
        _tell_beginning(begun, state, tools, laid)
        if gone_on:
            _tell_change(gone_on, state, tools)
        mirrors.begin()
    if begun.kind == "resume":
        _sample_if_due(state, tools, last_step)  # a kill may have come between save and sample
    _validate_if_due(state, tools, rounds, last_step)

    line: dict[str, Any] | None = None
    for stage in laid[state.stage :]:
        if stage.number == state.stage and state.stage_step == stage.num_steps:
            continue
        _enter(stage, state, tools)
        spec = stage.stage
        events: list[dict[str, Any]] = []
        with data.open_loader(
            stage,
            recipe,
            rank=world.rank,
            world_size=world.size,
            on_event=events.append,
            pin=world.device.type == "cuda",
        ) as loader:
            paces: list[float] = []
            while state.stage_step < stage.num_steps:
                began = time.perf_counter()
                plan = data.step_plan(stage, state.stage_step, recipe)
                batches, failure = _read(loader.step, state.stage_step, events)
                data_seconds = time.perf_counter() - began
                try:
                    line, told = train_step(
                        state,
                        tools,
                        stage,
                        plan,
                        batches,
                        stop=bool(stop.name),
                        save_failed=saver.failed,
                        num_events=len(events),
                    )
                except VidcurateError:  # on all ranks at once, before anything is updated
                    _record_data_events(events, state.step + 1, world, run)
                    mesh.together(partial(_fail, failure), world)
                    raise
                if told.num_events:
                    _record_data_events(events, state.step, world, run)
                    mesh.together(partial(_fail, failure), world)
                _record_save(saver.wait() if told.save_failed else saver.take(), tools)

                is_last = state.stage_step == stage.num_steps
                if state.step % spec.log_every == 0 or is_last:
                    line["weight_norm"] = float(optim.norm(optim.trained(model).values()))
                seconds = time.perf_counter() - began
                line |= {"time": round(time.time(), 3), "seconds": seconds, "data_seconds": data_seconds}
                line["tokens_per_second"] = plan.num_tokens / seconds
                if world.device.type == "cuda":
                    line["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
                line |= flops.rates(line["model_flops"], seconds, mesh.device_name(world), world.size)
                paces = [*paces[-19:], seconds]
                if world.is_first:
                    metrics.append(run / metrics.METRICS, line)
                if state.step % spec.log_every == 0 or is_last or state.step == 1:
                    _say(world, metrics.console_line(line, last_step, sum(paces) / len(paces)))
                    mirrors.check(state.step)

                if state.step % spec.checkpoint_every == 0 or is_last or told.stop:
                    _save(state, tools, stage, saver)
                _sample_if_due(state, tools, last_step)
                _validate_if_due(state, tools, rounds, last_step)
                if told.stop and state.step < last_step:
                    _record_save(saver.wait(), tools)
                    name = next(filter(None, mesh.gather(stop.name, world)), "a signal")
                    if world.is_first:
                        metrics.record_event(run, "stop", state.step, signal=name)
                    return _outcome(state, tools, last_step, line, stopped_by=name)
    _record_save(saver.wait(), tools)
    if world.is_first and not was_done:
        metrics.record_event(run, "done", state.step)
    return _outcome(state, tools, last_step, line, was_done=was_done)


def _outcome(
    state: TrainState,
    tools: Tools,
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
        loss=line["loss"] if line else None,
        stopped_by=stopped_by,
        was_done=was_done,
        is_first_rank=tools.world.is_first,
    )
