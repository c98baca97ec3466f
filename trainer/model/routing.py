"""Token routing: tubes skip the middle blocks (TREAD, arXiv 2501.04765).

A tube is one place of a frame through all frames. Of each clip a drawn share of the tubes leaves before the
first routed pair and comes back, unchanged, behind the last one, so that the blocks between compute fewer
tokens. The tokens stay rectangular, [B, T, kept, D], for blocks over space and over time, and no weight is
added: a model trained so computes dense at sampling and validation. The last steps of a stage are dense too.
"""

from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from trainer.model import rng, tensors
from vidcurate.recipe.recipe import Recipe

Route = tuple[int, int, int]
"""Kept tubes of a clip, first and last routed pair."""


class RoutingSpec(Recipe):
    """Which share of the tubes skips which pairs of blocks, and for how long.

    Pairs are counted from 0, as in the names of the weights (`spatial_blocks.0`).
    """

    share: float = Field(default=0.5, gt=0, lt=1)
    """share of a clip's spatial tubes that skip the pairs, drawn for (seed, step, clip)"""
    pairs: tuple[int, int]
    """first and last pair of blocks that these tubes skip, counted from 0"""
    dense_finish: float = Field(default=0.15, ge=0, lt=1)
    """last share of the stage's steps in which no tube skips anything; longer than the average's window"""

    @model_validator(mode="after")
    def _goes_forward(self) -> Self:
        first, last = self.pairs
        if not 0 <= first <= last:
            raise ValueError(f"pairs is [{first}, {last}]; give [first, last] with 0 <= first <= last")
        return self


def at_step(spec: RoutingSpec | None, step: int, num_steps: int) -> RoutingSpec | None:
    """Return `spec` if update number `step` (from 0) of a stage of `num_steps` routes, else None."""
    return spec if spec and step < num_steps * (1 - spec.dense_finish) else None


def route(spec: RoutingSpec | None, places: int) -> Route | None:
    """Return the route of clips of `places` tubes; None if all of them are kept."""
    if spec is None:
        return None
    kept = max(1, places - int(spec.share * places))
    return (kept, *spec.pairs) if kept < places else None


def draw_order(places: int, kept: int, *, seed: int, step: int, clip_ids: Sequence[str]) -> Tensor:
    """Return int64 [B, places]: each clip's kept tubes in order, then those that skip, in order.

    A function of (seed, step, clip) alone: the ranks of random numbers, so that no library's shuffle matters.
    """
    rows = np.empty((len(clip_ids), places), dtype=np.int64)
    for row, clip_id in zip(rows, clip_ids, strict=True):
        drawn = np.argsort(rng.generator(seed, "route", step, clip_id).random(places), kind="stable")
        row[:kept], row[kept:] = np.sort(drawn[:kept]), np.sort(drawn[kept:])
    return torch.from_numpy(rows)


def conditions(
    spec: RoutingSpec | None,
    latents: Tensor,
    patch: tuple[int, int, int],
    *,
    seed: int,
    step: int,
    clip_ids: Sequence[str],
) -> dict[str, Any]:
    """Return the keywords that route latents [B, C, T, H, W] through `STDiT3.forward`; none if all are kept.

    `patch`: frames, rows and columns of a token.
    """
    places = -(-latents.shape[3] // patch[1]) * -(-latents.shape[4] // patch[2])
    taken = route(spec, places)
    if taken is None:
        return {}
    order = draw_order(places, taken[0], seed=seed, step=step, clip_ids=clip_ids)
    return {"route": taken, "route_order": tensors.send(order, latents.device)}


class _Reorder(torch.autograd.Function):
    """`apply(x, there, back)` returns the rows `there` of x [N, D]; `back` undoes that.

    Its backward pass is the same copy with `back`: deterministic, without atomic additions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradient.index_select(0, back), None, None


class Router:
    """Splits tokens [B, T S, D] before the first routed pair and joins them behind the last one.

    `order` [B, S] is that of `draw_order`, `frames` is T.
    """

    def __init__(self, order: Tensor, route: Route, frames: int) -> None:
        self.kept, self.first, self.last = route
        self.frames = frames
        count, places = order.shape
        starts = torch.arange(count * frames, device=order.device).view(count, frames, 1) * places
        self._there = (starts + order[:, None]).flatten()
        self._back = (starts + order.argsort(1)[:, None]).flatten()
        self._skipping: Tensor | None = None

    def split(self, tokens: Tensor) -> Tensor:
        """Return the kept tokens [B, T kept, D]; the router holds the others until `join`."""
        count, _, width = tokens.shape
        rows = _reordered(tokens.flatten(0, 1), self._there, self._back)
        kept, self._skipping = rows.view(count, self.frames, -1, width).tensor_split([self.kept], dim=2)
        return kept.flatten(1, 2)

    def join(self, tokens: Tensor) -> Tensor:
        """Return all tokens [B, T S, D] in their places, the routed blocks' and those that skipped."""
        skipping, self._skipping = self._skipping, None
        assert skipping is not None, "join without split"
        count, _, width = tokens.shape
        all_of_them = torch.cat([tokens.view(count, self.frames, self.kept, width), skipping], dim=2)
        return _reordered(all_of_them.view(-1, width), self._back, self._there).view(count, -1, width)


def _reordered(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    return cast(Tensor, _Reorder.apply(x, there, back))  # type: ignore[no-untyped-call]
