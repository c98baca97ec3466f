"""Server validation: a checkpoint's validation loss, by the training's protocol.

The server measures where the run's clips are readable, and writes RUN/serve/validation.jsonl. It skips a step
for which the training has measured the same weights.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.data import model_inputs
from trainer.distributed import mesh, parallelize
from trainer.distributed.mesh import World
from trainer.distributed.spec import ParallelSpec
from trainer.generation.server.weights import Model, Taken
from trainer.model.encoders.registry import text_encoder, video_encoder
from trainer.model.stdit import STDiT3
from trainer.report.gallery import SERVE
from trainer.run_folder import jsonl, metrics
from trainer.training import validation
from trainer.training.micro_batch import StepContext
from trainer.training.validation import Round


def metrics_file(run: Path) -> Path:
    return run / SERVE / metrics.VALIDATION


def is_there(run: Path, step: int, *, raw: bool, digest: str) -> bool:
    """Return whether one of the two validation files has the loss of these weights at this step."""
    kind = "raw" if raw else "ema"
    own = [line for line in metrics.read_metrics(metrics_file(run)) if line.get("digest") == digest]
    lines = [*metrics.read_metrics(run / metrics.VALIDATION), *own]
    return any(line["step"] == step and line["weights"] == kind for line in lines)


def _before(run: Path, taken: Taken) -> dict[str, Any] | None:
    """Return the line of the last earlier step with the same weights."""
    lines = [*metrics.read_metrics(run / metrics.VALIDATION), *metrics.read_metrics(metrics_file(run))]
    earlier = [line for line in lines if line["step"] < taken.step and line["weights"] == taken.kind]
    return max(earlier, key=lambda line: int(line["step"]), default=None)


def _tools(taken: Taken, model: Model, world: World) -> StepContext:
    """Return a StepContext around the server's own model. The caller holds the model's lock."""
    recipe, own = taken.recipe, model.of(taken)
    with torch.device("meta"):
        twin = STDiT3(recipe.model)
    twin.load_state_dict(own.state_dict(), assign=True)  # the same tensors, by the recipe's own settings
    twin.eval().requires_grad_(False)
    is_fast = recipe.blocks == "fast" and world.device.type == "cuda"
    alone = mesh.World(rank=0, size=1, device=world.device)  # the model is not sharded
    dtype = recipe.dtype
    layout = parallelize.parallelize_model(
        twin,
        ParallelSpec(),
        alone,
        dtype,
        fast=is_fast,
        float8=recipe.precision == "float8" and is_fast,
    )
    projection = model_inputs.frozen_projection(own, world.device) if recipe.model.skip_y_embedder else None
    return StepContext(
        recipe=recipe,
        world=world,
        layout=layout,
        video=video_encoder(recipe.video_encoder),
        text=text_encoder(recipe.text_encoder),
        projection=projection,
    )


def measure(
    run: Path,
    taken: Taken,
    rounds: Sequence[Round],
    model: Model,
    world: World,
) -> dict[str, Any]:
    """Measure one round, append it to RUN/serve/validation.jsonl and return it. All processes call it.

    Raises VidcurateError.
    """
    given = rounds[min(taken.stage, len(rounds) - 1)]
    before = mesh.run_on_first_rank(lambda: _before(run, taken), world)
    began = time.perf_counter()
    with model.first():
        table, substituted = validation.losses(_tools(taken, model, world), given)
    line = {"step": taken.step, "stage": given.data.stage.name, "weights": taken.kind}
    line |= validation.summary(table, given, before)
    line |= {
        "clips_substituted": substituted,
        "digest": taken.digest,
        "time": round(time.time(), 3),
        "seconds": time.perf_counter() - began,
    }
    if world.is_first:
        jsonl.append_line(metrics_file(run), line)
    return line
