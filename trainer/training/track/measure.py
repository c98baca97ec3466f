"""Measures of a track: dense validation loss, and the prompts that samples follow.

The loss is measured at ten timesteps. Both read the average of the weights. Noise and clips are those of the
data's seed, the same for every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trainer.model import rectified_flow, rng
from trainer.model.encoders.space_to_depth import SpaceToDepth
from trainer.model.stdit import STDiT3
from trainer.training.track.clips import COLOURS, DIRECTIONS, Object, Scene, clip_id, render
from trainer.training.track.spec import ClipsSpec, TrackRecipe

TIMESTEPS = tuple(float(t) for t in np.linspace(0, rectified_flow.TIMESTEPS, 12)[1:-1])
"""Those of the trainer's validation: 90.9, 181.8 … 909.1."""
FPS = 24.0
AT_ONCE = 32  # clips of a forward pass
CHROMA = 60  # brightest less darkest colour of a pixel that belongs to an object
MOVES, STAYS = 0.08, 0.06  # of the height: least way of one that moves, most of one that is still


def facts(spec: ClipsSpec, count: int, device: torch.device) -> dict[str, Tensor]:
    """Return fps, height and width [count], float32."""
    return {
        name: torch.full((count,), float(value), device=device)
        for name, value in (("fps", FPS), ("height", spec.height), ("width", spec.width))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The validation clips on the device: latents [N, C, T, H, W], noise [10, N, …], text y and its mask."""

    latents: Tensor
    noise: Tensor
    y: Tensor
    mask: Tensor


def hold(recipe: TrackRecipe, latents: Tensor, y: Tensor, mask: Tensor) -> Held:
    """Return the validation clips with their noise."""
    spec = recipe.clips
    ids = [clip_id(spec.count + number) for number in range(spec.validation)]
    noise = torch.stack(
        [
            rng.normal(spec.seed, "validation", number, ids, tuple(latents.shape[1:])).to(latents.device)
            for number in range(len(TIMESTEPS))
        ]
    )
    return Held(latents=latents, noise=noise, y=y, mask=mask)


@torch.no_grad()
def validation_loss(model: nn.Module, held: Held, spec: ClipsSpec) -> float:
    """Return the mean over clips and timesteps of the dense loss."""
    sums = torch.zeros((), dtype=torch.float64, device=held.latents.device)
    for noise, timestep in zip(held.noise, TIMESTEPS, strict=True):
        for first in range(0, len(held.latents), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            latents = held.latents[part]
            found = rectified_flow.training_losses(
                model,
                latents,
                noise[part],
                torch.full((len(latents),), timestep, device=latents.device),
                y=held.y[part],
                mask=held.mask[part],
                **facts(spec, len(latents), latents.device),
            )
            sums += found.double().sum()
    return float(sums) / held.noise.shape[0] / held.noise.shape[1]


@torch.no_grad()
def samples(model: nn.Module, recipe: TrackRecipe, held: Held, null: Tensor, video: SpaceToDepth) -> Tensor:
    """Return uint8 [prompts, 3, T, H, W]: clips of the first validation captions.

    `null`: the null caption's features [L, C].
    """
    target, spec, made = recipe.target, recipe.clips, []
    for first in range(0, min(target.prompts, len(held.latents)), AT_ONCE // 2):
        part = slice(first, min(first + AT_ONCE // 2, target.prompts))
        x, y, mask = held.noise[0, part], held.y[part], held.mask[part]
        size = (
            torch.full((len(x),), float(value), device=x.device)
            for value in (spec.height, spec.width, spec.frames)
        )
        ratio = rectified_flow.shift_ratio(*size, scale=recipe.flow.shift_scale)
        velocity = rectified_flow.guided(
            model, y, mask, null[None, None], scale=target.guidance, conditions=facts(spec, len(x), x.device)
        )
        latents = rectified_flow.sample(
            velocity, x, rectified_flow.sampling_timesteps(target.sample_steps, ratio)
        )
        pixels = (video.decode(latents, num_frames=spec.frames) + 1) * 127.5
        made.append(pixels.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(made)


def null_caption(model: STDiT3) -> Tensor:
    """Return the null caption's features [L, C] of a model."""
    return model.y_embedder.y_embedding


def _places(clip: Tensor) -> dict[str, tuple[float, Tensor]]:
    """Return of each colour: pixels of it in a frame (mean), and its way [x, y] in pixels."""
    wide = clip.float()  # [3, T, H, W]
    is_object = wide.amax(0) - wide.amin(0) > CHROMA
    palette = torch.tensor(list(COLOURS.values()), dtype=torch.float32, device=clip.device)
    nearest = (wide[None] - palette[:, :, None, None, None]).square().sum(1).argmin(0)
    frames, height, width = nearest.shape
    rows = torch.arange(height, device=clip.device).view(1, -1, 1)
    columns = torch.arange(width, device=clip.device).view(1, 1, -1)
    found = {}
    for number, colour in enumerate(COLOURS):
        mask = ((nearest == number) & is_object).float()
        ends = []
        for part in (mask[: frames // 4], mask[-(frames // 4) :]):
            total = part.sum()
            ends.append(torch.stack([(part * columns).sum(), (part * rows).sum()]) / total.clamp(min=1))
        found[colour] = float(mask.sum()) / frames, ends[1] - ends[0]
    return found


def _moves_as(one: Object, way: Tensor, height: int) -> bool:
    right, down = DIRECTIONS[one.direction]
    if not right and not down:
        return bool(way.abs().max() <= STAYS * height)
    along, across = (way[0] * right + way[1] * down), (way[0] * down + way[1] * right)
    return bool(along >= MOVES * height) and bool(across.abs() <= along)


def follows(clip: Tensor, given: Scene, spec: ClipsSpec) -> bool:
    """Return whether a clip [3, T, H, W] shows what the caption of `given` says.

    Every object: its colour, in 0.4 to 2.5 times the pixels that the true clip shows of it, and its
    direction; and no other colour.
    """
    true = _places(render([given], spec, clip.device)[0])
    found = _places(clip)
    for one in given.objects:
        pixels, way = found[one.colour]
        if not 0.4 * true[one.colour][0] <= pixels <= 2.5 * true[one.colour][0]:
            return False
        if not _moves_as(one, way, spec.height):
            return False
    others = COLOURS.keys() - {one.colour for one in given.objects}
    limit = 0.3 * min(true[one.colour][0] for one in given.objects)
    return all(found[colour][0] <= limit for colour in others)


def count_followed(clips: Tensor, scenes: Sequence[Scene], spec: ClipsSpec) -> int:
    """Return how many clips follow their captions."""
    return sum(follows(clip, given, spec) for clip, given in zip(clips, scenes, strict=False))
