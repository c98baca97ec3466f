"""Muon update of the blocks' matrices: momentum, then the nearest orthogonal one.

Keller Jordan's Muon with the scale of Moonlight (arXiv 2502.16982): an orthogonal update of a matrix [r, c]
is multiplied by 0.2·sqrt(max(r, c)), which is the size of AdamW's updates, so learning rate and weight decay
keep their meaning. Five Newton-Schulz steps orthogonalise, in bfloat16 on a GPU, in float32 on the CPU; q, k
and v of one weight are matrices of their own. AdamW (`trainer.training.optim.adamw`) updates all that is no
matrix of a block: norms, tables, biases, embeddings, the first and the last layer.

The momentum is sharded as the weight is. The matrices are assigned to the ranks: each is orthogonalised whole
by one rank, so the result does not depend on the number of ranks.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.distributed import mesh
from trainer.distributed.mesh import ALONE, World

STEPS = (3.4445, -4.7750, 2.0315)  # of the odd polynomial, five times
NUM_STEPS = 5
MOMENTUM = 0.95  # share that a step keeps, Nesterov's; Keller Jordan's default
RMS = 0.2  # of an update's elements, as AdamW's are
CHUNK_ELEMENTS = 1 << 27  # of the matrices that are orthogonalised together
PARTS = {"attn.qkv.weight": 3, "cross_attn.kv_linear.weight": 2}  # matrices that lie in one weight


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether Muon updates the parameter: a weight of a linear layer of a block."""
    in_block = name.startswith(("spatial_blocks.", "temporal_blocks."))
    return in_block and name.endswith(".weight") and parameter.dim() == 2


def _num_parts(name: str) -> int:
    return next((count for end, count in PARTS.items() if name.endswith(end)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """The matrices of an update, in one order: names, full shapes, this rank's shards.

    `momenta` are sharded as the weights. `owners`: the rank, of `world`, that orthogonalises each matrix.
    `rows`: of each matrix the first row of every rank's shard, and the number of rows; None: not sharded.
    `kernel` and its `table` of momenta: None where torch updates.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    pieces: tuple[Tensor, ...]
    momenta: tuple[Tensor, ...]
    averages: tuple[Tensor, ...]
    owners: tuple[int, ...]
    world: World
    rows: tuple[tuple[int, ...], ...] | None
    kernel: Any | None = None  # trainer.model.kernels.muon
    table: Any | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Matrices that lie in each weight."""
        return tuple(map(_num_parts, self.names))

    @property
    def steps(self) -> tuple[float, ...]:
        """Size of each weight's update for a learning rate of 1."""
        return tuple(
            RMS * math.sqrt(max(height // count, width))
            for (height, width), count in zip(self.shapes, self.counts, strict=True)
        )

    @property
    def dtype(self) -> torch.dtype:
        """What the updates are computed in and sent as."""
        on_gpu = self.kernel is not None and self.pieces[0].device.type == "cuda"
        return torch.bfloat16 if on_gpu else torch.float32


def matrices(
    weights: dict[str, nn.Parameter],
    averages: Mapping[str, Tensor],
    world: World = ALONE,
    *,
    by_kernel: bool = False,
) -> Matrices:
    """Return the matrices of `weights`, with zero momenta; `averages` are their shards of the EMA, by name.

    Sharded weights are assigned to the ranks of a shard group, others over those of `world`. `by_kernel`:
    Triton's kernels update, not torch.
    """
    shapes = [(weight.shape[0], weight.shape[1]) for weight in weights.values()]
    pieces = [mesh.local_shard(weight.detach()) for weight in weights.values()]
    group, _ = mesh.shard_locations(weights.values())[0]
    if group is not None:
        world = replace(world, rank=dist.get_rank(group), size=dist.get_world_size(group), group=group)
    rows = None
    if group is not None:
        rows = tuple(_first_rows(height, world.size) for height, _ in shapes)
    momenta = tuple(torch.zeros_like(piece) for piece in pieces)
    kernel = table = None
    if by_kernel:
        # Imported here, as only machines with a GPU have Triton.
        kernel = importlib.import_module("trainer.model.kernels.muon")
        tables = importlib.import_module("trainer.model.kernels.adamw")
        table = tables.table(momenta, pieces, [averages[name] for name in weights])
    return Matrices(
        names=tuple(weights),
        shapes=tuple(shapes),
        pieces=tuple(pieces),
        momenta=momenta,
        averages=tuple(averages[name] for name in weights),
        owners=owners_of(shapes, world.size),
        world=world,
        rows=rows,
        kernel=kernel,
        table=table,
    )


def _first_rows(height: int, size: int) -> tuple[int, ...]:
    """Return the first row of each of `size` shards, as `torch.chunk` cuts, and the height."""
    each = -(-height // size)
    return tuple(min(number * each, height) for number in range(size + 1))


def owners_of(shapes: Sequence[tuple[int, int]], size: int) -> tuple[int, ...]:
    """Return the owner of each matrix: the largest first, each to the rank with the least work."""
    work = [0] * size
    owners = [0] * len(shapes)
    costs = [min(shape) ** 2 * max(shape) for shape in shapes]
    for number in sorted(range(len(shapes)), key=lambda number: (-costs[number], number)):
        owners[number] = work.index(min(work))
        work[owners[number]] += costs[number]
    return tuple(owners)


@torch.no_grad()
def update(
    held: Matrices,
    gradients: Sequence[Tensor | None],
    *,
    lr: float,
    weight_decay: float,
    ema_decay: float,
    scale: float | Tensor = 1.0,
) -> None:
    """Update weights, momenta and averages in place; a gradient counts `scale` times.

    `gradients` are this rank's shards, float32; they are overwritten. The ranks call this together.
    """
    if not held.names:
        return
    momenta, pieces = list(held.momenta), list(held.pieces)
    both = zip(pieces, gradients, strict=True)
    given = [torch.zeros_like(piece) if gradient is None else gradient for piece, gradient in both]
    steps, kept = [-lr * step for step in held.steps], 1 - lr * weight_decay
    if held.kernel is not None:
        _update_by_kernel(held, given, steps, kept=kept, ema_decay=ema_decay, scale=scale)
        return
    if isinstance(scale, Tensor) or scale != 1:
        torch._foreach_mul_(given, scale)
    torch._foreach_lerp_(momenta, given, 1 - MOMENTUM)
    torch._foreach_lerp_(given, momenta, MOMENTUM)  # Nesterov's look ahead
    if weight_decay:
        torch._foreach_mul_(pieces, kept)
    found = _whole_updates(held, given, orthogonalised)
    torch._foreach_mul_(found, steps)
    torch._foreach_add_(pieces, found)
    torch._foreach_lerp_(list(held.averages), pieces, 1 - ema_decay)


def _update_by_kernel(
    held: Matrices,
    given: list[Tensor],
    steps: Sequence[float],
    *,
    kept: float,
    ema_decay: float,
    scale: float | Tensor,
) -> None:
    """Make the update by the kernels; `steps` is what each weight's orthogonal update counts."""
    kernel = held.kernel
    assert kernel is not None
    given = [gradient.contiguous() for gradient in given]
    kernel.lead(held.table, given, kept=MOMENTUM, scale=scale)
    weights, averages, counts = list(held.pieces), list(held.averages), held.counts
    if held.world.size == 1:
        updates = _by_kernel(held, _parts(given, counts))
        weights, averages = _parts(weights, counts), _parts(averages, counts)
        steps = [step for step, count in zip(steps, counts, strict=True) for _ in range(count)]
    else:

        def whole(wholes: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
            found = iter(_by_kernel(held, _parts(wholes, counts)))
            return [torch.cat([next(found) for _ in range(count)]) for count in counts]

        updates = _whole_updates(held, given, whole)
    kernel.apply(weights, averages, updates, steps, kept=kept, ema_decay=ema_decay)


def _parts(tensors: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Return the matrices that lie in each of `tensors`."""
    return [part for one, count in zip(tensors, counts, strict=True) for part in one.chunk(count)]


def _by_kernel(held: Matrices, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return what `orthogonalised` returns for matrices of their own, in `held.dtype`."""
    assert held.kernel is not None
    words: dict[str, Any] = {"steps": NUM_STEPS, "coefficients": STEPS, "most_elements": CHUNK_ELEMENTS}
    return list(held.kernel.orthogonalised(matrices, dtype=held.dtype, **words))


def _whole_updates(
    held: Matrices,
    given: list[Tensor],
    orthogonalise: Callable[[Sequence[Tensor], Sequence[int]], list[Tensor]],
) -> list[Tensor]:
    """Return this rank's shards of the orthogonalised `given`, which are its shards of all matrices.

    `orthogonalise` gets whole weights and the number of matrices in each.
    """
    mine = [number for number, owner in enumerate(held.owners) if owner == held.world.rank]
    if held.world.size == 1:
        return orthogonalise(given, held.counts)
    counts = [held.counts[number] for number in mine]
    if held.rows is None:
        return _sent_to_all(held, orthogonalise([given[number] for number in mine], counts), given)
    done = orthogonalise(_gathered(held, given, mine), counts)
    return _scattered(held, done, given, mine)


def _sent_to_all(held: Matrices, done: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """Return all ranks' results, each sent by its owner."""
    found = list(like)
    for owner in range(held.world.size):
        theirs = [number for number, one in enumerate(held.owners) if one == owner]
        if not theirs:
            continue
        sizes = [like[number].numel() for number in theirs]
        flat = like[0].new_empty(sum(sizes), dtype=held.dtype)
        if owner == held.world.rank:
            torch.cat([one.flatten() for one in done], out=flat)
        dist.broadcast(flat, src=_global_rank(held.world, owner), group=held.world.group)
        for number, part in zip(theirs, flat.split_with_sizes(sizes), strict=True):
            found[number] = part.view_as(like[number])
    return found


def _global_rank(world: World, rank: int) -> int:
    return rank if world.group is None else dist.get_global_rank(world.group, rank)


def _height(held: Matrices, number: int, rank: int) -> int:
    assert held.rows is not None
    return held.rows[number][rank + 1] - held.rows[number][rank]


def _gathered(held: Matrices, given: list[Tensor], mine: list[int]) -> list[Tensor]:
    """Return the whole of this rank's matrices, from all ranks' shards."""
    size = held.world.size
    by_owner = [[number for number, one in enumerate(held.owners) if one == owner] for owner in range(size)]
    sent = [given[number].numel() for number in range(len(given))]
    flat = torch.cat([given[number].flatten() for numbers in by_owner for number in numbers])
    widths = [held.shapes[number][1] for number in mine]
    received = [
        [_height(held, number, rank) * width for number, width in zip(mine, widths, strict=True)]
        for rank in range(size)
    ]
    into = flat.new_empty(sum(map(sum, received)))
    dist.all_to_all_single(
        into,
        flat,
        output_split_sizes=[sum(row) for row in received],
        input_split_sizes=[sum(sent[number] for number in numbers) for numbers in by_owner],
        group=held.world.group,
    )
    parts = into.split_with_sizes([one for row in received for one in row])
    shards = [parts[rank * len(mine) : (rank + 1) * len(mine)] for rank in range(size)]
    return [
        torch.cat([shards[rank][place].view(-1, width) for rank in range(size)])
        for place, width in enumerate(widths)
    ]


def _scattered(held: Matrices, done: list[Tensor], like: list[Tensor], mine: list[int]) -> list[Tensor]:
    """Return this rank's shards of all matrices, from the ranks that orthogonalised them."""
    size, rows = held.world.size, held.rows
    assert rows is not None
    by_owner = [[number for number, one in enumerate(held.owners) if one == owner] for owner in range(size)]
    shards = [
        [one[rows[number][rank] : rows[number][rank + 1]] for number, one in zip(mine, done, strict=True)]
        for rank in range(size)
    ]
    empty = like[0].new_empty(0, dtype=held.dtype)
    flat = torch.cat([empty, *(shard.flatten() for row in shards for shard in row)])
    sizes = [[like[number].numel() for number in numbers] for numbers in by_owner]
    into = empty.new_empty(sum(map(sum, sizes)))
    dist.all_to_all_single(
        into,
        flat,
        output_split_sizes=[sum(row) for row in sizes],
        input_split_sizes=[sum(shard.numel() for shard in row) for row in shards],
        group=held.world.group,
    )
    parts = into.split_with_sizes([one for row in sizes for one in row])
    numbers = [number for theirs in by_owner for number in theirs]
    found = list(like)
    for number, part in zip(numbers, parts, strict=True):
        found[number] = part.view_as(like[number])
    return found


@torch.no_grad()
def orthogonalised(given: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Return U Vᵀ of the singular value decomposition U S Vᵀ of each matrix, nearly, as float32.

    `counts`: matrices of equal heights that lie, one above the other, in each of `given`. Matrices of one
    shape are computed together, wide ones as they are and high ones turned over.
    """
    found = [torch.empty_like(one) for one in given]
    groups: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    for one, into, count in zip(given, found, counts, strict=True):
        for part, target in zip(one.chunk(count), into.chunk(count), strict=True):
            pair = (part, target) if part.shape[0] <= part.shape[1] else (part.T, target.T)
            groups.setdefault((pair[0].shape[0], pair[0].shape[1]), []).append(pair)
    for (height, width), pairs in groups.items():
        most = max(1, CHUNK_ELEMENTS // (height * width))
        for first in range(0, len(pairs), most):
            chunk = pairs[first : first + most]
            done = _newton_schulz(torch.stack([part for part, _ in chunk]))
            torch._foreach_copy_([target for _, target in chunk], list(done.unbind()))
    return found


def _newton_schulz(x: Tensor) -> Tensor:
    """Return [n, r, c], r <= c, with all singular values near 1: five steps of an odd polynomial."""
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1e-7)
    if x.device.type == "cuda":
        x = x.bfloat16()
    a, b, c = STEPS
    for _ in range(NUM_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
