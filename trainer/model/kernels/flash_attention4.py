"""FlashAttention-4 (CuTe DSL), where `pip install 'vidcurate[hopper]'` put it.

It fills a head of 72 columns up to 80, where cuDNN fills it to 128. At a width whose multiples of 16 and 32
differ, as 80 and 96 do, release 4.0.0b36 returns a wrong dQ on Hopper, in silence
(Dao-AILab/flash-attention#2896): the backward kernel adds dQ up in rows of 80 columns, and what then makes
bfloat16 of the sums reads rows of 96. `FLASH4.mended` has it read multiples of 16. In a release
that mends the fault otherwise this would be wrong in its turn. So the kernel as released is tried first, and
neither is taken unseen (`trainer.model.kernels.autotune`). dQ is summed by atomic additions: its last bits
differ from run to run.

Nothing is imported before the first call; the kernels are then compiled, some seconds in each process.
"""

import importlib
import warnings
from collections.abc import Callable
from functools import cache
from importlib import metadata
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from trainer.model.kernels.autotune import Gradients, Kept, Kernel

PACKAGE = "flash-attn-4"


def is_installed() -> bool:
    """Return whether the package is there, without importing it."""
    try:
        metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def interface() -> Any:
    """Return the package's module; whatever its import raises goes through."""
    # The compiler says of every kernel that an argument which is None here has no type.
    warnings.filterwarnings("ignore", "Argument aux_data", UserWarning)
    return importlib.import_module("flash_attn.cute.interface")


@cache
def _mended_backward() -> Callable[..., Gradients]:
    """Return the package's backward pass with one name bound anew, in a copy: the package stays as it is."""
    package = interface()
    real = package._flash_attn_bwd

    def postprocess(*given: Any, **named: Any) -> Any:
        return package._bwd_postprocess_convert(*given, **named | {"hdim_multiple_of": 16})

    names = vars(package) | {"_bwd_postprocess_convert": postprocess}
    mended = FunctionType(real.__code__, names, real.__name__, real.__defaults__, real.__closure__)
    mended.__kwdefaults__ = real.__kwdefaults__
    return mended


def forward(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Kept]:
    """Return out and the softmax's natural log of sums, [B, H, Lq]; for `lengths` see `backward`."""
    out, lse = interface()._flash_attn_fwd(q, k, v, seqused_k=lengths, return_lse=True)[:2]
    return out, (lse,)


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    kept: Kept,
    dout: Tensor,
    lengths: Tensor | None = None,
    *,
    is_mended: bool = False,
) -> Gradients:
    """Return the contiguous gradients of q, k and v.

    `lengths`, int32 [B], are the numbers of real keys. The trainer gives none: with them ours is faster
    (benchmarks/attention.py).
    """
    run = _mended_backward() if is_mended else interface()._flash_attn_bwd
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    empty = torch.empty_like if lengths is None else torch.zeros_like  # a missing key's rows are not written
    dk, dv = (empty(part, memory_format=torch.contiguous_format) for part in (k, v))
    run(q, k, v, out, dout, kept[0], seqused_k=lengths, dq=dq, dk=dk, dv=dv)
    return dq, dk, dv


def mended_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Kept, dout: Tensor, lengths: Tensor | None = None
) -> Gradients:
    """Return what `backward` does, its dQ read as it was written."""
    return backward(q, k, v, out, kept, dout, lengths, is_mended=True)


FLASH4 = Kernel("flash4", forward, backward, mended=Kernel("flash4", forward, mended_backward))
