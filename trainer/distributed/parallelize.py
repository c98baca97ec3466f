"""Data parallelism of the model over ranks (replicated or FSDP2), and its dtype.

The master weights (parameters, moments, EMA) are float32 and live in the model itself. A step is:
`begin_step`, any number of micro-batches through `compute` and backward on each rank, `reduce_gradients`.
Then every parameter's `grad` is the sum over all micro-batches of all ranks, float32. There is no
communication between `begin_step` and `reduce_gradients`: ranks may compute different shapes, different
numbers of micro-batches, or none, and wait for each other only in these two.

- `Replicated`: every rank holds everything; `reduce_gradients` all-reduces the gradients.
- `Sharded`: FSDP2. `begin_step` all-gathers the parameters once, `reduce_gradients` reduce-scatters the
  gradients once (ZeRO-2: at this size a gather for every micro-batch would cost more than the memory is
  worth).

In bfloat16 the model computes with a rounded copy of its parameters; the gradients of micro-batches are
accumulated in float32.
"""

import copy
import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.distributed import memory, mesh
from trainer.distributed.activation_checkpointing import Choose, Recompute, chooser
from trainer.distributed.gradient_moves import GradientMoves
from trainer.distributed.memory import Form
from trainer.distributed.mesh import World
from trainer.distributed.spec import ParallelSpec
from trainer.model.kernels import requirements
from trainer.model.stdit import STDiT3
from vidcurate.errors import InputError


class Layout(Protocol):
    """A model distributed over the ranks."""

    @property
    def compute(self) -> nn.Module:
        """The module that computes micro-batches."""

    def begin_step(self) -> None:
        """Copy the master weights to `compute`. The gradients must be None."""

    def local_grad_norm(self) -> Tensor:
        """Return the norm of this rank's own gradient before `reduce_gradients`, a float64 scalar.

        In a world of size 1 it equals, to the last bit, the norm after `reduce_gradients`.
        """

    def discard_gradients(self) -> None:
        """End a step without its gradient, instead of `reduce_gradients`; no communication."""

    def reduce_gradients(self) -> None:
        """Sum each trained parameter's `grad` over all ranks, in float32, and end the step."""

    recompute: Recompute
    """Before each micro-batch its `choose_plan` sets what blocks save for the backward pass."""

    def gathered_weights(self) -> AbstractContextManager[None]:
        """Between steps: copy the master weights to `compute`, for forward passes without gradients."""


class Replicated:
    """Every rank holds the whole model; with another `dtype` it computes in a rounded copy."""

    def __init__(self, model: STDiT3, world: World, dtype: torch.dtype, choose: Choose) -> None:
        self.model, self.world = model, world
        self.compute = model if dtype == torch.float32 else copy.deepcopy(model)
        if self.compute is not model:
            for rounded in self.compute.parameters():
                rounded.data = rounded.data.to(dtype)
            pairs = zip(model.parameters(), self.compute.parameters(), strict=True)
            self.moves = GradientMoves(pairs)
        # Listed once: walking the modules takes a millisecond.
        self.learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.copies: list[Tensor] = list(self.compute.parameters())
        self.weights: list[Tensor] = list(model.parameters())
        self.buffers = list(zip(self.compute.buffers(), model.buffers(), strict=True))
        self.recompute = Recompute(self.compute, choose)

    @torch.no_grad()
    def begin_step(self) -> None:
        """See Layout."""
        if self.compute is not self.model:
            self.moves.drop()
            torch._foreach_copy_(self.copies, self.weights)
            for copied, buffer in self.buffers:
                copied.copy_(buffer)

    def local_grad_norm(self) -> Tensor:
        """See Layout."""
        return _norm([parameter.grad for parameter in self.learns], self.world.device)

    def discard_gradients(self) -> None:
        """See Layout."""
        for parameter in self.learns:
            parameter.grad = None

    def reduce_gradients(self) -> None:
        """See Layout."""
        mesh.sum_gradients(self.learns, self.world)

    @contextmanager
    def gathered_weights(self) -> Iterator[None]:
        """See Layout."""
        self.begin_step()
        yield


@torch.no_grad()
def _norm(grads: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """Return the norm over all tensors; None counts as zeros."""
    present = [grad for grad in grads if grad is not None]
    if not present:
        return torch.zeros((), dtype=torch.float64, device=device)
    norms, zero = iter(torch._foreach_norm(present)), torch.zeros((), device=device)
    each = torch.stack([zero if grad is None else next(norms) for grad in grads])
    return each.double().square().sum().sqrt()


class _Root(nn.Module):
    """The model; without keywords an identity, whose backward makes FSDP finish its step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        if not keywords:
            return cast(Tensor, arguments[0] + 0)
        return cast(Tensor, self.model(*arguments, **keywords))


class Sharded:
    """FSDP2 over the mesh `where` of one axis (shard) or two (replicate, shard), the model as its one unit.

    FSDP gathers once and reduces once in a step, so smaller units would save no memory, and each costs a
    millisecond of the host in both (docs/decisions.md). FSDP reduces the gradients that exist when the
    backward pass ends. Ranks without a micro-batch, or with an image where others have a video, would then
    reduce other parameters than their peers, so `reduce_gradients` does the reduction, and every trained
    parameter has a gradient, zeros at least.
    """

    def __init__(
        self,
        model: STDiT3,
        where: DeviceMesh,
        device: torch.device,
        dtype: torch.dtype,
        choose: Choose,
    ) -> None:
        self.model, self.device = model, device
        policy = MixedPrecisionPolicy(
            param_dtype=None if dtype == torch.float32 else dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )

        self.compute = _Root(model)
        self.root = fully_shard(self.compute, mesh=where, mp_policy=policy, reshard_after_forward=False)
        self.root.set_gradient_divide_factor(1.0)  # the sum: the losses are already divided by all clips
        self.root.set_force_sum_reduction_for_comms(True)
        self.recompute = Recompute(model, choose)

    def _set_reduction(self, on: bool) -> None:
        self.root.set_requires_gradient_sync(on)
        self.root.set_reshard_after_backward(on)

    def begin_step(self) -> None:
        """See Layout."""
        self.root.unshard()
        self._set_reduction(False)
        for gathered in self._gathered():
            parameter = gathered.unsharded_param
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None

    def _gathered(self) -> list[Any]:
        """Return FSDP's parameters; while gathered, each holds its accumulated gradient."""
        state: Any = self.root._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        return [parameter for group in groups for parameter in group.fsdp_params]

    def local_grad_norm(self) -> Tensor:
        """See Layout."""
        grads = []
        for parameter in self._gathered():
            kept = parameter.unsharded_accumulated_grad
            grads.append(parameter.unsharded_param.grad if kept is None else kept)
        return _norm([grad for grad in grads if grad is not None], self.device)

    def discard_gradients(self) -> None:
        """See Layout."""
        for parameter in self._gathered():
            parameter.unsharded_accumulated_grad = parameter.unsharded_param.grad = None
        self.root.reshard()

    def reduce_gradients(self) -> None:
        """See Layout."""
        self._set_reduction(True)
        # FSDP of torch 2.11 takes no call without an argument where there is a GPU.
        self.compute(torch.zeros((), device=self.device, requires_grad=True)).backward()

    @contextmanager
    def gathered_weights(self) -> Iterator[None]:
        """See Layout."""
        self.root.unshard()
        try:
            yield
        finally:
            self.root.reshard()


def _mesh(spec: ParallelSpec, world: World) -> DeviceMesh:
    if spec.sharding == "full":
        return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("shard",))
    size = _shard_size(spec, world)
    if world.size % size:
        raise InputError(
            f"parallel.sharding {size} does not divide the {world.size} ranks; choose one that does, or full."
        )
    shape = (world.size // size, size)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("replicate", "shard"))


def _state_bytes(model: STDiT3, spec: ParallelSpec, world: World, item_bytes: int, averages: int) -> int:
    counts = [0, 0]
    for parameter in model.parameters():
        counts[not parameter.requires_grad] += parameter.numel()
    ranks = world.size if spec.sharding == "full" else _shard_size(spec, world)
    form = {"item_bytes": item_bytes, "ranks": ranks, "power_averages": averages}
    return memory.state_bytes(*counts, sharding=spec.form, **form)


def _shard_size(spec: ParallelSpec, world: World) -> int:
    return spec.shard_size or int(os.environ.get("LOCAL_WORLD_SIZE", world.size))


LEAST_HEAD_DIM = 16  # smallest dimension of a kernel's matmul
FLOAT8_ALIGNED = 16  # float8 matmuls need widths that are multiples of this
FLOAT8_CAPABILITY = (9, 0)  # least compute capability for float8 matmuls with a scale for each row


def _check_kernels(model: STDiT3, world: World, dtype: torch.dtype) -> None:
    """Raise InputError unless the kernels support this model and have a GPU, or Triton's interpreter."""
    if model.config.head_dim < LEAST_HEAD_DIM:
        raise InputError(
            f"blocks is fast and the model has heads of {model.config.head_dim}; the kernels take heads of "
            f"{LEAST_HEAD_DIM} or more. Set blocks=eager."
        )
    if missing := requirements.missing(on_gpu=world.device.type == "cuda"):
        raise InputError(f"blocks is fast and this machine lacks {missing}; install it, or set blocks=eager.")
    if world.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError("blocks is fast and there is no GPU here; set blocks=eager.")
    if world.device.type == "cuda" and dtype == torch.float32:
        # A Triton kernel would multiply float32 as TF32, which keeps 10 of its 23 bits.
        raise InputError(
            "blocks is fast and precision is float32, which the kernels multiply as TF32 on a GPU; set "
            "precision=bfloat16, or blocks=eager."
        )


def _check_float8(model: STDiT3, world: World) -> None:
    """Raise InputError unless the model's widths and the GPU support float8 matmuls."""
    if model.config.hidden_size % FLOAT8_ALIGNED:
        raise InputError(
            f"precision is float8 and the model is {model.config.hidden_size} wide; float8 takes "
            f"multiples of {FLOAT8_ALIGNED}. Set precision=bfloat16."
        )
    if world.device.type == "cuda" and torch.cuda.get_device_capability(world.device) < FLOAT8_CAPABILITY:
        raise InputError(
            f"precision is float8 and this GPU is a {torch.cuda.get_device_name(world.device)}; float8 "
            "with a scale for each row takes an H100 or later. Set precision=bfloat16."
        )


def parallelize_model(
    model: STDiT3,
    spec: ParallelSpec,
    world: World,
    dtype: torch.dtype,
    *,
    fast: bool = False,
    float8: bool = False,
    power_averages: int = 0,
) -> Layout:
    """Distribute `model` over the ranks, moving its tensors to the world's device.

    A single rank holds everything, whatever `spec.sharding` says. `fast` applies the kernels of
    `trainer.model.kernels.apply` to the blocks, with `float8` their large matmuls in float8. The memory for
    activations leaves out `power_averages`, those beside the EMA. Raises InputError where the ranks of a copy
    do not divide the ranks, and where the kernels cannot run.
    """
    if fast:
        _check_kernels(model, world, dtype)
        if float8:
            _check_float8(model, world)
        # Imported here: only machines with a GPU have Triton.
        importlib.import_module("trainer.model.kernels.apply").apply_fused_blocks(model, float8=float8)
    item_bytes = torch.finfo(dtype).bits // 8
    choose = chooser(
        spec.recompute_blocks,
        model.config,
        Form(fast=fast, item_bytes=item_bytes, float8=float8),
        world.device,
        _state_bytes(model, spec, world, item_bytes, power_averages),
    )
    if spec.sharding == "none" or world.size == 1:
        model.to(world.device)
        return Replicated(model, world, dtype, choose)
    layout = Sharded(model, _mesh(spec, world), world.device, dtype, choose)
    for buffer in model.buffers():  # FSDP moves parameters
        buffer.data = buffer.data.to(world.device)
    return layout
