"""Attention within a frame and to captions, forward and backward, by the fastest kernel for its lengths.

Two can do it on a GPU: cuDNN's, and the one of `trainer.kernels.flash`, which alone takes captions of
different lengths. Which is faster depends on the lengths (docs/decisions.md), so the first call with new ones
times both, forward and backward, and keeps the winner for the process; `news` tells what was found.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

from trainer.kernels.flash import flash_attention, flash_attention_backward

TIMED, WARM = 5, 2

Kept = tuple[Tensor, ...]  # what a kernel wants again in the backward pass, beside its input and output


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The milliseconds of forward and backward by either kernel, for so many sequences (times heads)."""

    heads: int
    queries: int
    keys: int
    cudnn_ms: float | None  # None where it cannot
    own_ms: float

    @property
    def takes_cudnn(self) -> bool:
        """Whether cuDNN's is the faster."""
        return self.cudnn_ms is not None and self.cudnn_ms <= self.own_ms


_choices: dict[tuple[int, int, int], Choice] = {}
_untold: list[Choice] = []


def news() -> list[Choice]:
    """Return the choices made since this was last asked."""
    told = list(_untold)
    _untold.clear()
    return told


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Kept]:
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    out, lse, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True
    )
    return out.transpose(1, 2).contiguous(), (lse, seed, offset)


def _cudnn_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Kept, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    lse, seed, offset = kept
    lengths = q.shape[1], k.shape[1]
    q, k, v, out, dout = (part.transpose(1, 2) for part in (q, k, v, out, dout))
    gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        dout, q, k, v, out, lse, seed, offset, None, None, None, *lengths, 0.0, False
    )
    dq, dk, dv = (part.transpose(1, 2).contiguous() for part in gradients)
    return dq, dk, dv


def _milliseconds(q: Tensor, k: Tensor, v: Tensor, *, cudnn: bool) -> float:
    """Return the least time of a few runs, forward and backward."""
    times = []
    for _ in range(WARM + TIMED):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        out, kept = _cudnn(q, k, v) if cudnn else _own(q, k, v, None)
        if cudnn:
            _cudnn_backward(q, k, v, out, kept, out)
        else:
            flash_attention_backward(q, k, v, None, out, kept[0], out)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(min(times[WARM:]))


def _own(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> tuple[Tensor, Kept]:
    out, lse = flash_attention(q, k, v, lengths)
    return out, (lse,)


def _choose(q: Tensor, k: Tensor, v: Tensor) -> Choice:
    parts = [part.transpose(1, 2) for part in (q, k, v)]
    can = can_use_cudnn_attention(SDPAParams(parts[0], parts[1], parts[2], None, 0.0, False, False))
    with torch.cuda.device(q.device):
        return Choice(
            heads=q.shape[0] * q.shape[2],
            queries=q.shape[1],
            keys=k.shape[1],
            cudnn_ms=_milliseconds(q, k, v, cudnn=True) if can else None,
            own_ms=_milliseconds(q, k, v, cudnn=False),
        )


def _takes_cudnn(q: Tensor, k: Tensor, v: Tensor) -> bool:
    if not q.is_cuda or torch.cuda.get_device_capability(q.device) < (9, 0):
        return False  # what cuDNN does at heads of 72 was looked at on Hopper
    key = (q.shape[0] * q.shape[2], q.shape[1], k.shape[1])
    if key not in _choices:
        _choices[key] = _choose(q, k, v)
        _untold.append(_choices[key])
    return _choices[key].takes_cudnn


def attend(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Kept]:
    """Return out [B, Lq, H, D], and what the backward pass wants, for q [B, Lq, H, D], k and v [B, Lk, H, D].

    The heads of a token lie side by side. `lengths`, int32 [B], are the numbers of real keys; None: all Lk.
    """
    if lengths is None and _takes_cudnn(q, k, v):
        return _cudnn(q, k, v)
    return _own(q, k, v, lengths)


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, out: Tensor, kept: Kept, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the contiguous gradients of q, k and v, for contiguous `dout` and what `attend` returned."""
    if len(kept) > 1:  # cuDNN keeps seed and offset besides the sums
        return _cudnn_backward(q, k, v, out, kept, dout)
    return flash_attention_backward(q, k, v, lengths, out, kept[0], dout)
