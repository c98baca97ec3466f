"""AdamW update and gradient clipping.

The optimizer's moments exist from the start (zeros), so that every checkpoint holds the same keys.
This file knows no files. If the parameters are sharded, so are the moments and the EMA, and each rank updates
its shards. On a GPU with Triton one kernel makes the whole update.
"""

import importlib
import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.distributed import mesh
from trainer.distributed.mesh import ALONE, World
from trainer.model.kernels import requirements
from trainer.training.optim import muon
from trainer.training.optim.ema import make_ema
from trainer.training.optim.muon import Matrices
from trainer.training.optim.schedule import OptimSpec


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters, by name, in the model's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _name(*, with_muon: bool) -> str:
    return "Muon" if with_muon else "AdamW"


def name_of(spec: OptimSpec) -> str:
    """Return the name, as stored in a checkpoint, of the optimizer that a stage with `spec` begins with."""
    return _name(with_muon=spec.muon is not None)


def make_optimizer(
    model: nn.Module, *, counts_once: bool = False, without: Container[str] = ()
) -> torch.optim.AdamW:
    """Return AdamW over this rank's shards of `trained(model)`, with zero moments. `update` runs it.

    Weight decay acts on every trained tensor, biases, norms and tables included, as in the published runs;
    they used 0 or 0.01, where leaving some tensors out changes little, and their moments load unchanged.
    AdamW gets plain tensors: on DTensors each of its operations costs microseconds a tensor, a fifth of a
    step at XL/2's 700 of them. `counts_once`: one update count on the host for all tensors, for the kernel.
    `without`: names of parameters that another optimizer updates.
    """
    learns = [parameter for name, parameter in trained(model).items() if name not in without]
    pieces = [mesh.local_parameter(parameter) for parameter in learns]
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


def moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, without: Container[str] = ()
) -> dict[str, Tensor]:
    """Return the optimizer's tensors as `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`, not copied.

    `without` as in `make_optimizer`.
    """
    learns = [item for item in trained(model).items() if item[0] not in without]
    pairs = list(zip(learns, _pieces(optimizer), strict=True))
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

    `learns` are the trained parameters, by name, `cuts` their shard locations, `pieces` this rank's shards
    of those that AdamW updates, `averages` their EMA in `ema`; `matrices` those that Muon updates. `copied`
    pairs the EMA entries of untrained tensors with their sources. `kernel` and its `table`: None where torch
    updates. Every tensor stays where it is: whoever loads, swaps or resets values copies into it.
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
    matrices: Matrices | None = None

    @property
    def optimizer_name(self) -> str:
        """As stored in a checkpoint, whose moments belong to it."""
        return _name(with_muon=self.matrices is not None)

    def optimizer_tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the moments, and of matrices the momentum as `momentum.<parameter>`, not copied."""
        if self.matrices is None:
            return moments(model, self.optimizer)
        names = self.matrices.names
        return moments(model, self.optimizer, names) | {
            f"momentum.{name}": mesh.sharded_like(self.learns[name], momentum)
            for name, momentum in zip(names, self.matrices.momenta, strict=True)
        }


def masters(
    model: nn.Module,
    *,
    in_one_pass: bool | None = None,
    with_muon: bool = False,
    world: World = ALONE,
) -> Masters:
    """Return the masters of a (sharded) model, with fresh moments and EMA.

    `in_one_pass`: the kernel updates; None: on a GPU with what Triton needs. `with_muon`: Muon updates the
    blocks' matrices, assigned to the ranks of `world`.
    """
    learns = trained(model)
    by_muon = {name: one for name, one in learns.items() if with_muon and muon.is_matrix(name, one)}
    if in_one_pass is None:
        on_gpu = next(iter(learns.values())).device.type == "cuda"
        in_one_pass = on_gpu and not requirements.missing(on_gpu=True)
    optimizer = make_optimizer(model, counts_once=in_one_pass, without=by_muon)
    pieces, ema = _pieces(optimizer), make_ema(model)
    averages = [mesh.local_shard(ema[name]) for name in learns if name not in by_muon]
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
        matrices=muon.matrices(
            by_muon,
            {name: mesh.local_shard(ema[name]) for name in by_muon},
            world,
            by_kernel=in_one_pass,
        )
        if by_muon
        else None,
    )


def drop_gradients(masters: Masters) -> None:
    """Set every gradient to None."""
    for parameter in masters.learns.values():
        parameter.grad = None


def gradient_norm(masters: Masters) -> float:
    """Return the norm of all gradients together; ranks that share the weights call it together."""
    return float(device_norm(masters))


@torch.no_grad()
def device_norm(masters: Masters) -> Tensor:
    """Return what `gradient_norm` returns as a float64 scalar on the device; the host does not wait."""
    held = [
        (mesh.local_shard(parameter.grad), cut)
        for parameter, cut in zip(masters.learns.values(), masters.cuts, strict=True)
        if parameter.grad is not None
    ]
    return _norm([gradient for gradient, _ in held], [cut for _, cut in held])


def clip_factor(norm: float, limit: float | None) -> float:
    """Return the factor that reduces a gradient of such a norm to at most `limit`."""
    return limit / norm if limit is not None and norm > limit else 1.0


@torch.no_grad()
def device_clip_factor(norm: Tensor, limit: float | None) -> float | Tensor:
    """Return what `clip_factor` returns for a norm on the device, as a float32 scalar there.

    Its bits are those that the factor of `clip_factor` has as float32.
    """
    if limit is None:
        return 1.0
    quotient = torch.full_like(norm, limit) / norm  # a Python number over a tensor is rounded twice
    return torch.where(norm > limit, quotient, 1.0).float()


@torch.no_grad()
def update(
    masters: Masters, spec: OptimSpec, *, lr: float, ema_decay: float, clip_factor: float | Tensor = 1.0
) -> None:
    """Update weights, moments and EMA with `lr` and `spec`'s values, then set the gradients to None.

    Gradients are multiplied by `clip_factor`, which may be a float32 scalar on their device. EMA =
    decay·EMA + (1 − decay)·weight; untrained tensors (buffers, frozen parameters) are copied.
    """
    matrices = masters.matrices
    names = set(matrices.names) if matrices else ()
    found = {
        name: None if (gradient := parameter.grad) is None else mesh.local_shard(gradient)
        for name, parameter in masters.learns.items()
    }
    gradients = [gradient for name, gradient in found.items() if name not in names]
    if matrices and spec.muon:
        muon.update(
            matrices,
            [found[name] for name in matrices.names],
            lr=lr * spec.muon,
            weight_decay=spec.weight_decay,
            ema_decay=ema_decay,
            scale=clip_factor,
        )
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
    masters: Masters,
    gradients: Sequence[Tensor | None],
    spec: OptimSpec,
    lr: float,
    clip_factor: float | Tensor,
) -> None:
    if isinstance(clip_factor, Tensor) or clip_factor != 1:
        torch._foreach_mul_([gradient for gradient in gradients if gradient is not None], clip_factor)
    (group,) = masters.optimizer.param_groups
    group.update(lr=lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
    for piece, gradient in zip(masters.pieces, gradients, strict=True):
        piece.grad = gradient
    masters.optimizer.step()
    for piece in masters.pieces:
        piece.grad = None
