"""Rectified flow: convention, loss and sampler, as pure functions of given noise.

The convention, stated here once:

    t in [0, 1000], tau = t / 1000;  tau = 0 is data, tau = 1 is noise
    x_t = (1 - tau) * data + tau * noise
    the model predicts v = data - noise
    sampling goes from tau = 1 down:  x <- x + v * (tau_now - tau_next)

Frames where `x_mask` is False are given: they stay clean data, have timestep 0, and carry no loss.
Shapes: B samples (n prompts when sampling), latents [B, C, T, H, W], timesteps [B], frame masks [B, T].
Formulas and their published tables: Open-Sora 1.2's scheduler; docs/model.md lists where this differs.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from vidcurate.recipe.recipe import Recipe

TIMESTEPS = 1000.0
BASE_AREA = 512 * 512

Model = Callable[..., Tensor]
"""`STDiT3.forward`, or anything with its signature."""

Velocity = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x [n, C, T, H, W], t [n], x_mask [n, T] or None) -> v [n, C, T, H, W]."""


class FlowSpec(Recipe):
    """How size and length of a clip shift the timesteps, in training and in sampling.

    The default is that of all published stages, as is the distribution before the shift: a logit-normal of
    mean 0 and deviation 1.
    """

    shift_scale: Annotated[float, Field(gt=0)] | None = 1.0
    """factor of the shift of timesteps towards noise with resolution and length; null: no shift"""


def draw_timesteps(draws: Tensor) -> Tensor:
    """Return float32 timesteps in [0, 1000], logit-normal for standard normal `draws` [B]."""
    return torch.sigmoid(draws.float()) * TIMESTEPS


def effective_frames(num_frames: Tensor) -> Tensor:
    """Return the latent frames that the shift counts, [B], for `num_frames` in pixels.

    An image counts 1; 17 frames and more count 5 for each whole 17, as published. The published rule gives 0
    for 2 to 16 frames, and with it timestep 0 or NaN: here they count ceil(n / 4), the latent's true length.
    """
    frames = num_frames.float()
    return torch.where(frames < 17, torch.ceil(frames / 4), torch.floor(frames / 17) * 5)


def shift_ratio(
    height: Tensor,
    width: Tensor,
    num_frames: Tensor,
    *,
    scale: float | None = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return by how much the schedule leans to noise, [B]; sizes and frames are the video's, in pixels.

    sqrt(height * width / 512²) * sqrt(effective frames) * scale. Each sample has its own ratio, where the
    original asks only the batch's first sample whether it is an image; batches of one shape see no
    difference. `scale` None: 1, which shifts nothing. `dtype=torch.bfloat16` evaluates it as the published
    runs did.
    """
    if scale is None:
        return torch.ones_like(height, dtype=dtype)
    area = height.to(dtype) * width.to(dtype)
    space = (area / BASE_AREA).sqrt()
    time = effective_frames(num_frames.to(dtype)).to(dtype).sqrt()
    return space * time * scale


def shift_timesteps(timesteps: Tensor, ratio: Tensor) -> Tensor:
    """Return 1000 * r tau / (1 + (r - 1) tau) for `timesteps` [..., B] and `ratio` r [B]; 0 and 1000 stay."""
    tau = timesteps / TIMESTEPS
    return TIMESTEPS * (ratio * tau / (1 + (ratio - 1) * tau))


def add_noise(data: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
    """Return x_t; `timesteps` is [B], or [B, T] where frames differ. Computed in float32."""
    tau = timesteps.float() / TIMESTEPS
    tau = tau.reshape(tau.shape[0], 1, -1, 1, 1)
    return (1 - tau) * data.float() + tau * noise.float()


def noised_input(data: Tensor, noise: Tensor, timesteps: Tensor, x_mask: Tensor | None = None) -> Tensor:
    """Return what the model sees in training, float32: x_t, but clean data in frames that are given."""
    x_t = add_noise(data, noise, timesteps)
    return x_t if x_mask is None else torch.where(x_mask[:, None, :, None, None], x_t, data.float())


def velocity_loss(output: Tensor, data: Tensor, noise: Tensor, x_mask: Tensor | None = None) -> Tensor:
    """Return each sample's loss, float32 [B]: mean squared error of the velocity over generated frames.

    `output` [B, >= C, T, H, W]: its first C channels are the velocity, the rest (sigma) is not trained. A
    sample whose frames are all given has loss 0.
    """
    error = (output[:, : data.shape[1]].float() - (data.float() - noise.float())).square()
    per_frame = error.mean(dim=(1, 3, 4))
    if x_mask is None:
        return per_frame.mean(dim=1)
    weight = x_mask.float()
    return (per_frame * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def training_losses(
    model: Model,
    data: Tensor,
    noise: Tensor,
    timesteps: Tensor,
    *,
    x_mask: Tensor | None = None,
    **conditions: Tensor | tuple[int, ...] | None,
) -> Tensor:
    """Return each sample's loss, float32 [B]; the training loss is their mean.

    `conditions` (y, mask, fps, height, width, drop_caption, text_lengths) go to the model as they are.
    """
    x_t = noised_input(data, noise, timesteps, x_mask)
    output = model(x_t, timesteps, x_mask=x_mask, **conditions)
    return velocity_loss(output, data, noise, x_mask)


def sampling_timesteps(num_steps: int, ratio: Tensor) -> Tensor:
    """Return the float32 timesteps [num_steps, n] of a sampling run: from 1000 down, shifted by `ratio` [n].

    A ratio of 1 shifts nothing.
    """
    grid = [(1 - step / num_steps) * TIMESTEPS for step in range(num_steps)]
    even = torch.tensor(grid, dtype=torch.float32, device=ratio.device)
    return shift_timesteps(even[:, None].expand(-1, ratio.shape[0]), ratio)


def guided(
    model: Model,
    y: Tensor,
    mask: Tensor | None,
    y_null: Tensor,
    *,
    scale: float,
    cut_null_caption: bool = False,
    conditions: Mapping[str, Tensor],
) -> Velocity:
    """Return the velocity with guidance: v_null + scale * (v_caption - v_null), constant over the run.

    y       [n, 1, L, C] captions and mask [n, L] of their tokens (None: all L).
    y_null  [1, 1, L', C] the null caption, L' >= L (`model.y_embedder.y_embedding[None, None]`). It is read
            whole; `cut_null_caption` reads only as many of its tokens as the prompt has, as published.
    conditions   fps, height, width, each [n].

    Both halves run in one call, captions first; scale 1 runs the captions alone.
    """
    count, length = y.shape[0], y.shape[2]
    if scale != 1.0:
        room = y_null.shape[2] - length
        if cut_null_caption:
            mask = None if mask is None else torch.cat([mask, mask])
            y_null = y_null[:, :, :length]
        elif mask is not None or room:
            mask = torch.ones(count, length, device=y.device) if mask is None else mask
            mask = F.pad(mask.bool(), (0, room))
            mask = torch.cat([mask, torch.ones_like(mask)])
            y = F.pad(y, (0, 0, 0, room))
        y = torch.cat([y, y_null.to(y.dtype).expand(count, -1, -1, -1)])

    def velocity(x: Tensor, timesteps: Tensor, x_mask: Tensor | None) -> Tensor:
        if scale == 1.0:
            return model(x, timesteps, y, mask=mask, x_mask=x_mask, **conditions)[:, : x.shape[1]]
        both = None if x_mask is None else torch.cat([x_mask, x_mask])
        twice = torch.cat([x, x]), torch.cat([timesteps, timesteps])
        output = model(*twice, y, mask=mask, x_mask=both, **conditions)[:, : x.shape[1]]
        caption, null = output.chunk(2)
        return null + scale * (caption - null)

    return velocity


def sample(
    velocity: Velocity,
    x: Tensor,
    timesteps: Tensor,
    *,
    edit: Tensor | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Return the latent [n, C, T, H, W], float32, at the end of Euler's method along `timesteps` [N, n].

    Without `edit`, `x` is noise. With `edit` [n, T] in [0, 1], `x` holds noise in frames of 1 (generate) and
    reference latents elsewhere: 0 keeps the frame; a ratio between keeps it until t falls to 1000 * ratio,
    noises it to that level with `noise` (of the shape of `x`) and generates from there. The velocity then
    gets an x_mask, False for frames that still stand.

    Raises ValueError where a ratio between 0 and 1 comes without `noise`.
    """
    x = x.float()
    if edit is not None and noise is None and bool(((edit > 0) & (edit < 1)).any()):
        raise ValueError(
            "edit has ratios between 0 and 1, which need `noise`; give it, or use 0 and 1 alone."
        )
    steps = torch.cat([timesteps, torch.zeros_like(timesteps[:1])])
    was_moving = None if edit is None else edit >= 1
    for now, following in itertools.pairwise(steps):
        size = ((now - following) / TIMESTEPS)[:, None, None, None, None]
        if edit is None or was_moving is None:
            x = x + velocity(x, now, None).float() * size
            continue
        # A shift can round the first timestep to just above 1000: frames to generate move all the same.
        moving = (edit >= 1) | (edit * TIMESTEPS >= now[:, None])
        if noise is not None:
            begins = (moving & ~was_moving)[:, None, :, None, None]
            x = torch.where(begins, add_noise(x, noise, now), x)
        stepped = x + velocity(x, now, moving).float() * size
        x = torch.where(moving[:, None, :, None, None], stepped, x)
        was_moving = moving
    return x
