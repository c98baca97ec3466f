"""Micro-batch of a training step: its gradient in chunks, its clips' losses.

Everything random (noise, timestep, frame mask, dropped caption) is drawn for (seed, step, clip), so the
result does not depend on which rank or process computes a clip.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.data import model_inputs
from trainer.data.latents import request as latents_request
from trainer.data.model_inputs import Batch, Encoders
from trainer.distributed.mesh import World
from trainer.distributed.parallelize import Layout
from trainer.health.watch.heartbeat import SILENT, Pulse
from trainer.model import frame_masks, rectified_flow, rng, routing, tensors
from trainer.model.encoders.caption_projection import CaptionProjection
from trainer.model.encoders.registry import TextEncoder, VideoEncoder
from trainer.model.routing import RoutingSpec
from trainer.model.stdit import lengths_read
from trainer.recipe.recipe import Stage, TrainRecipe
from vidcurate.errors import DeviceMemoryError, counted


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
def memory_named(context: StepContext, batch: Batch) -> Iterator[None]:
    """Raise DeviceMemoryError, with what helps, where the GPU's memory does not hold the micro-batch."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        bucket, clips = batch.bucket, counted(len(batch.clip_ids), "clip")
        raise DeviceMemoryError(
            f"rank {context.world.rank}: the memory of {context.world.device} does not hold a micro-batch of "
            f"{bucket.name}, {clips} ({context.layout.recompute.plan}): {str(error).splitlines()[0]} Set "
            "parallel.recompute_blocks=fit, or put fewer clips into a micro-batch of this bucket."
        ) from error
