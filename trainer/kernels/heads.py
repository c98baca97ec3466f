"""What the attention kernels do to the rows of one head: load, store, root mean square, rotation."""

import triton
import triton.language as tl


@triton.jit
def load_rows(pointer, row, c1, c2, stride, count, WIDTH: tl.constexpr):
    """Return rows below `count` as (first columns | other columns), zeros elsewhere."""
    inside = row[:, None] < count
    x1 = tl.load(pointer + row[:, None] * stride + c1[None], mask=inside, other=0.0)
    x2 = tl.load(pointer + row[:, None] * stride + c2[None], mask=inside & (c2[None] < WIDTH), other=0.0)
    return x1, x2


@triton.jit
def store_rows(pointer, x1, x2, row, c1, c2, stride, count, WIDTH: tl.constexpr):
    """Store (first columns | other columns) to the rows below `count`, in the pointer's dtype."""
    inside = row[:, None] < count
    kind = pointer.dtype.element_ty
    tl.store(pointer + row[:, None] * stride + c1[None], x1.to(kind), mask=inside)
    tl.store(pointer + row[:, None] * stride + c2[None], x2.to(kind), mask=inside & (c2[None] < WIDTH))


@triton.jit
def inverse_rms(x1, x2, WIDTH: tl.constexpr, EPS: tl.constexpr):
    """Return 1 / rms of each row of (x1 | x2), whose columns beyond WIDTH are zero."""
    square = tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)
    return 1.0 / tl.sqrt(square / WIDTH + EPS)


@triton.jit
def turn(x, cosine, sine, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Turn neighbouring pairs of columns by their angle; with -sine, turn them back."""
    a, b = tl.split(tl.reshape(x, (ROWS, COLUMNS // 2, 2)))
    return x * cosine + tl.reshape(tl.join(-b, a), (ROWS, COLUMNS)) * sine
