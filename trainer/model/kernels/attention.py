"""Attention, spatial and to captions: choose the fastest kernel for the lengths.

There are three kernels on a GPU, forward and backward: cuDNN's; FlashAttention-4, on Hopper and where
installed (`trainer.model.kernels.flash_attention4`); and `trainer.model.kernels.flash_attention`, the only
one for captions of different lengths. Which is the fastest depends on the lengths (docs/decisions.md), so the
first call with new lengths compares and times them, forward and backward, and keeps the winner for the
process (`trainer.model.kernels.autotune`); `news` returns new choices for the log.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

from trainer.model.kernels import flash_attention4
from trainer.model.kernels.autotune import Choice, Gradients, Kept, Kernel, choose
from trainer.model.kernels.flash_attention import Ragged, flash_attention, flash_attention_backward

Key = tuple[int, int, int, int, torch.dtype]  # sequences times heads, queries, keys, a head's width

_taken: dict[Key, Kernel] = {}
_unreported: list[Choice] = []
_refused: set[str] = set()  # names of kernels


def news() -> list[Choice]:
    """Return the choices made since this was last asked."""
    reported = list(_unreported)
    _unreported.clear()
    return reported


def first_refusals(choices: Iterable[Choice]) -> dict[str, str]:
    """Return why kernels were not taken, by name, of those that this process has not returned before."""
    reasons: dict[str, str] = {}
    for choice in choices:
        for name, why in choice.kept_out.items():
            if name not in _refused:
                reasons[name] = f"first at {choice.queries} queries and {choice.keys} keys: {why}"
                _refused.add(name)
    return reasons


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Kept]:
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    out, lse, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True
    )
    return out.transpose(1, 2).contiguous(), (lse, seed, offset)


def _cudnn_backward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Kept, dout: Tensor) -> Gradients:
    lse, seed, offset = kept
    lengths = q.shape[1], k.shape[1]
    q, k, v, out, dout = (part.transpose(1, 2) for part in (q, k, v, out, dout))
    gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        dout, q, k, v, out, lse, seed, offset, None, None, None, *lengths, 0.0, False
    )
    dq, dk, dv = (part.transpose(1, 2).contiguous() for part in gradients)
    return dq, dk, dv


def _own(q: Tensor, k: Tensor, v: Tensor, ragged: Ragged | None = None) -> tuple[Tensor, Kept]:
    out, lse = flash_attention(q, k, v, ragged)
    return out, (lse,)


def _own_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, kept: Kept, dout: Tensor, ragged: Ragged | None = None
) -> Gradients:
    return flash_attention_backward(q, k, v, ragged, out, kept[0], dout)


OWN = Kernel("own", _own, _own_backward)
CUDNN = Kernel("cudnn", _cudnn, _cudnn_backward)


def others(q: Tensor, k: Tensor, v: Tensor) -> list[Kernel]:
    """Return the kernels beside ours that this machine has for captions or frames of one length."""
    parts = [part.transpose(1, 2) for part in (q, k, v)]
    can = can_use_cudnn_attention(SDPAParams(parts[0], parts[1], parts[2], None, 0.0, False, False))
    is_hopper = torch.cuda.get_device_capability(q.device)[0] == 9
    return [CUDNN] * can + [flash_attention4.FLASH4] * (is_hopper and flash_attention4.is_installed())


def _kernel(q: Tensor, k: Tensor, v: Tensor) -> Kernel:
    """Return the kernel for these lengths: the same one in the backward pass as in the forward pass."""
    if not q.is_cuda or torch.cuda.get_device_capability(q.device) < (9, 0):
        return OWN  # what cuDNN does at heads of 72 was looked at on Hopper
    key = (q.shape[0] * q.shape[2], q.shape[1], k.shape[1], q.shape[3], q.dtype)
    if key not in _taken:
        with torch.cuda.device(q.device):
            _taken[key], choice = choose(q, k, v, trusted=OWN, others=others(q, k, v))
        _unreported.append(choice)
    return _taken[key]


def attend(q: Tensor, k: Tensor, v: Tensor, ragged: Ragged | None = None) -> tuple[Tensor, Kept]:
    """Return out [B, Lq, H, D], and what the backward pass wants, for q [B, Lq, H, D], k and v [B, Lk, H, D].

    The heads of a token lie side by side. Keys of different lengths are rows [P, H, D], and `ragged` says
    whose they are.
    """
    if ragged is not None:
        return _own(q, k, v, ragged)
    return _kernel(q, k, v).forward(q, k, v)


def attend_backward(
    q: Tensor, k: Tensor, v: Tensor, ragged: Ragged | None, out: Tensor, kept: Kept, dout: Tensor
) -> Gradients:
    """Return the contiguous gradients of q, k and v, for contiguous `dout` and what `attend` returned."""
    if ragged is not None:
        return _own_backward(q, k, v, out, kept, dout, ragged)
    return _kernel(q, k, v).backward(q, k, v, out, kept, dout)
