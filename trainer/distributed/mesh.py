"""The ranks: who takes part, on which device, and what they do together.

Everything else works on "this rank's share" and asks here for sums. One process without torchrun is a world
of one, in which every function here is the identity. A tensor that lies over several ranks is a DTensor, cut
along its first dimension; `local` is this rank's piece of it, and of any other tensor the tensor itself.

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

# Gradients travel in flat buffers of this size: few calls for a small model, little memory for a large one.
BUFFER_ELEMENTS = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the others. `device` is where its tensors live.

    `group` is how the ranks talk (None: torch's default group), `saving` a second line over the CPU for
    what is written in the background.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None
    saving: dist.ProcessGroup | None = None

    @property
    def background(self) -> "World":
        """The same ranks on the second line: its calls do not mix with those of a step."""
        return replace(self, group=self.saving)

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
    """Return this process's place, from torchrun's names or Slurm's, and meet the others.

    Without them the process is alone. A GPU is used where there is one (nccl), else the CPU (gloo).
    Raises InputError for an environment that makes no sense.
    """
    os.environ.update(distributed_rank.environment(os.environ))
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
    saving = None
    if size > 1:
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(minutes=30))
        saving = dist.new_group(backend="gloo", timeout=timedelta(minutes=30))
    return World(rank=rank, size=size, device=device, saving=saving)


def device_name(world: World) -> str:
    """Return what the driver calls this rank's device, or "cpu"."""
    return torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"


def leave(world: World) -> None:
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(values: Tensor, world: World) -> Tensor:
    """Return `values` summed over the ranks, in place where the tensor lies on the world's device."""
    if world.size == 1:
        return values
    moved = values.to(world.device)
    dist.all_reduce(moved, group=world.group)
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
    sent: list[tuple[list[Tensor], Tensor, dist.Work]] = []
    waiting: list[Tensor] = []
    for parameter in learns:
        assert parameter.grad is not None
        if waiting and sum(map(torch.numel, waiting)) + parameter.numel() > BUFFER_ELEMENTS:
            sent.append(_send_flat(waiting))
            waiting = []
        waiting.append(parameter.grad)
    if waiting:
        sent.append(_send_flat(waiting))
    for tensors, flat, work in sent:
        work.wait()
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])


def _send_flat(tensors: list[Tensor]) -> tuple[list[Tensor], Tensor, dist.Work]:
    """Begin to sum the tensors over the ranks in one buffer, while the next one is filled."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return tensors, flat, dist.all_reduce(flat, async_op=True)


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
    dist.all_gather_object(everyone, value, group=world.group)
    return everyone


def together(work: Callable[[], T], world: World) -> list[T]:
    """Run `work` on every rank and return all values, in the order of ranks, on all of them.

    The error of any rank is raised on every rank, so that none waits for one that has failed.
    """
    value: T | None = None
    failure: Exception | None = None
    try:
        value = work()
    except Exception as error:  # noqa: BLE001 - raised again below, after the others have heard of it
        failure = error
    said = None if failure is None or world.size == 1 else _sayable(failure)
    everyone = gather((value, said), world)
    if failure is not None:
        raise failure
    for _, theirs in everyone:
        if theirs is not None:
            raise theirs
    return [theirs for theirs, _ in everyone]  # type: ignore[misc]


def _sayable(error: Exception) -> VidcurateError:
    """Return what the other ranks are told of an error: one of ours as it is, of any other its text."""
    return error if isinstance(error, VidcurateError) else VidcurateError(repr(error))


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
            said = [None, _sayable(error)]
    dist.broadcast_object_list(said, src=0, group=world.group)
    if failure is not None:
        raise failure
    if isinstance(said[1], VidcurateError):
        raise said[1]
    return said[0]  # type: ignore[return-value]


# ── tensors that lie over the ranks ─────────────────────────────────────────────────────────────────────────


def local(tensor: Tensor) -> Tensor:
    """Return this rank's piece of a tensor that lies over several, sharing its memory; else the tensor."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def piece(parameter: nn.Parameter) -> nn.Parameter:
    """Return `local` of a parameter, as one itself."""
    return nn.Parameter(local(parameter)) if isinstance(parameter, DTensor) else parameter


def laid_like(model: Tensor, piece: Tensor) -> Tensor:
    """Return the tensor whose piece on each rank is `piece`, sharing its memory, where `model` is one."""
    if not isinstance(model, DTensor):
        return piece
    return DTensor.from_local(
        piece, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride()
    )


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, on every rank of those that it lies over; they must ask together."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def put(target: Tensor, value: Tensor) -> None:
    """Copy the whole tensor `value`, which every rank holds, into `target`: each rank takes its piece."""
    if isinstance(target, DTensor):
        value = value.to(target.device)
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    local(target).copy_(local(value))


Cut = tuple[dist.ProcessGroup | None, int]
"""The ranks that a tensor is cut over (None: it is whole here), and the row its piece begins at."""


def cuts(tensors: Iterable[Tensor]) -> list[Cut]:
    """Return how each of these is cut; a mesh is asked once for all of them, as it takes its time.

    Pieces are as `torch.chunk` makes them: equal but for the last ones.
    """
    known: dict[object, tuple[dist.ProcessGroup | None, int, int]] = {}
    found: list[Cut] = []
    for tensor in tensors:
        group = None
        if isinstance(tensor, DTensor):
            key = (tensor.device_mesh, tensor.placements)
            group, place, count = known.get(key) or known.setdefault(key, _place(*key))
        if group is None:
            found.append((None, 0))
        else:
            rows = -(-tensor.shape[0] // count)
            found.append((group, min(place * rows, tensor.shape[0])))
    return found


def _place(where: DeviceMesh, placements: tuple[Placement, ...]) -> tuple[dist.ProcessGroup | None, int, int]:
    """Return the ranks that such a tensor is cut over, this one's place among them, and their number."""
    placed = [number for number, placement in enumerate(placements) if placement.is_shard()]
    if not placed:
        return None, 0, 1
    (number,) = placed
    return where.get_group(number), where.get_local_rank(number), where.size(number)


@torch.no_grad()
def sum_of_pieces(sums: Tensor, cuts: Sequence[Cut]) -> Tensor:
    """Return `sums` [n], of which entry i is a sum over this rank's piece of tensor i, over all pieces.

    `cuts` are those of the tensors; whole ones' entries stay as they are.
    """
    for group in {id(group): group for group, _ in cuts if group is not None}.values():
        chosen = torch.tensor([theirs is group for theirs, _ in cuts], device=sums.device)
        part = torch.where(chosen, sums, torch.zeros_like(sums))
        dist.all_reduce(part, group=group)
        sums = torch.where(chosen, part, sums)
    return sums
