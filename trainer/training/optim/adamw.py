"""AdamW update, learning-rate schedules and gradient clipping.

A learning rate is a pure function of the recipe and the step, so there is no schedule state to save or to
restart. The optimizer's moments exist from the start (zeros), so that every checkpoint holds the same keys.
This file knows no files. If the parameters are sharded, so are the moments and the EMA, and each rank updates
its shards. On a GPU with Triton one kernel makes the whole update.
"""

import importlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from trainer.distributed import mesh
from trainer.model.kernels import requirements
from trainer.training.optim.ema import make_ema
from vidcurate.recipe.recipe import Recipe

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class OptimSpec(Recipe):
    """How one stage changes the weights. Steps are counted from the stage's beginning.

    `schedule` is `constant` (after the warm-up), `cosine` (down to `min_lr` at the stage's end) or `bump`
    (from `min_lr` up to `max_lr` at `warmup_steps`, down to `lr` over `cooldown_steps`, then constant).
    """

    lr: Positive = 1e-4
    """learning rate after the warm-up"""
    schedule: Literal["constant", "cosine", "bump"] = "constant"
    """constant, cosine, or bump (up to max_lr, down to lr, then constant)"""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """steps of the warm-up"""
    cooldown_steps: Annotated[int, Field(ge=0)] = 0
    """steps from max_lr down to lr, with bump"""
    min_lr: NotNegative = 0.0
    """where bump begins and cosine ends"""
    max_lr: Positive | None = None
    """top of bump"""
    weight_decay: NotNegative = 0.0
    """decay of every trained tensor, as published"""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """AdamW's two decays"""
    eps: Positive = 1e-8
    """AdamW's epsilon"""
    grad_clip: Positive | None = 1.0
    """largest norm of the gradient; null: no limit"""

    @model_validator(mode="after")
    def _words_fit_the_schedule(self) -> Self:
        if self.schedule == "bump":
            if self.max_lr is None or self.warmup_steps < 1 or self.cooldown_steps < 1:
                raise ValueError(
                    "the schedule bump needs max_lr, and warmup_steps and cooldown_steps of at least 1"
                )
            if not self.min_lr <= self.lr <= self.max_lr:
                raise ValueError(
                    "the schedule bump needs min_lr <= lr <= max_lr; "
                    f"they are {self.min_lr:g}, {self.lr:g}, {self.max_lr:g}"
                )
            return self
        if self.max_lr is not None or self.cooldown_steps:
            raise ValueError(f"max_lr and cooldown_steps belong to the schedule bump, not to {self.schedule}")
        if self.min_lr and self.schedule == "constant":
            raise ValueError("min_lr belongs to the schedules cosine and bump, not to constant")
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr is {self.min_lr:g}; it must not be above lr, {self.lr:g}")
        return self


def _ease(start: float, end: float, part: float) -> float:
    """Return the half cosine from `start` (part 0) to `end` (part 1)."""
    return start + (end - start) * (1 - math.cos(math.pi * part)) / 2


def learning_rate(spec: OptimSpec, step: int, num_steps: int) -> float:
    """Return the learning rate of update number `step` (from 0) of a stage of `num_steps` updates.

    The linear warm-up is lr·(step+1)/(warmup_steps+1), as in Open-Sora 1.2, so the first update is not lost.
    `bump` is the published 1-cycle of the 28k-hour run (min_lr at 0, max_lr at warmup_steps).
    """
    if spec.schedule == "bump":
        assert spec.max_lr is not None
        if step < spec.warmup_steps:
            return _ease(spec.min_lr, spec.max_lr, step / spec.warmup_steps)
        part = min(1.0, (step - spec.warmup_steps) / spec.cooldown_steps)
        return _ease(spec.max_lr, spec.lr, part)
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / (spec.warmup_steps + 1)
    if spec.schedule == "cosine":
        part = (step - spec.warmup_steps) / max(1, num_steps - spec.warmup_steps)
        return _ease(spec.lr, spec.min_lr, min(1.0, part))
    return spec.lr


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters, by name, in the model's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def make_optimizer(model: nn.Module, *, counts_once: bool = False) -> torch.optim.AdamW:
    """Return AdamW over this rank's shards of `trained(model)`, with zero moments. `update` runs it.

    Weight decay acts on every trained tensor, biases, norms and tables included, as in the published runs;
    they used 0 or 0.01, where leaving some tensors out changes little, and their moments load unchanged.
    AdamW gets plain tensors: on DTensors each of its operations costs microseconds a tensor, a fifth of a
    step at XL/2's 700 of them. `counts_once`: one update count on the host for all tensors, for the kernel.
    """
    pieces = [mesh.local_parameter(parameter) for parameter in trained(model).values()]
    on_gpu = pieces[0].device.type == "cuda"
    optimizer = torch.optim.AdamW(pieces, lr=0.0, fused=on_gpu or None)
    count = torch.zeros(())
    for piece in pieces:
        # torch's fused AdamW keeps its update count on the device.
        own = torch.zeros((), device=piece.device if on_gpu else None)
        optimizer.state[piece] = {
            "step": count if counts_once else own,
            "exp_avg": torch.zeros_like(piece, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(piece, memory_format=torch.preserve_format),
        }
    return optimizer


def _pieces(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the tensors that the optimizer updates, in the order of `trained(model)`."""
    (group,) = optimizer.param_groups
    return list(group["params"])


MOMENTS = ("exp_avg", "exp_avg_sq")


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's tensors as `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, not copied."""
    pairs = list(zip(trained(model).items(), _pieces(optimizer), strict=True))
    return {
        f"{kind}.{name}": mesh.sharded_like(parameter, optimizer.state[piece][kind])
        for kind in MOMENTS
        for (name, parameter), piece in pairs
    }


def update_count(optimizer: torch.optim.Optimizer) -> int:
    """Return the optimizer's update count, which all tensors share."""
    steps = torch.stack([state["step"] for state in optimizer.state.values()])
    counts = {int(count) for count in steps.tolist()}  # one device-to-host copy
    assert len(counts) == 1, f"the parameters have different update counts: {sorted(counts)}"
    return counts.pop()


def set_update_count(optimizer: torch.optim.Optimizer, count: int) -> None:
    for state in optimizer.state.values():
        state["step"].fill_(count)


@torch.no_grad()
def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm over all tensors together, as a float64 scalar on their device.

    A sharded tensor counts as a whole; its ranks must call this together.
    """
    tensors = list(tensors)
    return _norm([mesh.local_shard(tensor).detach() for tensor in tensors], mesh.shard_locations(tensors))


def _norm(pieces: list[Tensor], cuts: Sequence[mesh.ShardLocation]) -> Tensor:
    squares = torch.stack(torch._foreach_norm(pieces)).double().square()
    return mesh.sum_over_shards(squares, cuts).sum().sqrt()


# ── the update ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Masters:
    """The tensors that an update reads and writes, listed once: a walk through XL/2's modules takes 1 ms.

    `learns` are the trained parameters, by name, `cuts` their shard locations, `pieces` this rank's shards,
    which the optimizer updates, `averages` their EMA in `ema`. `copied` pairs the EMA entries of untrained
    tensors with their sources. `kernel` and its `table`: None where torch updates. Every tensor stays where
    it is: whoever loads, swaps or resets values copies into it.
    """

    learns: dict[str, nn.Parameter]
    cuts: tuple[mesh.ShardLocation, ...]
    optimizer: torch.optim.AdamW
    ema: dict[str, Tensor]
    pieces: tuple[Tensor, ...]
    averages: tuple[Tensor, ...]
    copied: tuple[tuple[Tensor, Tensor], ...]
    kernel: Any | None  # trainer.model.kernels.adamw
    table: Any | None


def masters(model: nn.Module, *, in_one_pass: bool | None = None) -> Masters:
    """Return the masters of a (sharded) model, with fresh moments and EMA.

    `in_one_pass`: the kernel updates; None: on a GPU with what Triton needs.
    """
    learns = trained(model)
    if in_one_pass is None:
        on_gpu = next(iter(learns.values())).device.type == "cuda"
        in_one_pass = on_gpu and not requirements.missing(on_gpu=True)
    optimizer, ema = make_optimizer(model, counts_once=in_one_pass), make_ema(model)
    pieces = _pieces(optimizer)
    averages = [mesh.local_shard(ema[name]) for name in learns]
    everything = itertools.chain(model.named_parameters(), model.named_buffers())
    copied = [
        (mesh.local_shard(ema[name]), mesh.local_shard(value.detach()))
        for name, value in everything
        if name in ema and name not in learns  # some buffers are not part of the state
    ]
    kernel = table = None
    if in_one_pass:
        # Imported here, as only machines with a GPU have Triton.
        kernel = importlib.import_module("trainer.model.kernels.adamw")
        firsts, seconds = ([optimizer.state[piece][kind] for piece in pieces] for kind in MOMENTS)
        table = kernel.table(pieces, firsts, seconds, averages)
    return Masters(
        learns=learns,
        cuts=tuple(mesh.shard_locations(learns.values())),
        optimizer=optimizer,
        ema=ema,
        pieces=tuple(pieces),
        averages=tuple(averages),
        copied=tuple(copied),
        kernel=kernel,
        table=table,
    )


def drop_gradients(masters: Masters) -> None:
    """Set every gradient to None."""
    for parameter in masters.learns.values():
        parameter.grad = None


@torch.no_grad()
def gradient_norm(masters: Masters) -> float:
    """Return the norm of all gradients together; ranks that share the weights call it together."""
    held = [
        (mesh.local_shard(parameter.grad), cut)
        for parameter, cut in zip(masters.learns.values(), masters.cuts, strict=True)
        if parameter.grad is not None
    ]
    return float(_norm([gradient for gradient, _ in held], [cut for _, cut in held]))


def clip_factor(norm: float, limit: float | None) -> float:
    """Return the factor that reduces a gradient of such a norm to at most `limit`."""
    return limit / norm if limit is not None and norm > limit else 1.0


@torch.no_grad()
def update(
    masters: Masters, spec: OptimSpec, *, lr: float, ema_decay: float, clip_factor: float = 1.0
) -> None:
    """Update weights, moments and EMA with `lr` and `spec`'s values, then set the gradients to None.

    Gradients are multiplied by `clip_factor`. EMA = decay·EMA + (1 − decay)·weight; untrained tensors
    (buffers, frozen parameters) are copied.
    """
    gradients = [
        None if (gradient := parameter.grad) is None else mesh.local_shard(gradient)
        for parameter in masters.learns.values()
    ]
    if masters.kernel is None:
        _update_by_torch(masters, gradients, spec, lr, clip_factor)
        torch._foreach_lerp_(masters.averages, masters.pieces, 1 - ema_decay)
    else:
        count = masters.optimizer.state[masters.pieces[0]]["step"].add_(1)  # of all tensors
        masters.kernel.update(
            masters.table,
            gradients,
            count=int(count),
            scale=clip_factor,
            lr=lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            ema_decay=ema_decay,
        )
    for average, value in masters.copied:
        average.copy_(value)
    drop_gradients(masters)


def _update_by_torch(
    masters: Masters, gradients: Sequence[Tensor | None], spec: OptimSpec, lr: float, clip_factor: float
) -> None:
    if clip_factor != 1:
        torch._foreach_mul_([gradient for gradient in gradients if gradient is not None], clip_factor)
    (group,) = masters.optimizer.param_groups
    group.update(lr=lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
    for piece, gradient in zip(masters.pieces, gradients, strict=True):
        piece.grad = gradient
    masters.optimizer.step()
    for piece in masters.pieces:
        piece.grad = None
