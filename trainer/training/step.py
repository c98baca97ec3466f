"""Training step: from a rank's micro-batches to updated weights and metrics.

Everything random (noise, timestep, frame mask, dropped caption) is drawn for (seed, step, clip), so the
result does not depend on which rank or process computes a clip. The step's loss is the mean over its clips on
all ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data import model_inputs
from trainer.data import stages as data_stages
from trainer.data.latents import request as latents_request
from trainer.data.model_inputs import Batch, Encoders
from trainer.data.stages import StageData, StepPlan
from trainer.distributed import mesh
from trainer.distributed.mesh import World
from trainer.distributed.parallelize import Layout
from trainer.health.watch import throughput
from trainer.health.watch.heartbeat import SILENT, Pulse
from trainer.health.watch.throughput import OwnSeconds, Stopwatch
from trainer.model import flops, frame_masks, rectified_flow, rng, routing, tensors
from trainer.model.encoders.caption_projection import CaptionProjection
from trainer.model.encoders.registry import TextEncoder, VideoEncoder
from trainer.model.routing import RoutingSpec
from trainer.model.stdit import lengths_read
from trainer.recipe.recipe import Stage, TrainRecipe
from trainer.run_folder import metrics
from trainer.training import step_balance
from trainer.training.guard.decide import Halted
from trainer.training.optim import adamw, schedule
from trainer.training.state import TrainState
from trainer.training.step_balance import Prediction
from vidcurate.errors import DeviceMemoryError, counted
from vidcurate.sampler import order

NAMED_CLIPS = 8  # in an error message


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Inputs of a step that the step does not change.

    `encoder_bytes` is the GPU memory of both encoders where the run ever loads them: a resumed run then
    computes its micro-batches in the chunks of the run that never stopped.
    """

    recipe: TrainRecipe
    world: World
    layout: Layout
    video: VideoEncoder
    text: TextEncoder
    encoder_bytes: int = 0
    projection: CaptionProjection | None = None  # for a model with skip_y_embedder
    pulse: Pulse = SILENT  # the training loop reports its phase here

    @property
    def encoders(self) -> Encoders:
        """The encoders that make a clip's latent and caption features, as the recipe sets them."""
        return Encoders(
            video=self.video,
            text=self.text,
            kept=self.recipe.encoded,
            samples=latents_request.samples_posterior(self.recipe.video_encoder),
            projection=self.projection,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipLosses:
    """Losses of a micro-batch's clips, float32 [B].

    `timesteps` are [B] in [0, 1000]; `text_tokens` [B] counts the tokens each clip reads: its caption's, or
    the null caption's if its caption is dropped. Both are on the CPU.
    """

    losses: Tensor
    timesteps: Tensor
    text_tokens: Tensor


def routing_now(state: TrainState, stage: StageData) -> RoutingSpec | None:
    """Return the routing of the next update; None computes dense."""
    return routing.at_step(stage.stage.routing, state.stage_step, stage.num_steps)


def add_gradient(
    context: StepContext,
    stage: Stage,
    batch: Batch,
    step: int,
    *,
    num_clips: int,
    routed: RoutingSpec | None = None,
) -> ClipLosses:
    """Add the gradient of a micro-batch in update number `step` (from 0), `routed`; return its losses.

    `batch` has frames or latents. The gradient is of the sum of its losses over the update's `num_clips`.
    The clips go forward and backward in the chunks of `layout.recompute`'s plan.
    """
    seed, ids, device = context.recipe.seed, batch.clip_ids, context.world.device
    given = model_inputs.of(batch, context.encoders, seed=seed, step=step, device=device)
    latents = given.latents
    count, _, frames = latents.shape[:3]
    sizes = (batch.bucket.height, batch.bucket.width, batch.bucket.num_frames)
    height, width, num_frames = (torch.full((count,), float(size)) for size in sizes)

    noises = rng.normal(seed, "noise", step, ids, tuple(latents.shape[1:]))
    draws = rng.scalars(seed, "timestep", step, ids, "normal")
    ratio = rectified_flow.shift_ratio(height, width, num_frames, scale=stage.flow.shift_scale)
    timesteps = rectified_flow.shift_timesteps(rectified_flow.draw_timesteps(draws), ratio)
    x_mask = None
    if any(ratio for name, ratio in stage.mask_ratios.items() if name != "identity"):
        x_mask, _ = frame_masks.draw_masks(stage.mask_ratios, frames, seed=seed, step=step, clip_ids=ids)
        x_mask = tensors.send(x_mask, device)
    drops = rng.caption_drops(seed, step, ids, stage.caption_dropout) if stage.caption_dropout else None
    model_spec = context.recipe.model
    lengths = lengths_read(model_spec, given.lengths, None if drops is None else drops.tolist())

    loaded_bytes = context.video.device_bytes + context.text.device_bytes
    beside_bytes = max(context.encoder_bytes, loaded_bytes)
    plan = context.layout.recompute.choose_plan(latents, given.y, beside_bytes)
    noise, at = tensors.send(noises, device), tensors.send(timesteps, device)
    of_clips: dict[str, Any] = {
        "x_mask": x_mask,
        "y": given.y,
        "mask": given.mask,
        "fps": tensors.send(torch.from_numpy(batch.fps), device),
        "height": tensors.send(height, device),
        "width": tensors.send(width, device),
        "drop_caption": None if drops is None else tensors.send(drops, device),
        "text_lengths": lengths,
    }
    losses = []
    for chunk in plan.slices(count):
        conditions = {name: None if value is None else value[chunk] for name, value in of_clips.items()}
        conditions |= routing.conditions(
            routed, latents[chunk], model_spec.patch_size, seed=seed, step=step, clip_ids=ids[chunk]
        )
        found = rectified_flow.training_losses(
            context.layout.compute, latents[chunk], noise[chunk], at[chunk], **conditions
        )
        (found.sum() / num_clips).backward()  # type: ignore[no-untyped-call]
        losses.append(found.detach())
    return ClipLosses(losses=torch.cat(losses), timesteps=timesteps, text_tokens=torch.tensor(lengths))


@contextmanager
def _memory_named(context: StepContext, batch: Batch) -> Iterator[None]:
    """Raise DeviceMemoryError, with what helps, where the GPU's memory does not hold the micro-batch."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        bucket, clips = batch.bucket, counted(len(batch.clip_ids), "clip")
        raise DeviceMemoryError(
            f"rank {context.world.rank}: the memory of {context.world.device} does not hold a micro-batch of "
            f"{bucket.name}, {clips} ({context.layout.recompute.plan}): {str(error).splitlines()[0]} Set "
            "parallel.recompute_blocks=fit and environment.PYTORCH_ALLOC_CONF=expandable_segments:True, or "
            "put fewer clips into a micro-batch of this bucket."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSync:
    """Values reduced over all ranks in one step.

    `stop`: a rank has to stop. `save_failed`: a rank could not write a checkpoint in the background.
    `num_events`: number of pending loader events. `own`: each rank's own seconds in the step.
    """

    stop: bool
    save_failed: bool
    num_events: int
    own: tuple[OwnSeconds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A step before its update: values of its n clips, equal on all ranks; the model holds the gradient.

    `losses`, `timesteps`, `text_tokens` and `seconds` are [n]; `seconds` is the time of a clip's micro-batch.
    `predicted` is the step's cost by the plan; `delivered` the ids of the clips that were read. `grad_norm`
    is the norm of the gradient, which the update clips, `rank_norms` that of each rank's own gradient, before
    the sum.
    """

    plan: StepPlan
    losses: NDArray[np.float64]
    timesteps: NDArray[np.float64]
    text_tokens: NDArray[np.float64]
    seconds: NDArray[np.float64]
    predicted: Prediction
    delivered: tuple[str, ...]
    grad_norm: float
    rank_norms: tuple[float, ...]
    reported: StepSync

    @property
    def loss(self) -> float:
        """The step's loss: the mean over its clips."""
        return metrics.mean(self.losses)


# Checks a step before its update: True to make the update, False to skip it; may raise.
Check = Callable[[Computed], bool]


def gradient(
    state: TrainState,
    context: StepContext,
    stage: StageData,
    plan: StepPlan,
    batches: Sequence[Batch],
    *,
    stop: bool = False,
    save_failed: bool = False,
    num_events: int = 0,
    data_seconds: float = 0.0,
) -> Computed:
    """Compute the gradient of the mean loss over all `plan.clip_ids`; the model holds it.

    `batches` are this rank's. Raises VidcurateError if no rank delivered a clip of the step.
    """
    world = context.world
    num_clips = len(plan.clip_ids)
    # Each rank fills in its clips, zeros elsewhere, so the sum over ranks is exact.
    reported = torch.zeros(5 * num_clips + 5 * world.size + 3, dtype=torch.float64)
    of_clips, of_ranks = (
        reported[: 5 * num_clips].view(num_clips, 5),
        reported[5 * num_clips : -3].view(-1, 5),
    )
    reported[-3:] = torch.tensor([stop, save_failed, num_events], dtype=torch.float64)
    done: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []
    adamw.drop_gradients(state.masters)
    context.layout.begin_step()
    context.pulse.phase("forward_backward")
    stopwatch, routed = Stopwatch(world), routing_now(state, stage)
    for batch in sorted(batches, key=lambda batch: batch.position):
        with _memory_named(context, batch):
            found = add_gradient(context, stage.stage, batch, state.step, num_clips=num_clips, routed=routed)
        first = plan.slots[batch.position]
        rows = torch.tensor(data_stages.rows_delivered(stage, plan, first, batch.clip_ids)) + 1
        done.append((first, rows, found.losses, found.timesteps, found.text_tokens))
        stopwatch.mark()
    own_norm = (
        context.layout.local_grad_norm() if world.size > 1 else None
    )  # with one rank it equals the norm of the sum
    context.pulse.phase("update")  # from here on the ranks wait for each other
    context.layout.reduce_gradients()
    predicted = step_balance.predict(stage, state.stage_step, world.size)  # computed while the GPU works
    norm = adamw.gradient_norm(state.masters)  # the first call that waits for the GPU
    seconds = stopwatch.seconds()
    for (first, *columns), lasted in zip(done, seconds, strict=True):
        mine = of_clips[first : first + len(columns[0])]
        mine[:, :4] = torch.stack([c.double().cpu() for c in columns], dim=1)
        mine[:, 4] = lasted
    own = [data_seconds, sum(seconds), _own_flops(context, plan, of_clips, routed)]
    norms_here = [norm if own_norm is None else float(own_norm), norm]
    of_ranks[world.rank] = torch.tensor([*norms_here, *own], dtype=torch.float64)
    reported = mesh.sum_over_ranks(reported, world).cpu()
    own_norms, norms, *own_seconds = reported[5 * num_clips : -3].view(-1, 5).T.tolist()
    rows_of_all, losses, timesteps, text_tokens, took = reported[: 5 * num_clips].view(num_clips, 5).T.numpy()
    return Computed(
        plan=plan,
        losses=losses,
        timesteps=timesteps,
        text_tokens=text_tokens,
        seconds=took,
        predicted=predicted,
        delivered=data_stages.delivered(stage, plan, rows_of_all.astype(int) - 1, state.step + 1),
        grad_norm=norms[0],  # rank 0's on all ranks: every rank must decide alike
        rank_norms=tuple(own_norms),
        reported=StepSync(
            stop=bool(reported[-3]),
            save_failed=bool(reported[-2]),
            num_events=int(reported[-1]),
            own=tuple(map(OwnSeconds, *own_seconds)),
        ),
    )


def refuse_nonfinite(computed: Computed, step: int) -> bool:
    """Return True for a finite step; raise Halted otherwise, naming some of its clips."""
    if np.isfinite([*computed.losses, computed.grad_norm]).all():
        return True
    ids = computed.plan.clip_ids
    raise Halted(
        f"step {step}: the loss is {computed.loss} and the gradient's norm {computed.grad_norm}; nothing was "
        f"updated. Its clips: {', '.join(ids[:NAMED_CLIPS])}{', …' * (len(ids) > NAMED_CLIPS)}"
    )


def train_step(
    state: TrainState,
    context: StepContext,
    stage: StageData,
    plan: StepPlan,
    batches: Sequence[Batch],
    *,
    check: Check | None = None,
    stop: bool = False,
    save_failed: bool = False,
    num_events: int = 0,
    data_seconds: float = 0.0,
) -> tuple[dict[str, Any], StepSync]:
    """Make one update; return its metrics and the values reduced over all ranks.

    `check` decides about the gradient before the update; without `check`, a non-finite loss or gradient
    raises Halted. Whatever `check` and `gradient` raise leaves weights and counters unchanged. The last four
    arguments are this rank's contribution to the StepSync.
    """
    flags: dict[str, Any] = {"stop": stop, "save_failed": save_failed, "num_events": num_events}
    flags["data_seconds"] = data_seconds
    computed = gradient(state, context, stage, plan, batches, **flags)
    is_made = check(computed) if check else refuse_nonfinite(computed, state.step + 1)
    return update(state, context, stage, computed, is_made=is_made), computed.reported


def update(
    state: TrainState, context: StepContext, stage: StageData, computed: Computed, *, is_made: bool = True
) -> dict[str, Any]:
    """Update weights, optimizer and EMA from the model's gradient; return the step's metrics.

    With `is_made` False they stay unchanged, but the step counts.
    """
    plan, spec, routed = computed.plan, stage.stage.optim, routing_now(state, stage)
    lr = schedule.learning_rate(spec, state.stage_step, stage.num_steps)
    lr *= state.guard.factor(state.step + 1)
    if is_made:
        clip_factor = adamw.clip_factor(computed.grad_norm, spec.grad_clip)
        decay = context.recipe.ema_decay
        adamw.update(state.masters, spec, lr=lr, ema_decay=decay, clip_factor=clip_factor)
        state.ema_updates += 1
        if state.power_averages:
            state.power_averages.update(state.masters.learns, state.ema_updates)
    else:
        adamw.drop_gradients(state.masters)

    state.step, state.stage_step, state.lr = state.step + 1, state.stage_step + 1, lr
    state.clips_hash = order.rolling_hash(state.clips_hash, plan.clip_ids)
    state.delivered_hash = order.rolling_hash(state.delivered_hash, computed.delivered)
    losses = computed.losses
    return {
        "step": state.step,
        "stage": stage.stage.name,
        "stage_step": state.stage_step,
        "loss": computed.loss,
        "loss_by_bucket": metrics.mean_by(losses, plan.buckets),
        "loss_by_level": metrics.mean_by(losses, plan.levels),
        "loss_by_source": metrics.mean_by(losses, plan.sources),
        "loss_by_timestep": metrics.mean_by(losses, metrics.timestep_bins(computed.timesteps)),
        "grad_norm": computed.grad_norm,
        "lr": lr,
        "clips": len(plan.clip_ids),
        "tokens": plan.num_tokens,
        "model_flops": flops.flops_per_step(
            context.recipe.model, plan.latent_shapes, computed.text_tokens.astype(int).tolist(), routed
        ),
        "clips_hash": state.clips_hash,
        "delivered_hash": state.delivered_hash,
        **step_balance.step_metrics(computed.predicted, plan, computed.seconds, computed.reported.own),
        **(
            {"rank_seconds": throughput.rank_seconds(computed.reported.own)} if context.world.size > 1 else {}
        ),
        **({} if is_made else {"skipped": True}),
    }


def _own_flops(context: StepContext, plan: StepPlan, of_clips: Tensor, routed: RoutingSpec | None) -> float:
    """Return the FLOPs of this rank's clips: those whose row has a non-zero first entry."""
    mine = [number for number, row in enumerate(of_clips[:, 0].tolist()) if row]
    tokens = of_clips[:, 3].tolist()
    shapes = [plan.latent_shapes[number] for number in mine]
    read = [int(tokens[number]) for number in mine]
    return float(flops.flops_per_step(context.recipe.model, shapes, read, routed))
