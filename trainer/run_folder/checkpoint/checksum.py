"""Checksum of named tensors, independent of how they are sharded over devices.

The checksum mixes each element's bits with its index in the tensor and adds them modulo 2^64, on the tensor's
device; the sums of a tensor's shards add up to the sum of the full tensor. A SHA-256 would have to gather the
shards from many GPUs during training. This detects damage, not malice; the files of a checkpoint have a
SHA-256.
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from trainer.distributed import mesh

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_ODD = 0xBF58476D1CE4E5B9 - (1 << 64)
# Elements per chunk: as many as fit into a core's cache, or keep a GPU busy while the next kernel starts.
_CHUNKS = {"cpu": 1 << 16, "cuda": 1 << 22}


def _bits(tensor: Tensor) -> Tensor:
    """Return this rank's shard as one row of integers."""
    return mesh.local_shard(tensor).contiguous().reshape(-1).view(_INTEGER[tensor.element_size()])


def _mixed_sums(alike: Sequence[Tensor], first: int) -> Tensor:
    """Return the sum of each of these rows of one length and dtype, int64 on their device.

    `first`: the index of their first element in the tensor. A GPU starts as few kernels for many small rows
    as for a large one.
    """
    device, length = alike[0].device, len(alike[0])
    chunk = _CHUNKS[device.type]
    sums = torch.zeros(len(alike), dtype=torch.int64, device=device)
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        places = torch.arange(first + start + 1, first + end + 1, dtype=torch.int64, device=device)
        places.mul_(_GOLDEN)
        count = chunk // (end - start)
        for number in range(0, len(alike), count):
            rows = [row[start:end] for row in alike[number : number + count]]
            values = torch.stack(rows) if len(rows) > 1 else rows[0][None]
            mixed = places.bitwise_xor(values).mul_(_ODD)  # int64, whatever the values are
            mixed.bitwise_xor_(mixed >> 29).mul_(_GOLDEN)
            sums[number : number + count] += mixed.bitwise_xor_(mixed >> 32).sum(1)
    return sums


def _sums_of_shards(tensors: Sequence[Tensor], locations: Sequence[mesh.ShardLocation]) -> Tensor:
    """Return the sum over this rank's shard of each tensor, int64 [n], on the device of the first.

    Tensors of the same shape and shard location are mixed together.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, (tensor, location) in enumerate(zip(tensors, locations, strict=True)):
        groups.setdefault((tensor.device, tensor.dtype, tensor.shape, location), []).append(number)
    device = mesh.local_shard(tensors[0]).device
    places, found = [], []
    for numbers in groups.values():
        tensor, (_, first_row) = tensors[numbers[0]], locations[numbers[0]]
        first = first_row * (tensor.numel() // tensor.shape[0]) if first_row else 0
        found.append(_mixed_sums([_bits(tensors[number]) for number in numbers], first).to(device))
        places += numbers
    in_order = torch.empty(len(tensors), dtype=torch.int64)
    in_order[torch.tensor(places)] = torch.arange(len(places))
    return torch.cat(found)[in_order.to(device)]


@torch.no_grad()
def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return 64 hex digits over names, shapes, dtypes and values; the order of names does not matter.

    With sharded tensors this is a collective: all ranks must call it, and get the same result.
    """
    names = sorted(tensors)
    if not names:
        return hashlib.sha256().hexdigest()
    in_order = [tensors[name] for name in names]
    locations = mesh.shard_locations(in_order)
    sums = mesh.sum_over_shards(_sums_of_shards(in_order, locations), locations)
    total = hashlib.sha256()
    for name, value in zip(names, sums.tolist(), strict=True):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)} {value}\n".encode())
    return total.hexdigest()
