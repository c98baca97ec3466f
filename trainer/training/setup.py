"""Training setup before step 1: run lock, model, encoders, state, data position."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.data import model_inputs
from trainer.data import stages as data_stages
from trainer.data.stages import StageData
from trainer.distributed import mesh, parallelize
from trainer.distributed.mesh import World
from trainer.health.watch.heartbeat import Pulse
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.stdit import STDiT3
from trainer.recipe import recipe as recipes
from trainer.recipe.recipe import TrainRecipe
from trainer.run_folder.checkpoint import checksum, whole
from trainer.training import data_position, resume
from trainer.training import log as training_log
from trainer.training.data_position import DataPosition
from trainer.training.guard import rollback_file
from trainer.training.micro_batch import StepContext
from trainer.training.optim import adamw
from trainer.training.optim.power_averages import make_power_averages
from trainer.training.state import Origin, StartReport, TrainState
from vidcurate.errors import InputError
from vidcurate.storage import lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training ready for its next step, with its stages after accepted changes of the data."""

    state: TrainState
    context: StepContext
    stages: tuple[StageData, ...]
    start_report: StartReport
    continued: DataPosition | None

    @property
    def last_step(self) -> int:
        return self.stages[-1].first_step + self.stages[-1].num_steps


@contextmanager
def locked_run(run: Path, world: World) -> Iterator[None]:
    """Create the run's folder and lock it: a second training would corrupt its files."""

    def busy(holder: str) -> InputError:
        return InputError(
            f"output {run}: another process is training into this folder. Wait for it, or stop it."
        )

    with ExitStack() as stack:

        def take() -> None:
            try:
                run.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock.exclusive(run / ".lock", wait=False, busy=busy))
            except OSError as error:
                raise InputError(f"output {run}: cannot be written ({error.strerror}).") from error

        mesh.run_on_first_rank(take, world)
        yield


def _resume_point(run: Path, world: World) -> Path | None:
    """Return the run's newest whole checkpoint; report what was damaged and set aside."""
    found, damaged = whole.resume_point(run, world)
    for one in damaged:
        assert found is not None
        training_log.record_damaged(one.path, one.reason, one.kept_as, found, world)
    return found


def set_up(
    recipe: TrainRecipe,
    origin: Origin,
    settings: Sequence[str],
    stages: tuple[StageData, ...],
    world: World,
    pulse: Pulse,
) -> Training:
    """Build the model, load its starting point and find its position in the data.

    Raises VidcurateError and its children, the same on every rank: for ranks with different recipes, data or
    weights, and whatever `resume.start` and `data_position.continue_data` refuse.
    """
    mesh.check_same_on_all_ranks(
        {
            "recipe": recipes.digest(recipe),
            "data": " ".join(stage.index.structure_fingerprint for stage in stages),
            "order": " ".join(stage.plan.fingerprint for stage in stages),
        },
        world,
    )
    model = STDiT3(recipe.model, recipe.seed)
    layout = parallelize.parallelize_model(
        model,
        recipe.parallel,
        world,
        recipe.dtype,
        fast=recipe.blocks == "fast",
        float8=recipe.precision == "float8",
        power_averages=len(recipe.power_ema or ()),
    )
    with_muon = recipe.stages[0].optim.muon is not None
    masters = adamw.masters(model, with_muon=with_muon, world=world)
    averages = make_power_averages(recipe.power_ema, masters.learns)
    state = TrainState(model=model, masters=masters, power_averages=averages)
    video, text = video_encoder(recipe.video_encoder), text_encoder(recipe.text_encoder)
    loads_encoders = recipe.sample is not None or not all(stage.data.latents for stage in recipe.stages)
    context = StepContext(
        recipe=recipe,
        world=world,
        layout=layout,
        video=video,
        text=text,
        encoder_bytes=sum(one.predicted_bytes() or 0 for one in (video, text)) if loads_encoders else 0,
        pulse=pulse,
    )
    verified = _resume_point(recipe.output, world)
    if mesh.run_on_first_rank(lambda: rollback_file.finish_rollback(recipe.output), world):
        verified = _resume_point(recipe.output, world)  # LATEST may name another checkpoint now
    start_report = resume.start(recipe, origin, state, settings, world, verified)
    if start_report.kind == "resume":
        state.guard.rollbacks = mesh.run_on_first_rank(
            lambda: rollback_file.in_force(recipe.output, state.guard.rollbacks), world
        )
    if recipe.model.skip_y_embedder:
        projection = model_inputs.frozen_projection(model, world.device)
        context = dataclasses.replace(context, projection=projection)
        data_stages.check_projection(stages, model_inputs.weights_digest(projection))
    continued: DataPosition | None = None
    if state.loader is not None and state.stage < len(stages):
        assert start_report.path is not None
        continued = data_position.continue_data(
            stages,
            state.stage,
            state.loader,
            start_report.recipe,
            recipe.video_encoder,
            recipe.model,
            run=start_report.path.parent,
            into=recipe.output / data_position.JOURNAL,
            accept=origin.accept,
            world=world,
        )
        stages = continued.stages
    stages = data_stages.with_skips(stages, state.guard.windows)
    data_stages.check_lengths(stages, state.stage, state.stage_step)
    mesh.check_same_on_all_ranks(
        {"weights": checksum.checksum(model.state_dict()), "step": str(state.step)}, world
    )
    return Training(
        state=state, context=context, stages=stages, start_report=start_report, continued=continued
    )
