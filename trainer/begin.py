"""Everything before the first step: the model, what it goes on from, and the place in its data."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer import checkpoint, data, inputs, mesh, optim, parallel, position, resume
from trainer import recipe as recipes
from trainer.data import StageData
from trainer.encode import text_encoder, video_encoder
from trainer.guard import kept
from trainer.heartbeat import Pulse
from trainer.mesh import World
from trainer.position import GoneOn
from trainer.recipe import TrainRecipe
from trainer.resume import Begun, Origin, TrainState
from trainer.stdit import STDiT3
from trainer.step import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A training that can make its next step. `laid` are the stages as accepted changes left them."""

    state: TrainState
    tools: Tools
    laid: tuple[StageData, ...]
    begun: Begun
    gone_on: GoneOn | None

    @property
    def last_step(self) -> int:
        return self.laid[-1].first_step + self.laid[-1].num_steps


def begin(
    recipe: TrainRecipe,
    origin: Origin,
    settings: Sequence[str],
    laid: tuple[StageData, ...],
    world: World,
    pulse: Pulse,
) -> Ready:
    """Build the model, load what it goes on from and find its place in the data.

    Raises VidcurateError and its children, the same on every rank: for ranks that do not see the same
    recipe, data or weights, and for all that `resume.begin` and `position.go_on` refuse.
    """
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
        model,
        recipe.parallel,
        world,
        getattr(torch, recipe.precision),
        fast=recipe.blocks == "fast",
        float8=recipe.float8_products,
    )
    state = TrainState(model=model, masters=optim.masters(model))
    tools = Tools(
        recipe=recipe,
        world=world,
        layout=layout,
        video=video_encoder(recipe.video_encoder),
        text=text_encoder(recipe.text_encoder),
        pulse=pulse,
    )
    mesh.first_does(lambda: kept.settle(recipe.output), world)
    begun = resume.begin(recipe, origin, state, settings, world)
    if begun.kind == "resume":
        state.guard.rollbacks = mesh.first_does(
            lambda: kept.in_force(recipe.output, state.guard.rollbacks), world
        )
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
            into=recipe.output / position.JOURNAL,
            accept=origin.accept,
            world=world,
        )
        laid = gone_on.laid
    laid = data.with_skips(laid, state.guard.windows)
    data.check_lengths(laid, state.stage, state.stage_step)
    mesh.agree({"weights": checkpoint.checksum(model.state_dict()), "step": str(state.step)}, world)
    return Ready(state=state, tools=tools, laid=laid, begun=begun, gone_on=gone_on)
