"""Muon kernels: momentum, stacking of matrices, update of weights and average.

An update reads and writes each number as few times as its order permits: `lead` makes the momentum and the
look-ahead in one pass, `orthogonalised` the norms and the orthogonal matrices (in bfloat16 on a GPU),
`apply` weight decay, update and average. All float32 but for the orthogonal matrices. A program finds its
tensor in a table of addresses, as the AdamW kernel does.
"""

from array import array
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.model import tensors as model_tensors
from trainer.model.kernels import newton_schulz
from trainer.model.kernels.adamw import Table, pointers

TILE = (32, 64)  # rows and columns of a program's tile of a matrix
SQUARES = (1024, 8)  # numbers that a program squares at once, and how many times
EPS = 1e-7  # added to a norm


@triton.jit
def _lead_elements(
    momentum, gradient, start, size, scale, towards, ahead, ELEMENTS: tl.constexpr, WIDE: tl.constexpr
):
    place = start + tl.arange(0, ELEMENTS)
    mask = None if WIDE else place < size
    momentum, gradient = pointers(momentum, place, WIDE), pointers(gradient, place, WIDE)
    m = tl.load(momentum, mask=mask)
    g = tl.load(gradient, mask=mask) * scale
    m = tl.fma(towards, g - m, m)
    tl.store(momentum, m, mask=mask)
    tl.store(gradient, tl.fma(ahead, m - g, g), mask=mask)


@triton.jit
def _lead_kernel(
    table_ptr,  # [tensors, COLUMNS]: the momentum's address first, elements and first program last
    gradients_ptr,  # [tensors] addresses
    owners_ptr,  # [programs] numbers of tensors
    scale,
    scale_ptr,  # [] float32 instead of `scale`, or None
    towards,  # 1 - what the momentum keeps
    ahead,  # what the momentum keeps
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    program = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners_ptr + program).to(tl.int64)
    row = table_ptr + owner * COLUMNS
    momentum, size, gradient = tl.load(row), tl.load(row + COLUMNS - 2), tl.load(gradients_ptr + owner)
    begin = (program - tl.load(row + COLUMNS - 1)) * TILES * ELEMENTS
    aligned = (momentum | gradient) % 16 == 0
    for tile in range(TILES):
        start = begin + tile * ELEMENTS
        if aligned & (start + ELEMENTS <= size):
            _lead_elements(
                momentum, gradient, start, size, scale, towards, ahead, ELEMENTS=ELEMENTS, WIDE=True
            )
        elif start < size:
            _lead_elements(
                momentum, gradient, start, size, scale, towards, ahead, ELEMENTS=ELEMENTS, WIDE=False
            )


def lead(table: Table, gradients: Sequence[Tensor], *, kept: float, scale: float | Tensor) -> None:
    """Update momenta with `scale` times the gradients, and write Nesterov's look-ahead over the gradients.

    `table` is `adamw.table(momenta, …)`; the gradients are contiguous float32, in its order.
    """
    tiles, elements, warps = table.tile
    on_device = isinstance(scale, Tensor)
    _lead_kernel[(len(table.owners),)](
        table.addresses,
        _addresses(gradients),
        table.owners,
        1.0 if on_device else scale,
        scale if on_device else None,
        1 - kept,
        kept,
        COLUMNS=table.addresses.shape[1],
        TILES=tiles,
        ELEMENTS=elements,
        num_warps=warps,
    )


def _addresses(*tensors: Sequence[Tensor]) -> Tensor:
    """Return int64 [kinds x tensors] addresses on the tensors' device, without waiting for it."""
    numbers = array("q", [tensor.data_ptr() for kind in tensors for tensor in kind])
    return model_tensors.send(torch.frombuffer(numbers, dtype=torch.int64), tensors[0][0].device)


@triton.jit
def _squares_kernel(
    addresses_ptr,  # [n] addresses of float32 matrices
    out_ptr,  # [n, programs]
    size,
    TILES: tl.constexpr,
    ELEMENTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    number = tl.program_id(1)
    address = tl.load(addresses_ptr + number)
    total = tl.zeros((ELEMENTS,), tl.float32)
    for tile in range(TILES):
        place = (tl.program_id(0) * TILES + tile) * ELEMENTS + tl.arange(0, ELEMENTS)
        x = tl.load(pointers(address, place, WIDE), mask=place < size, other=0.0)
        total = tl.fma(x, x, total)
    tl.store(out_ptr + number * tl.num_programs(0) + tl.program_id(0), tl.sum(total))


@triton.jit
def _places(ROWS: tl.constexpr, COLUMNS: tl.constexpr, columns):
    """Return the rows [ROWS, 1] and columns [1, COLUMNS] of this program's tile."""
    across = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    return row[:, None], column[None]


@triton.jit
def _grid_of(address, place, WIDE: tl.constexpr):
    """Return pointers to float32 elements at `place` [rows, columns]."""
    found = address.to(tl.pointer_type(tl.float32)) + place
    if WIDE:
        found = tl.multiple_of(found, (1, 16))
    return found


@triton.jit
def _stack_kernel(
    addresses_ptr,  # [n] addresses of float32 matrices [rows, columns]
    squares_ptr,  # [n, count]
    out_ptr,  # [n, rows, columns], or [n, columns, rows] if TURNED
    rows,
    columns,
    count,
    eps,
    TURNED: tl.constexpr,
    WIDE: tl.constexpr,
    COUNT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, COUNT)
    squares = tl.load(squares_ptr + number * count + part, mask=part < count, other=0.0)
    norm = tl.sqrt(tl.sum(squares)) + eps
    row, column = _places(ROWS, COLUMNS, columns)
    mask = (row < rows) & (column < columns)
    x = tl.load(_grid_of(tl.load(addresses_ptr + number), row * columns + column, WIDE), mask=mask, other=0.0)
    x = (x / norm).to(out_ptr.dtype.element_ty)
    out_ptr += number * rows * columns
    if TURNED:
        inside = (tl.trans(column) < columns) & (tl.trans(row) < rows)
        tl.store(out_ptr + tl.trans(column) * rows + tl.trans(row), tl.trans(x), mask=inside)
    else:
        tl.store(out_ptr + row * columns + column, x, mask=mask)


def _tile_of(rows: int, columns: int) -> tuple[int, int]:
    most, widest = TILE
    return min(most, triton.next_power_of_2(rows)), min(widest, triton.next_power_of_2(columns))


def _is_wide(columns: int, *tensors: Sequence[Tensor]) -> bool:
    """Return whether rows of so many columns are read four elements at a time."""
    return columns % 4 == 0 and all(tensor.data_ptr() % 16 == 0 for kind in tensors for tensor in kind)


def _stack(matrices: Sequence[Tensor], out: Tensor) -> None:
    """Write float32 matrices [r, c], divided by their norms, to `out` [n, r, c], turned over if r > c."""
    rows, columns = matrices[0].shape
    wide, addresses = _is_wide(columns, matrices), _addresses(matrices)
    elements, tiles = SQUARES
    count = triton.cdiv(rows * columns, elements * tiles)
    squares = torch.empty(len(matrices), count, device=addresses.device)
    _squares_kernel[(count, len(matrices))](
        addresses, squares, rows * columns, TILES=tiles, ELEMENTS=elements, WIDE=wide
    )
    tile = _tile_of(rows, columns)
    _stack_kernel[(triton.cdiv(rows, tile[0]) * triton.cdiv(columns, tile[1]), len(matrices))](
        addresses,
        squares,
        out,
        rows,
        columns,
        count,
        EPS,
        TURNED=rows > columns,
        WIDE=wide,
        COUNT=triton.next_power_of_2(count),
        ROWS=tile[0],
        COLUMNS=tile[1],
    )


def orthogonalised(
    matrices: Sequence[Tensor],
    *,
    steps: int,
    coefficients: tuple[float, float, float],
    dtype: torch.dtype,
    most_elements: int,
) -> list[Tensor]:
    """Return the nearly orthogonal matrix of each contiguous float32 matrix [r, c], in `dtype`.

    Matrices of one shape are computed together, high ones turned over, at most `most_elements` at once.
    Results of high matrices are `.mT` of contiguous tensors.
    """
    found: dict[int, Tensor] = {}
    groups: dict[tuple[int, int], list[int]] = {}
    for number, one in enumerate(matrices):
        groups.setdefault((min(one.shape), max(one.shape)), []).append(number)
    for (height, width), numbers in groups.items():
        most = max(1, most_elements // (height * width))
        for first in range(0, len(numbers), most):
            part = numbers[first : first + most]
            high = [number for number in part if matrices[number].shape[0] > height]
            other = [number for number in part if matrices[number].shape[0] == height]
            x = matrices[0].new_empty(len(part), height, width, dtype=dtype)
            for chosen, out in ((high, x[: len(high)]), (other, x[len(high) :])):
                if chosen:
                    _stack([matrices[number] for number in chosen], out)
            done = newton_schulz.orthogonalised(x, steps, coefficients).unbind()
            found |= {number: one.mT for number, one in zip(high, done, strict=False)}
            found |= dict(zip(other, done[len(high) :], strict=True))
    return [found[number] for number in range(len(matrices))]


@triton.jit
def _apply_kernel(
    addresses_ptr,  # [3, n] addresses of weights and averages, float32, and of updates
    like_ptr,  # None, in the updates' dtype
    rows_ptr,  # [n]
    count,
    columns,
    update_rows,  # length of an update's row if TURNED
    kept,  # of a weight after its decay
    step,  # what an update counts
    towards,  # 1 - the average's decay
    TURNED: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number = tl.program_id(1)
    rows = tl.load(rows_ptr + number)
    row, column = _places(ROWS, COLUMNS, columns)
    mask = (row < rows) & (column < columns)
    weight = _grid_of(tl.load(addresses_ptr + number), row * columns + column, WIDE)
    average = _grid_of(tl.load(addresses_ptr + count + number), row * columns + column, WIDE)
    update = tl.load(addresses_ptr + 2 * count + number).to(like_ptr.dtype)
    if TURNED:
        place = tl.trans(column) * update_rows + tl.trans(row)
        inside = (tl.trans(column) < columns) & (tl.trans(row) < rows)
        x = tl.trans(tl.load(update + place, mask=inside, other=0.0))
    else:
        x = tl.load(update + row * columns + column, mask=mask, other=0.0)
    p = tl.load(weight, mask=mask, other=0.0) * kept
    e = tl.load(average, mask=mask, other=0.0)
    p = tl.fma(x.to(tl.float32), step, p)
    tl.store(weight, p, mask=mask)
    tl.store(average, tl.fma(towards, p - e, e), mask=mask)


def apply(
    weights: Sequence[Tensor],
    averages: Sequence[Tensor],
    updates: Sequence[Tensor],
    steps: Sequence[float],
    *,
    kept: float,
    ema_decay: float,
) -> None:
    """Make weight = kept·weight + step·update, and average the weights, in place.

    Weights and averages [r, c] are contiguous float32. Updates have their shapes and one dtype; each is
    contiguous, or `.mT` of a contiguous tensor.
    """
    groups: dict[tuple[float, int, int | None], list[int]] = {}
    for number, (weight, update) in enumerate(zip(weights, updates, strict=True)):
        rows, columns = weight.shape
        if rows and columns:
            turned_rows = None if update.is_contiguous() else rows
            groups.setdefault((steps[number], columns, turned_rows), []).append(number)
    for (step, columns, turned_rows), numbers in groups.items():
        p, e, x = ([kind[number] for number in numbers] for kind in (weights, averages, updates))
        heights = [weight.shape[0] for weight in p]
        tile = _tile_of(max(heights), columns)
        _apply_kernel[(triton.cdiv(max(heights), tile[0]) * triton.cdiv(columns, tile[1]), len(p))](
            _addresses(p, e, x),
            x[0],
            model_tensors.send(torch.tensor(heights, dtype=torch.int32), p[0].device),
            len(p),
            columns,
            turned_rows or 0,
            kept,
            step,
            1 - ema_decay,
            TURNED=turned_rows is not None,
            WIDE=_is_wide(columns, p, e),
            ROWS=tile[0],
            COLUMNS=tile[1],
        )
