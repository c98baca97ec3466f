"""Server loop: find the newest checkpoint not sampled yet, sample it, repeat.

All state is in the run's folder, so a killed server resumes where it stopped. Runs take turns. The first
process decides, all processes sample.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.data import stages as data_stages
from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.generation import sample_clips
from trainer.generation.server import checkpoints, rounds
from trainer.generation.server import validation as server_validation
from trainer.generation.server.checkpoints import Waiting
from trainer.generation.server.presets import Changes, Wanted, wanted
from trainer.generation.server.sample_trackers import Shown, metrics_file
from trainer.generation.server.weights import Model, Taken, part_of, take
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import ValidationSpec
from trainer.report import gallery
from trainer.run_folder import jsonl, metrics, sample_rounds
from trainer.run_folder import layout as run_folder_layout
from trainer.run_folder.checkpoint import checkpoint
from trainer.training import validation
from vidcurate.errors import CheckpointError, InputError, VidcurateError
from vidcurate.storage import lock

REDRAW_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Settings of the server. `is_kept`: keep serving when the runs are done, as an HTTP endpoint does."""

    runs: tuple[Path, ...]
    presets: tuple[str, ...]
    changes: Changes
    raw: bool = False
    validates: bool = True
    tracks: bool = True
    once: bool = False
    is_kept: bool = False
    poll_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work to do with one checkpoint: sample rounds, and the validation loss."""

    run: Path
    path: Path
    sets: tuple[Wanted, ...]
    validates: bool


@dataclass(slots=True, kw_only=True)
class Standing:
    """State of the server, valid on the first process only."""

    waiting: dict[Path, Waiting] = field(default_factory=dict)
    done: set[tuple[Path, str]] = field(default_factory=set)
    unmeasured: set[Path] = field(default_factory=set)  # runs whose clips this machine cannot read
    validation_rounds: dict[Path, Any] = field(default_factory=dict)
    turn: int = 0
    drawn: dict[Path, tuple[float, int]] = field(default_factory=dict)
    clips: int = 0
    rounds: int = 0
    seconds: float = 0.0
    newest: dict[Path, int] = field(default_factory=dict)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _leave(run: Path, path: Path, reason: str, standing: Standing) -> None:
    if standing.waiting[run].leave(path, reason):
        _tell_left(run, path, reason)


def _tell_left(run: Path, path: Path, reason: str) -> None:
    if not (path / "manifest.json").is_file():
        reason = "the checkpoint was deleted during reading"
    say(f"{run.name} {path.name}: skipped: {reason}")
    jsonl.append_event(metrics_file(run), "left_alone", run_folder_layout.step_of(path), reason=reason)


def _job_of(run: Path, path: Path, service: Service, standing: Standing) -> Job | None:
    """Return the work left for a checkpoint; None if there is none.

    Raises CheckpointError, InputError.
    """
    step, digest = run_folder_layout.step_of(path), checkpoints.weights_digest(path, part_of(service.raw))
    if (path, digest) in standing.done:
        return None
    recipe = sample_clips.recipe_of(checkpoint.read_state(path), path)
    sample, encoder_spec, raw = recipe.sample, recipe.video_encoder, service.raw
    asked = [
        wanted(sample, encoder_spec, preset, service.changes, raw=raw, name=recipe.name)
        for preset in service.presets
    ]
    sets = tuple(one for one in asked if not rounds.is_there(run, step, digest, one, raw=service.raw))
    validates = service.validates and run not in standing.unmeasured
    validates = validates and not server_validation.is_there(run, step, raw=service.raw, digest=digest)
    standing.newest[run] = max(step, standing.newest.get(run, 0))
    if sets or validates:
        return Job(run=run, path=path, sets=sets, validates=validates)
    standing.done.add((path, digest))
    standing.waiting[run].take(path)
    return None


def next_job(service: Service, standing: Standing) -> Job | None:
    """Return the next job; None if there is none now."""
    for number in range(len(service.runs)):
        run = service.runs[(standing.turn + number) % len(service.runs)]
        waiting = standing.waiting.setdefault(run, Waiting())
        whole, wanting = checkpoints.there(run, part_of(service.raw), waiting)
        for path, reason in wanting:
            _tell_left(run, path, reason)
        for path in whole:
            try:
                job = _job_of(run, path, service, standing)
            except CheckpointError as error:
                _leave(run, path, str(error), standing)
                continue
            if job:
                standing.turn = (standing.turn + number + 1) % len(service.runs)
                return job
    return None


def _draw(run: Path, standing: Standing) -> None:
    """Update the gallery of a training that has advanced, at most every few seconds."""
    log_file = run / metrics.METRICS
    size = log_file.stat().st_size if log_file.exists() else 0
    before, size_then = standing.drawn.get(run, (-REDRAW_SECONDS, -1))
    if size != size_then and time.monotonic() - before >= REDRAW_SECONDS:
        gallery.write_gallery(run)
        standing.drawn[run] = (time.monotonic(), size)


def _tell_waiting(service: Service, standing: Standing) -> None:
    """Print what the server waits for, its polling interval, and how it ends."""
    until, ends = (
        ("", "Ctrl-C ends it")
        if service.is_kept
        else (" until the run is done", "Ctrl-C ends it, --once does not wait")
    )
    for run in service.runs:
        step = standing.newest.get(run)
        what = "no whole checkpoint is there yet" if step is None else f"sampled up to step {step}"
        say(f"{run}: {what}; the server looks every {service.poll_seconds:g} s{until} ({ends})")


def _tell_unsampled(service: Service, standing: Standing) -> None:
    for run in service.runs:
        if run not in standing.newest:
            say(f"{run}: no whole checkpoint is there; nothing is sampled")


class Server:
    """One model, the runs it follows, and their trackers. A context manager: leaving stops the trackers."""

    def __init__(self, service: Service, world: World, model: Model) -> None:
        self.service, self.world, self.model = service, world, model
        self.standing = Standing()
        self._shown: dict[Path, Shown] = {}
        self.taken: Taken | None = None

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        for shown in self._shown.values():
            shown.__exit__(*_)

    def _tell(self, run: Path, taken: Taken) -> Shown | None:
        if not self.service.tracks or not self.world.is_first:
            return None
        if run not in self._shown:
            self._shown[run] = Shown(run, taken.recipe.trackers, recipes.to_json(taken.recipe))
        return self._shown[run]

    def serve(self, job: Job) -> list[dict[str, Any]]:
        """Do a job; return a line per finished round. All processes call it. Raises VidcurateError."""
        taken = take(job.path, raw=self.service.raw, world=self.world)
        self.taken = taken
        shown = self._tell(job.run, taken)
        lines = []
        for one in job.sets:
            began = time.perf_counter()
            files = rounds.make(job.run, taken, one, self.model, self.world, say)
            seconds = round(time.perf_counter() - began, 3)
            line = {"preset": one.shown, "weights": taken.kind, "clips": len(files), "seconds": seconds}
            line |= {"folder": str(files[0].parent.relative_to(job.run)), "digest": taken.digest}
            lines.append({"run": str(job.run), "step": taken.step, **line})
            if self.world.is_first:
                jsonl.append_event(metrics_file(job.run), "served", taken.step, **line)
                gallery.write_gallery(job.run)
                self._count(len(files), seconds)
        if job.validates:
            self._validate(job, taken)
        if shown:
            shown.check(taken.step)
        return lines

    def _count(self, clips: int, seconds: float) -> None:
        self.standing.rounds += 1
        self.standing.clips += clips
        self.standing.seconds += seconds

    def _validate(self, job: Job, taken: Taken) -> None:
        run = job.run

        def plan_rounds() -> None:
            """Raise VidcurateError if the clips cannot be read or there is no clip to validate on."""
            spec = taken.recipe.validation or ValidationSpec()
            stages = data_stages.open_stages(taken.recipe)
            found = validation.plan_rounds(spec, stages, taken.recipe.seed)
            self.standing.validation_rounds[run] = found

        try:
            if run not in self.standing.validation_rounds:
                mesh.run_on_all_ranks(plan_rounds, self.world)
            line = server_validation.measure(
                run, taken, self.standing.validation_rounds[run], self.model, self.world
            )
        except CheckpointError:
            raise
        except VidcurateError as error:
            self.standing.unmeasured.add(run)
            if self.world.is_first:
                say(f"{run.name}: no validation loss here: {error}")
            return
        if self.world.is_first:
            say(f"{run.name} {validation.console_line(line)}")
            gallery.write_gallery(run)

    def act(self, on_round: Callable[[dict[str, Any]], None]) -> None:
        """Follow the runs until they are done, or once over what is there; `on_round` receives each round."""
        waits = False
        while True:
            job = mesh.run_on_first_rank(lambda: next_job(self.service, self.standing), self.world)
            if job is not None:
                self._do(job, on_round)
                continue
            if self._is_over():
                if self.world.is_first:
                    _tell_unsampled(self.service, self.standing)
                return
            if self.world.is_first:
                if not waits:
                    _tell_waiting(self.service, self.standing)
                waits = True
                for run in self.service.runs:
                    _draw(run, self.standing)
            time.sleep(self.service.poll_seconds)

    def _do(self, job: Job, on_round: Callable[[dict[str, Any]], None]) -> None:
        try:
            lines = self.serve(job)
        except CheckpointError as error:  # on all processes
            if self.world.is_first:
                _leave(job.run, job.path, str(error), self.standing)
            return
        if self.world.is_first:
            for line in lines:
                on_round(line)

    def _is_over(self) -> bool:
        if self.service.once:
            return True
        done = mesh.run_on_first_rank(lambda: all(map(checkpoints.is_done, self.service.runs)), self.world)
        return done and not self.service.is_kept


@contextmanager
def held(service: Service, world: World) -> Iterator[None]:
    """Lock the runs against another server, and delete what a killed server left behind.

    Raises InputError for a folder that is no run, or that another server has locked.
    """
    with ExitStack() as stack:

        def hold() -> None:
            for run in service.runs:
                _hold(run, service, stack)

        mesh.run_on_first_rank(hold, world)
        yield


def _hold(run: Path, service: Service, stack: ExitStack) -> None:
    metrics.check_is_run(run)

    def busy(holder: str) -> InputError:
        return InputError(
            f"{run}: another server works on this run. Stop that server, or give it more presets "
            "(--preset may be repeated)."
        )

    try:
        (run / gallery.SERVE).mkdir(exist_ok=True)
        stack.enter_context(lock.exclusive(run / gallery.SERVE / ".lock", wait=False, busy=busy))
    except OSError as error:
        raise InputError(f"{run / gallery.SERVE}: cannot be written ({error.strerror}).") from error
    for name in ("", *(preset + end for preset in service.presets for end in ("", "-raw"))):
        sample_rounds.clean_rounds(run, name, rounds.BY)
