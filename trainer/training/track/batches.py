"""Batches of a track: order of the clips and draws of a step, made by threads.

Each is a function of (seed, step, clip), as in the trainer's own step, so that arms of one seed read the same
clips with the same noise.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trainer.model import rectified_flow, rng, routing
from trainer.training.track.clips import clip_id
from trainer.training.track.spec import TrackRecipe

THREADS, AHEAD = 6, 12  # of a step's draws; numpy draws without Python's lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws of a step, on the CPU: clip numbers, noise [B, C, T, H, W], timesteps [B], dropped captions [B].

    `order` [B, S] and `route` are those of a routed step, else None.
    """

    numbers: tuple[int, ...]
    noise: Tensor
    timesteps: Tensor
    drops: Tensor
    order: Tensor | None
    route: routing.Route | None


def epoch(seed: int, number: int, count: int) -> list[int]:
    """Return the order of `count` clips in pass `number`."""
    drawn = rng.generator(seed, "track", number).random(count)
    return [int(place) for place in np.argsort(drawn, kind="stable")]


def numbers_of_steps(seed: int, count: int, batch: int) -> Iterator[tuple[int, ...]]:
    """Yield the clips of each step: epochs of all clips, each in an order of its own."""
    waiting: deque[int] = deque()
    epochs = 0
    while True:
        while len(waiting) < batch:
            waiting.extend(epoch(seed, epochs, count))
            epochs += 1
        yield tuple(waiting.popleft() for _ in range(batch))


def draw(recipe: TrackRecipe, shape: tuple[int, ...], step: int, numbers: tuple[int, ...]) -> Draws:
    """Return the draws of update number `step` (from 0) for latents of `shape` [C, T, H, W]."""
    ids = [clip_id(number) for number in numbers]
    seed, clips = recipe.seed, recipe.clips
    size = (torch.full((len(ids),), float(value)) for value in (clips.height, clips.width, clips.frames))
    draws = rng.scalars(seed, "timestep", step, ids, "normal")
    ratio = rectified_flow.shift_ratio(*size, scale=recipe.flow.shift_scale)
    patch = recipe.model.patch_size
    places = -(-shape[2] // patch[1]) * -(-shape[3] // patch[2])
    route = routing.route(routing.at_step(recipe.routing, step, recipe.steps), places)
    order = None
    if route is not None:
        order = routing.draw_order(places, route[0], seed=seed, step=step, clip_ids=ids)
    return Draws(
        numbers=numbers,
        noise=rng.normal(seed, "noise", step, ids, shape),
        timesteps=rectified_flow.shift_timesteps(rectified_flow.draw_timesteps(draws), ratio),
        drops=rng.caption_drops(seed, step, ids, recipe.caption_dropout),
        order=order,
        route=route,
    )


def steps(recipe: TrackRecipe, shape: tuple[int, ...], *, pin: bool) -> Iterator[Draws]:
    """Yield the draws of all steps in turn; threads make them ahead, in page-locked memory with `pin`."""

    def make(step: int, chosen: tuple[int, ...]) -> Draws:
        drawn = draw(recipe, shape, step, chosen)
        return replace(drawn, noise=drawn.noise.pin_memory()) if pin else drawn

    numbers = numbers_of_steps(recipe.seed, recipe.clips.count, recipe.batch)
    waiting: deque[Future[Draws]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for step in range(recipe.steps + AHEAD):
            if step < recipe.steps:
                waiting.append(pool.submit(make, step, next(numbers)))
            if step >= AHEAD:
                yield waiting.popleft().result()
