"""Validation loss: the same clips, noise and ten timesteps in every round.

Noise belongs to (seed, timestep, clip), there are no frame masks and no dropped captions, and timesteps are
not shifted (the protocol of Open-Sora 1.2's evaluation). Two rounds therefore differ by the weights alone,
and the change of each clip's loss, with a standard error of its own, says more than two means do. The
training's random numbers are neither read nor advanced.
"""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data import model_inputs, open_stage
from trainer.data import stages as data_stages
from trainer.data.latents import request as latents_request
from trainer.data.stages import StageData
from trainer.distributed import mesh
from trainer.model import rectified_flow, rng
from trainer.model.stdit import lengths_read
from trainer.recipe.recipe import ValidationSpec
from trainer.run_folder import jsonl, metrics
from trainer.training.micro_batch import StepContext
from trainer.training.optim import ema
from trainer.training.state import TrainState
from vidcurate.errors import counted
from vidcurate.sampler.order import one_epoch
from vidcurate.sampler.plan import MicroBatchPlan

TIMESTEPS = tuple(float(t) for t in np.linspace(0, rectified_flow.TIMESTEPS, 12)[1:-1])
"""90.9, 181.8 … 909.1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A validation round over a stage's data: micro-batches in order, with each clip's bucket."""

    data: StageData
    parts: tuple[MicroBatchPlan, ...]
    clip_ids: tuple[str, ...]
    buckets: tuple[str, ...]


def plan_rounds(
    spec: ValidationSpec | None, stages: Sequence[StageData], seed: int, *, complete: bool = True
) -> tuple[Round, ...]:
    """Return each stage's validation round; none without a `spec`.

    Raises InputError for a stage without a clip to validate on and, if `complete`, for clips without latents.
    """
    return tuple(_round(spec, stage, seed, complete) for stage in stages) if spec else ()


def _round(spec: ValidationSpec, stage: StageData, seed: int, complete: bool) -> Round:
    wanted = data_stages.validation_spec(spec, stage.stage.data)
    plan = data_stages.stage_plan(stage.index, wanted, seed)
    if stage.folder and complete:
        latents_request.check_complete(
            stage.stage.name, wanted, latents_request.missing(stage.folder, plan, wanted)
        )
    there = replace(stage, stage=stage.stage.model_copy(update={"data": wanted}), plan=plan)
    counts: dict[str, int] = {}
    for cell in there.plan.cells:
        counts[cell.bucket.name] = counts.get(cell.bucket.name, 0) + 1
    parts: list[MicroBatchPlan] = []
    taken: dict[int, int] = {}
    for part in one_epoch(there.plan):
        name = there.plan.cells[part.cell].bucket.name
        room = math.ceil(spec.clips_per_bucket / counts[name]) - taken.get(part.cell, 0)
        if room > 0:
            kept = part.rows[:room]
            taken[part.cell] = taken.get(part.cell, 0) + len(kept)
            parts.append(replace(part, rows=kept, epochs=part.epochs[:room], position=len(parts)))
    names = there.index.words("clip_id")
    return Round(
        data=there,
        parts=tuple(parts),
        clip_ids=tuple(names.take(np.concatenate([part.rows for part in parts])).to_pylist()),
        buckets=tuple(there.plan.cells[part.cell].bucket.name for part in parts for _ in part.rows),
    )


@torch.no_grad()
def _clip_losses(model: torch.nn.Module, context: StepContext, batch: model_inputs.Batch) -> Tensor:
    """Return the losses [B, timesteps] of a micro-batch, float64 on the CPU."""
    seed, ids, device = context.recipe.seed, batch.clip_ids, context.world.device
    given = model_inputs.of(batch, context.encoders, seed=seed, step=0, device=device)
    height, width = (
        torch.full((len(ids),), float(size), device=device)
        for size in (batch.bucket.height, batch.bucket.width)
    )
    columns = []
    for number, timestep in enumerate(TIMESTEPS):
        noises = rng.normal(seed, "validation", number, ids, tuple(given.latents.shape[1:]))
        losses = rectified_flow.training_losses(
            model,
            given.latents,
            noises.to(device),
            torch.full((len(ids),), timestep, device=device),
            y=given.y,
            mask=given.mask,
            fps=torch.from_numpy(batch.fps).to(device),
            height=height,
            width=width,
            text_lengths=lengths_read(context.recipe.model, given.lengths),
        )
        columns.append(losses.double().cpu())
    return torch.stack(columns, dim=1)


def losses(context: StepContext, given: Round) -> tuple[NDArray[np.float64], int]:
    """Return the losses [clips, timesteps] of a round and the number of its fallback clips.

    The result is the same on every rank. The weights are those of `context.layout`.
    """
    world = context.world
    slots = list(itertools.accumulate((len(part.rows) for part in given.parts), initial=0))
    reported = torch.zeros(
        slots[-1] + 1, len(TIMESTEPS), dtype=torch.float64
    )  # last row: number of fallback clips
    events: list[dict[str, Any]] = []
    mine = [part for part in given.parts if part.position % world.size == world.rank]
    with (
        context.layout.gathered_weights(),
        open_stage.open_loader(
            given.data,
            context.recipe.loader,
            context.recipe.video_encoder,
            rank=0,
            world_size=1,
            on_event=events.append,
        ) as loader,
    ):

        def read() -> None:
            for part in mine:  # one at a time: a round must not need more memory than a step
                (batch,) = loader.load([part])
                reported[slots[part.position] : slots[part.position + 1]] = _clip_losses(
                    context.layout.compute, context, batch
                )

        mesh.run_on_all_ranks(read, world)  # an unreadable clip stops all ranks
    reported[-1, 0] = sum(event["event"] == "clip_substituted" for event in events)
    found: NDArray[np.float64] = mesh.sum_over_ranks(reported, world).cpu().numpy()
    return found[:-1], int(found[-1, 0])


def losses_of_state(state: TrainState, context: StepContext, given: Round) -> tuple[NDArray[np.float64], int]:
    """Return `losses` of the EMA.

    Weights and EMA are unchanged afterwards.
    """
    ema.swap(state.ema, state.model)
    try:
        return losses(context, given)
    finally:
        ema.swap(state.ema, state.model)


def _standard_error(values: NDArray[np.float64]) -> float | None:
    """Return the standard error of the mean; None for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def summary(
    table: NDArray[np.float64], given: Round, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the metrics of a round; `before` is the previous round's line.

    `loss` is the mean over clips of the mean over timesteps. `change` is against `before`, clip by clip, if
    `before` has the same clips.
    """
    of_clips = table.mean(axis=1)
    groups = {
        name: of_clips[[bucket == name for bucket in given.buckets]] for name in sorted(set(given.buckets))
    }
    found: dict[str, Any] = {
        "clips": len(of_clips),
        "loss": metrics.mean(of_clips),
        "standard_error": _standard_error(of_clips),
        "loss_by_bucket": metrics.mean_by(of_clips, given.buckets),
        "standard_error_by_bucket": {name: _standard_error(values) for name, values in groups.items()},
        "clips_by_bucket": {name: len(values) for name, values in groups.items()},
        "loss_by_timestep": {
            f"{timestep:.0f}": metrics.mean(column)
            for timestep, column in zip(TIMESTEPS, table.T, strict=True)
        },
        "loss_by_clip": dict(zip(given.clip_ids, of_clips.tolist(), strict=True)),
    }
    if before is not None and before["loss_by_clip"].keys() == found["loss_by_clip"].keys():
        change = of_clips - np.array([before["loss_by_clip"][clip_id] for clip_id in given.clip_ids])
        found |= {"change": float(change.mean()), "change_standard_error": _standard_error(change)}
    return found


def console_line(line: Mapping[str, Any]) -> str:
    """Return the console line of a round."""

    def shown(name: str, sign: str) -> str:
        error = line[f"{name}_standard_error" if name == "change" else "standard_error"]
        return f"{line[name]:{sign}.4f}" + (f" ± {error:.4f}" if error is not None else "")

    change = f", {shown('change', '+')} since the previous round" if "change" in line else ""
    return (
        f"step {line['step']}: validation loss {shown('loss', '')}{change}  "
        f"({counted(line['clips'], 'clip')}, {line['weights']} weights, {line['seconds']:.1f} s)"
    )


def is_due(spec: ValidationSpec | None, step: int, last_step: int) -> bool:
    """Return whether this step validates: before the first step, every `spec.every`, after the last."""
    return spec is not None and (step % spec.every == 0 or step == last_step)


def validate(state: TrainState, context: StepContext, given: Round) -> dict[str, Any] | None:
    """Run this step's round, append its line to validation.jsonl and return it; None if already there.

    The line does not depend on the number of ranks.
    """
    path = context.recipe.output / metrics.VALIDATION
    written = mesh.run_on_first_rank(lambda: metrics.read_metrics(path)[-1:], context.world)
    if written and written[0]["step"] >= state.step:
        return None
    began = time.perf_counter()
    table, substituted = losses_of_state(state, context, given)
    line = {"step": state.step, "stage": given.data.stage.name, "weights": "ema"}
    line |= summary(table, given, written[0] if written else None)
    line |= {
        "clips_substituted": substituted,
        "time": round(time.time(), 3),
        "seconds": time.perf_counter() - began,
    }
    if context.world.is_first:
        jsonl.append_line(path, line)
    return line
