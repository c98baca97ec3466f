"""A number for named tensors that says whether they are the same, however they lie over ranks and devices.

Each element's bits are mixed with its place in the tensor and added up modulo 2^64, where the tensor lies;
the sums of a tensor's pieces add up to the sum of the whole. A SHA-256 would first have to fetch and join
what lies on many GPUs, in the middle of training. This finds damage, not malice; the files of a checkpoint
have their SHA-256.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from trainer import mesh

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_ODD = 0xBF58476D1CE4E5B9 - (1 << 64)
_CHUNK = 1 << 24  # elements mixed at a time


def _mixed_sum(tensor: Tensor) -> Tensor:
    """Return the sum over this rank's piece, an int64 scalar where the tensor lies."""
    _, first_row = mesh.cut(tensor)
    bits = mesh.local(tensor).contiguous().reshape(-1).view(_INTEGER[tensor.element_size()])
    first = first_row * (tensor.numel() // tensor.shape[0]) if first_row else 0
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), _CHUNK):
        values = bits[start : start + _CHUNK].to(torch.int64)
        places = torch.arange(len(values), dtype=torch.int64, device=bits.device).add_(first + start + 1)
        mixed = places.mul_(_GOLDEN).bitwise_xor_(values).mul_(_ODD)
        mixed.bitwise_xor_(mixed >> 29).mul_(_GOLDEN)
        total += mixed.bitwise_xor_(mixed >> 32).sum()
    return total


@torch.no_grad()
def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return 64 hex digits over names, shapes, dtypes and values; the order of names does not matter.

    Of tensors that lie over ranks, these must ask together; all get the same answer.
    """
    names = sorted(tensors)
    if not names:
        return hashlib.sha256().hexdigest()
    device = mesh.local(tensors[names[0]]).device
    sums = torch.stack([_mixed_sum(tensors[name]).to(device) for name in names])
    sums = mesh.sum_of_pieces(sums, [tensors[name] for name in names])
    total = hashlib.sha256()
    for name, value in zip(names, sums.tolist(), strict=True):
        total.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)} {value}\n".encode())
    return total.hexdigest()
