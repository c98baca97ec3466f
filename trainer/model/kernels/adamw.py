"""AdamW kernel: gradient clipping, AdamW and EMA of many tensors in one launch.

The mathematics is that of `torch.optim.AdamW` (decoupled weight decay, Loshchilov and Hutter 2019) and of
`torch.lerp`, all float32. A Triton program finds its tensor and offset in a table of addresses, because 972
launches would take the host longer than the GPU needs for all of XL/2.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model import tensors as model_tensors

TILE = (1024, 4)  # elements, warps
TILES = 8  # that one program goes through, so that it looks up its tensor once for all of them
_COLUMNS = 6  # of the table: four addresses, elements, number of the tensor's first program


@triton.jit
def pointers(address, place, WIDE: tl.constexpr):
    """Return pointers to the elements at `place`.

    WIDE: they are read four at a time, which a mask, or an address of no 16 bytes, forbids.
    """
    pointers = address.to(tl.pointer_type(tl.float32)) + place
    if WIDE:
        pointers = tl.multiple_of(pointers, 16)
    return pointers


@triton.jit
def _elements(
    weight, gradient, first, second, average, start, size,
    scale, kept, size_of_step, grow1, keep2, grow2, unbias, eps, towards,
    ELEMENTS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    place = start + tl.arange(0, ELEMENTS)
    mask = None if WIDE else place < size
    weight, average = pointers(weight, place, WIDE), pointers(average, place, WIDE)
    first, second = pointers(first, place, WIDE), pointers(second, place, WIDE)
    g = tl.load(pointers(gradient, place, WIDE), mask=mask) * scale
    p = tl.load(weight, mask=mask) * kept
    m = tl.load(first, mask=mask)
    v = tl.load(second, mask=mask)
    e = tl.load(average, mask=mask)
    m += grow1 * (g - m)
    v = keep2 * v + grow2 * g * g
    p -= size_of_step * m / (tl.sqrt(v) * unbias + eps)
    e += towards * (p - e)
    tl.store(weight, p, mask=mask)
    tl.store(first, m, mask=mask)
    tl.store(second, v, mask=mask)
    tl.store(average, e, mask=mask)


@triton.jit
def _update_kernel(
    table_ptr,  # [tensors, COLUMNS]
    gradients_ptr,  # [tensors] addresses
    owners_ptr,  # [programs] numbers of tensors
    scale,
    scale_ptr,  # [] float32 instead of `scale`, or None
    kept,  # of a weight after its decay
    size_of_step,
    grow1,  # 1 - beta1
    keep2,  # beta2
    grow2,  # 1 - beta2
    unbias,  # the root of the second moment: its bias correction
    eps,
    towards,  # 1 - the average's decay
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    program = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners_ptr + program).to(tl.int64)
    row = table_ptr + owner * COLUMNS
    weight, first, second, average = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    gradient, size = tl.load(gradients_ptr + owner), tl.load(row + 4)
    begin = (program - tl.load(row + 5)) * TILES * ELEMENTS
    aligned = (weight | gradient | first | second | average) % 16 == 0
    for tile in range(TILES):
        start = begin + tile * ELEMENTS
        if aligned & (start + ELEMENTS <= size):
            _elements(
                weight, gradient, first, second, average, start, size,
                scale, kept, size_of_step, grow1, keep2, grow2, unbias, eps, towards,
                ELEMENTS=ELEMENTS, WIDE=True,
            )  # fmt: skip
        elif start < size:
            _elements(
                weight, gradient, first, second, average, start, size,
                scale, kept, size_of_step, grow1, keep2, grow2, unbias, eps, towards,
                ELEMENTS=ELEMENTS, WIDE=False,
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Where the tensors of an update lie. Their memory must stay theirs: fill them, never replace it.

    `tensors` are weights, first and second moments and averages, of one order; Muon's are momenta alone.
    """

    tensors: tuple[tuple[Tensor, ...], ...]
    addresses: Tensor  # [tensors, kinds + 2] int64, on their device
    owners: Tensor  # [programs] int32
    tile: tuple[int, int, int]  # tiles of a program, elements of a tile, warps


def table(*tensors: Sequence[Tensor]) -> Table:
    """Return the table of several kinds of tensors, each as many, on one device.

    A row has the addresses, one of each kind, the elements and the number of the first program. The AdamW
    kernel takes weights, first and second moments and averages.

    Raises ValueError unless all are contiguous float32.
    """
    for tensor in (tensor for kind in tensors for tensor in kind):
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(f"a tensor {tuple(tensor.shape)} of {tensor.dtype} is not contiguous float32")
    weights = tensors[0]
    sizes = torch.tensor([weight.numel() for weight in weights])
    elements, warps = TILE
    programs = -(-sizes // (TILES * elements))
    places = torch.tensor([[tensor.data_ptr() for tensor in kind] for kind in tensors])
    addresses = torch.cat([places, sizes[None], (programs.cumsum(0) - programs)[None]]).T.contiguous()
    owners = torch.repeat_interleave(torch.arange(len(weights), dtype=torch.int32), programs)
    device = weights[0].device
    return Table(
        tensors=tuple(map(tuple, tensors)),
        addresses=addresses.to(device),
        owners=owners.to(device),
        tile=(TILES, elements, warps),
    )


def update(
    table: Table,
    gradients: Sequence[Tensor],
    *,
    count: int,
    scale: float | Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    ema_decay: float,
) -> None:
    """Make update number `count`, from 1, in place; a gradient counts `scale` times.

    `gradients` are float32, in the order of the table's tensors. `scale` may be a float32 scalar on their
    device, so that the host need not know it.
    """
    held = [gradient.contiguous() for gradient in gradients]
    # torch.tensor takes four times as long, and the GPU waits.
    places = torch.frombuffer(array("q", [gradient.data_ptr() for gradient in held]), dtype=torch.int64)
    beta1, beta2 = betas
    tiles, elements, warps = table.tile
    on_device = isinstance(scale, Tensor)
    _update_kernel[(len(table.owners),)](
        table.addresses,
        model_tensors.send(places, table.addresses.device),
        table.owners,
        1.0 if on_device else scale,
        scale if on_device else None,
        1 - lr * weight_decay,
        lr / (1 - beta1**count),
        1 - beta1,
        beta2,
        1 - beta2,
        (1 - beta2**count) ** -0.5,
        eps,
        1 - ema_decay,
        COLUMNS=_COLUMNS,
        TILES=tiles,
        ELEMENTS=elements,
        num_warps=warps,
    )
