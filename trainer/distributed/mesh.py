"""Ranks and process groups: start them, collectives, and shards of DTensors.

All other code works on this rank's shard and calls this module for sums. One process without torchrun is a
world of size 1, in which every function here is the identity. A sharded tensor is a DTensor, sharded along
dimension 0; `local_shard` returns this rank's shard, and any other tensor unchanged.

A step's gradient is the sum over all micro-batches of the step, each scaled by 1 / (clips of the step), so
the world size changes nothing but the order of float additions.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

from trainer.distributed import rank as distributed_rank
from vidcurate.errors import InputError, StateError, VidcurateError

T = TypeVar("T")

# Gradients are all-reduced in flat buffers of this size: few calls for a small model, little memory for a
# large one.
BUFFER_ELEMENTS = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's rank, the number of ranks and the device of its tensors.

    `group`: the process group of collectives (None: torch's default group). `background_group`: a gloo
    process group for background checkpoint traffic.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None
    background_group: dist.ProcessGroup | None = None

    @property
    def background(self) -> "World":
        """The same ranks on the background group, whose calls do not mix with those of a step."""
        return replace(self, group=self.background_group)

    @property
    def is_first(self) -> bool:
        return self.rank == 0


ALONE = World(rank=0, size=1, device=torch.device("cpu"))


def init_process_groups() -> World:
    """Start the process groups from torchrun's or Slurm's variables and return this process's world.

    Without these variables the process is a world of size 1. Uses a GPU where there is one (nccl), else the
    CPU (gloo). Raises InputError for inconsistent variables.
    """
    os.environ.update(distributed_rank.environment(os.environ))
    rank, size, local = (
        distributed_rank.whole_number(os.environ, name, default)
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    if rank >= size:
        raise InputError(f"the environment says RANK={rank} and WORLD_SIZE={size}; ranks count from 0.")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        if local >= torch.cuda.device_count():
            raise InputError(
                f"LOCAL_RANK is {local} and this host has {torch.cuda.device_count()} GPUs; "
                "start at most one process a GPU (--nproc-per-node)."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    background_group = None
    if size > 1:
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(minutes=30))
        background_group = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))
    return World(rank=rank, size=size, device=device, background_group=background_group)


def device_name(world: World) -> str:
    """Return the driver's name of this rank's device, or "cpu"."""
    return torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"


def destroy_process_groups(world: World) -> None:
    """Destroy what `init_process_groups` started."""
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(values: Tensor, world: World) -> Tensor:
    """Return `values` summed over the ranks; in place if the tensor is on the world's device."""
    if world.size == 1:
        return values
    moved = values.to(world.device)
    dist.all_reduce(moved, group=world.group)
    return moved


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Sum each parameter's gradient over the ranks, in place; a gradient of None counts as zeros.

    A rank without a micro-batch in this step contributes zeros. The buffers are filled in the order of
    `parameters`, which is the same on every rank.
    """
    learns = list(parameters)
    for parameter in learns:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if world.size == 1:
        return
    sent: list[tuple[list[Tensor], Tensor, dist.Work]] = []
    waiting: list[Tensor] = []
    for parameter in learns:
        assert parameter.grad is not None
        if waiting and sum(map(torch.numel, waiting)) + parameter.numel() > BUFFER_ELEMENTS:
            sent.append(_start_flat_sum(waiting))
            waiting = []
        waiting.append(parameter.grad)
    if waiting:
        sent.append(_start_flat_sum(waiting))
    for tensors, flat, work in sent:
        work.wait()
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])


def _start_flat_sum(tensors: list[Tensor]) -> tuple[list[Tensor], Tensor, dist.Work]:
    """Start the all-reduce of the tensors in one buffer; the caller fills the next one meanwhile."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return tensors, flat, dist.all_reduce(flat, async_op=True)


def check_same_on_all_ranks(facts: dict[str, str], world: World) -> None:
    """Raise StateError on every rank unless `facts` are the same on all ranks."""
    everyone = all_gather(facts, world)
    for rank, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs.get(name) != value:
                raise StateError(
                    f"rank {rank} has a different {name} from rank 0: {theirs.get(name)} and {value}. "
                    "All ranks must see the same recipe and the same shards."
                )


def all_gather(value: T, world: World) -> list[T]:
    """Return every rank's value in rank order, on all ranks."""
    if world.size == 1:
        return [value]
    everyone: list[T] = [value] * world.size
    dist.all_gather_object(everyone, value, group=world.group)
    return everyone


def run_on_all_ranks(work: Callable[[], T], world: World) -> list[T]:
    """Run `work` on every rank and return all values in rank order, on all ranks.

    The error of any rank is raised on every rank, so that no rank waits for a failed one.
    """
    value: T | None = None
    failure: Exception | None = None
    try:
        value = work()
    except Exception as error:  # noqa: BLE001 - raised again below, after the other ranks have received it
        failure = error
    sent = None if failure is None or world.size == 1 else _picklable(failure)
    everyone = all_gather((value, sent), world)
    if failure is not None:
        raise failure
    for _, theirs in everyone:
        if theirs is not None:
            raise theirs
    return [theirs for theirs, _ in everyone]  # type: ignore[misc]


def _picklable(error: Exception) -> VidcurateError:
    """Return the error to send to other ranks: a VidcurateError as it is, the text of any other."""
    return error if isinstance(error, VidcurateError) else VidcurateError(repr(error))


def run_on_first_rank(work: Callable[[], T], world: World) -> T:
    """Run `work` on rank 0 only and return its value, or raise its error, on all ranks.

    So no rank waits for a failed one.
    """
    if world.size == 1:
        return work()
    sent: list[object] = [None, None]
    failure: Exception | None = None
    if world.is_first:
        try:
            sent = [work(), None]
        except Exception as error:  # noqa: BLE001 - raised again below, after the other ranks have received it
            failure = error
            sent = [None, _picklable(error)]
    dist.broadcast_object_list(sent, src=0, group=world.group)
    if failure is not None:
        raise failure
    if isinstance(sent[1], VidcurateError):
        raise sent[1]
    return sent[0]  # type: ignore[return-value]


# ── sharded tensors ─────────────────────────────────────────────────────────────────────────────────────────


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, sharing its memory; any other tensor unchanged."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def local_parameter(parameter: nn.Parameter) -> nn.Parameter:
    """Return `local_shard` of a parameter, as a parameter."""
    return nn.Parameter(local_shard(parameter)) if isinstance(parameter, DTensor) else parameter


def sharded_like(model: Tensor, shard: Tensor) -> Tensor:
    """Return the DTensor sharded like `model` whose local shard is `shard`, sharing its memory.

    Where `model` is no DTensor, return `shard` itself.
    """
    if not isinstance(model, DTensor):
        return shard
    return DTensor.from_local(
        shard, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor on every rank. A collective: all its ranks must call it."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_to_shards(target: Tensor, value: Tensor) -> None:
    """Copy the full tensor `value`, which every rank holds, into `target`: each rank takes its shard."""
    if isinstance(target, DTensor):
        value = value.to(target.device)
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    local_shard(target).copy_(local_shard(value))


ShardLocation = tuple[dist.ProcessGroup | None, int]
"""process group that a tensor is sharded over (None: not sharded), and the first row of its local shard"""


def shard_locations(tensors: Iterable[Tensor]) -> list[ShardLocation]:
    """Return where the local shard of each tensor lies; one slow query for each device mesh.

    Shards are as `torch.chunk` makes them: equal but for the last ones.
    """
    known: dict[object, tuple[dist.ProcessGroup | None, int, int]] = {}
    found: list[ShardLocation] = []
    for tensor in tensors:
        group = None
        if isinstance(tensor, DTensor):
            key = (tensor.device_mesh, tensor.placements)
            group, place, count = known.get(key) or known.setdefault(key, _shard_axis(*key))
        if group is None:
            found.append((None, 0))
        else:
            rows = -(-tensor.shape[0] // count)
            found.append((group, min(place * rows, tensor.shape[0])))
    return found


def _shard_axis(
    where: DeviceMesh, placements: tuple[Placement, ...]
) -> tuple[dist.ProcessGroup | None, int, int]:
    """Return the process group of the sharded mesh axis, this rank's index in it, and its size."""
    placed = [number for number, placement in enumerate(placements) if placement.is_shard()]
    if not placed:
        return None, 0, 1
    (number,) = placed
    return where.get_group(number), where.get_local_rank(number), where.size(number)


@torch.no_grad()
def sum_over_shards(sums: Tensor, locations: Sequence[ShardLocation]) -> Tensor:
    """Return `sums` [n] summed over all shards; entry i is a sum over the local shard of tensor i.

    `locations` are those of the tensors; entries of tensors that are not sharded stay as they are.
    """
    for group in {id(group): group for group, _ in locations if group is not None}.values():
        chosen = torch.tensor([theirs is group for theirs, _ in locations], device=sums.device)
        part = torch.where(chosen, sums, torch.zeros_like(sums))
        dist.all_reduce(part, group=group)
        sums = torch.where(chosen, part, sums)
    return sums
