"""One update: from this rank's micro-batches to the new weights, and the figures of it.

All that is random (noise, timestep, frame mask, dropped caption) is drawn for (seed, step, clip), so it does
not matter which rank or process does it. The loss of the step is the mean over all its clips on all ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer import data, encoded, flops, flow, inputs, masks, mesh, metrics, noise, optim
from trainer.data import StageData, StepPlan
from trainer.encode import TextEncoder, VideoEncoder
from trainer.encode.projection import CaptionProjection
from trainer.inputs import Batch, Encoders
from trainer.mesh import World
from trainer.parallel import Layout
from trainer.recipe import Stage, TrainRecipe
from trainer.resume import TrainState
from vidcurate.errors import VidcurateError

NAMED_CLIPS = 8  # in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a step uses and does not change."""

    recipe: TrainRecipe
    world: World
    layout: Layout
    video: VideoEncoder
    text: TextEncoder
    projection: CaptionProjection | None = None  # of a model with skip_y_embedder

    @property
    def encoders(self) -> Encoders:
        """What makes a clip's latent and features, as the recipe wants them."""
        return Encoders(
            video=self.video,
            text=self.text,
            kept=self.recipe.encoded,
            samples=encoded.samples_posterior(self.recipe),
            projection=self.projection,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipLosses:
    """The loss of each clip of a micro-batch, float32 [B], with its graph, and what it belongs to.

    `timesteps` are [B] in [0, 1000], `text_tokens` [B] the real tokens of the captions.
    """

    losses: Tensor
    timesteps: Tensor
    text_tokens: Tensor


def clip_losses(model: nn.Module, tools: Tools, stage: Stage, batch: Batch, step: int) -> ClipLosses:
    """Return the losses of a micro-batch, of frames or of latents, in update number `step` (from 0)."""
    seed, ids, device = tools.recipe.seed, batch.clip_ids, tools.world.device
    given = inputs.of(batch, tools.encoders, seed=seed, step=step, device=device)
    latents = given.latents
    count, _, frames = latents.shape[:3]
    sizes = (batch.bucket.height, batch.bucket.width, batch.bucket.num_frames)
    height, width, num_frames = (torch.full((count,), float(size)) for size in sizes)

    noises = noise.normal(seed, "noise", step, ids, tuple(latents.shape[1:]))
    is_normal = stage.flow.timesteps == "logit-normal"
    draws = noise.scalars(seed, "timestep", step, ids, "normal" if is_normal else "uniform")
    ratio = flow.shift_ratio(height, width, num_frames, scale=stage.flow.shift_scale)
    timesteps = flow.training_timesteps(stage.flow, draws, ratio)
    x_mask = None
    if any(ratio for name, ratio in stage.mask_ratios.items() if name != "identity"):
        x_mask, _ = masks.draw_masks(stage.mask_ratios, frames, seed=seed, step=step, clip_ids=ids)
        x_mask = x_mask.to(device)
    dropped = None
    if stage.caption_dropout:
        dropped = noise.caption_drops(seed, step, ids, stage.caption_dropout).to(device)

    tools.layout.make_room(latents, given.y)
    losses = flow.training_losses(
        model,
        latents,
        noises.to(device),
        timesteps.to(device),
        x_mask=x_mask,
        y=given.y,
        mask=given.mask,
        fps=torch.from_numpy(batch.fps).to(device),
        height=height.to(device),
        width=width.to(device),
        drop_caption=dropped,
    )
    return ClipLosses(losses=losses, timesteps=timesteps, text_tokens=given.mask.sum(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the ranks told each other in a step.

    `stop`: one of them has to stop. `save_failed`: one of them could not write a checkpoint in the
    background. `num_events`: what their loaders have to tell.
    """

    stop: bool
    save_failed: bool
    num_events: int


def train_step(
    state: TrainState,
    tools: Tools,
    stage: StageData,
    plan: StepPlan,
    batches: Sequence[Batch],
    *,
    stop: bool = False,
    save_failed: bool = False,
    num_events: int = 0,
) -> tuple[dict[str, Any], Told]:
    """Make one update; return its figures, and what the last three arguments are over all ranks.

    `batches` are this rank's; the gradient is that of the mean loss over all `plan.clip_ids`. Raises
    VidcurateError, before anything is changed, when the loss or the gradient is not finite, or a clip of the
    step came to no rank.
    """
    model, world = state.model, tools.world
    num_clips = len(plan.clip_ids)
    # Each rank fills in its clips and the sum puts them together, exactly: the rest are zeros.
    told = torch.zeros(4 * num_clips + 3, dtype=torch.float64)
    of_clips = told[:-3].view(num_clips, 4)
    told[-3:] = torch.tensor([stop, save_failed, num_events], dtype=torch.float64)
    done: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []
    model.zero_grad(set_to_none=True)
    tools.layout.open()
    for batch in sorted(batches, key=lambda batch: batch.position):
        found = clip_losses(tools.layout.compute, tools, stage.stage, batch, state.step)
        (found.losses.sum() / num_clips).backward()  # type: ignore[no-untyped-call]
        first = plan.slots[batch.position]
        rows = torch.tensor(data.rows_delivered(stage, plan, first, batch.clip_ids)) + 1
        done.append((first, rows, found.losses.detach(), found.timesteps, found.text_tokens))
    tools.layout.close()
    for first, *columns in done:  # only now, as reading a value waits for the device
        of_clips[first : first + len(columns[0])] = torch.stack([c.double().cpu() for c in columns], dim=1)
    told = mesh.sum_over_ranks(told, world).cpu()
    rows_of_all, losses_of_all, timesteps, text_tokens = told[:-3].view(num_clips, 4).T.numpy()
    delivered = data.delivered(stage, plan, rows_of_all.astype(int) - 1, state.step + 1)

    lr = optim.learning_rate(stage.stage.optim, state.stage_step, stage.num_steps)
    grad_norm = optim.clip_gradients(model, stage.stage.optim.grad_clip)
    loss = metrics.mean(losses_of_all)
    if not math.isfinite(loss) or not math.isfinite(grad_norm):
        raise VidcurateError(
            f"step {state.step + 1}: the loss is {loss} and the gradient's norm {grad_norm}; nothing was "
            f"updated. Its clips: {', '.join(plan.clip_ids[:NAMED_CLIPS])}{', …' * (num_clips > NAMED_CLIPS)}"
        )
    optim.update(state.optimizer, model, stage.stage.optim, lr)
    optim.update_ema(state.ema, model, tools.recipe.ema_decay)

    state.step, state.stage_step, state.ema_updates = (
        state.step + 1,
        state.stage_step + 1,
        state.ema_updates + 1,
    )
    state.lr = lr
    state.clips_hash = data.rolling_hash(state.clips_hash, plan.clip_ids)
    state.delivered_hash = data.rolling_hash(state.delivered_hash, delivered)
    return {
        "step": state.step,
        "stage": stage.stage.name,
        "stage_step": state.stage_step,
        "loss": loss,
        "loss_by_bucket": metrics.mean_by(losses_of_all, plan.buckets),
        "loss_by_level": metrics.mean_by(losses_of_all, plan.levels),
        "loss_by_source": metrics.mean_by(losses_of_all, plan.sources),
        "loss_by_timestep": metrics.mean_by(losses_of_all, metrics.timestep_bins(timesteps)),
        "grad_norm": grad_norm,
        "lr": lr,
        "clips": num_clips,
        "tokens": plan.num_tokens,
        "model_flops": flops.flops_per_step(
            tools.recipe.model, plan.latent_shapes, text_tokens.astype(int).tolist()
        ),
        "clips_hash": state.clips_hash,
        "delivered_hash": state.delivered_hash,
    }, Told(stop=bool(told[-3]), save_failed=bool(told[-2]), num_events=int(told[-1]))
