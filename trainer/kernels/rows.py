"""One row of channels, whose number is no power of two, as (first columns | other columns)."""

import triton
import triton.language as tl


@triton.jit
def load_row(start, i1, i2, m2):
    """Return the row at `start` as float32, zeros beyond the width, where m2 ends."""
    first = tl.load(start + i1).to(tl.float32)
    return first, tl.load(start + i2, mask=m2, other=0.0).to(tl.float32)


@triton.jit
def store_row(start, x1, x2, i1, i2, m2):
    """Store the row to `start`, in its dtype."""
    kind = start.dtype.element_ty
    tl.store(start + i1, x1.to(kind))
    tl.store(start + i2, x2.to(kind), mask=m2)
