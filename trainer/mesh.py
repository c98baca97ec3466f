"""The ranks: who takes part, on which device, and what they do together.

The only file that knows ranks. Everything else works on "this rank's share" and asks here for sums. One
process without torchrun is a world of one, in which every function here is the identity.

A step's gradient is the sum over all micro-batches of the step, each scaled by 1 / (clips of the step), so
the world size changes nothing but the order of float additions.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vidcurate.errors import InputError, StateError, VidcurateError

T = TypeVar("T")

# Gradients travel in flat buffers of this size: few calls for a small model, little memory for a large one.
BUFFER_ELEMENTS = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the others. `device` is where its tensors live."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


ALONE = World(rank=0, size=1, device=torch.device("cpu"))


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit():
        raise InputError(
            f"the environment says {name}={text}; it must be a whole number. Start with torchrun."
        )
    return int(text)


def join() -> World:
    """Return this process's place, from RANK, WORLD_SIZE and LOCAL_RANK, and meet the others.

    Without WORLD_SIZE the process is alone. A GPU is used where there is one (nccl), else the CPU (gloo).
    Raises InputError for an environment that makes no sense.
    """
    rank, size, local = _number("RANK", 0), _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0)
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
    if size > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return World(rank=rank, size=size, device=device)


def leave(world: World) -> None:
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(values: Tensor, world: World) -> Tensor:
    """Return `values` summed over the ranks, in place where the tensor lies on the world's device."""
    if world.size == 1:
        return values
    moved = values.to(world.device)
    dist.all_reduce(moved)
    return moved


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Sum each parameter's gradient over the ranks, in place; one that is None counts as zeros.

    A rank without a micro-batch in this step joins with zeros. Buffers are filled in the order of
    `parameters`, which is the same on every rank.
    """
    learns = list(parameters)
    for parameter in learns:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if world.size == 1:
        return
    waiting: list[Tensor] = []
    for parameter in learns:
        assert parameter.grad is not None
        if waiting and sum(map(torch.numel, waiting)) + parameter.numel() > BUFFER_ELEMENTS:
            _sum_flat(waiting)
            waiting = []
        waiting.append(parameter.grad)
    _sum_flat(waiting)


def _sum_flat(tensors: list[Tensor]) -> None:
    if not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


@torch.no_grad()
def spread(tensors: Iterable[Tensor], world: World) -> None:
    """Give every rank the first rank's values, in place."""
    if world.size > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def agree(facts: dict[str, str], world: World) -> None:
    """Raise StateError, on every rank, unless all ranks hold the same `facts`."""
    everyone = gather(facts, world)
    for rank, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs.get(name) != value:
                raise StateError(
                    f"rank {rank} has another {name} than rank 0: {theirs.get(name)} and {value}. "
                    "All ranks must see the same recipe and the same shards."
                )


def gather(value: T, world: World) -> list[T]:
    """Return every rank's value, in the order of ranks, on all of them."""
    if world.size == 1:
        return [value]
    everyone: list[T] = [value] * world.size
    dist.all_gather_object(everyone, value)
    return everyone


def first_does(work: Callable[[], T], world: World) -> T:
    """Run `work` on the first rank only and return its value on all. Its error is raised on all, too.

    So no rank waits for one that has failed.
    """
    if world.size == 1:
        return work()
    said: list[object] = [None, None]
    failure: Exception | None = None
    if world.is_first:
        try:
            said = [work(), None]
        except Exception as error:  # noqa: BLE001 - raised again below, after the others have heard of it
            failure = error
            said = [None, error if isinstance(error, VidcurateError) else VidcurateError(repr(error))]
    dist.broadcast_object_list(said, src=0)
    if failure is not None:
        raise failure
    if isinstance(said[1], VidcurateError):
        raise said[1]
    return said[0]  # type: ignore[return-value]
