"""Attention kernel choice: time the kernels that match a trusted one, keep one.

A kernel of a library may be wrong in silence at one width of heads (Dao-AILab/flash-attention#2896), so each
is held against the trusted one, on the first tensors of their lengths and a random gradient, before its time
counts. A kernel that raises anything is excluded; the training continues without it.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

TOLERANCE = 0.02  # of a result's 2-norm; two right kernels differ by 0.001 to 0.004 in bfloat16, a fault by 1
RESULTS = ("out", "dq", "dk", "dv")

Kept = tuple[Tensor, ...]  # what a kernel wants again in the backward pass, beside its input and output
Gradients = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Attention for q [B, Lq, H, D], k and v [B, Lk, H, D], the heads of a token side by side.

    `forward` takes q, k and v, and returns a contiguous out [B, Lq, H, D] and what `backward` wants beside
    them. `backward` takes q, k, v, out, that, and the contiguous gradient of out; it returns the contiguous
    gradients of q, k and v. `mended`: what to try where this one's numbers are wrong.
    """

    name: str
    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Kept]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Kept, Tensor], Gradients]
    mended: "Kernel | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was found for so many sequences (times heads), queries and keys.

    `milliseconds`: of forward and backward, by each kernel that is right. `kept_out`: why another is not.
    """

    heads: int
    queries: int
    keys: int
    milliseconds: dict[str, float]
    kept_out: dict[str, str]

    @property
    def kernel(self) -> str:
        """The name of the one that is taken, the fastest."""
        return min(self.milliseconds, key=lambda name: self.milliseconds[name])

    def facts(self) -> dict[str, Any]:
        """Return it as the event `attention_kernel` has it."""
        times = {f"{name}_ms": round(value, 4) for name, value in self.milliseconds.items()}
        lengths = {"heads": self.heads, "queries": self.queries, "keys": self.keys}
        return lengths | {"kernel": self.kernel} | times | {"kept_out": self.kept_out}


def both_passes(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    """Return out and the gradients of q, k and v."""
    out, kept = kernel.forward(q, k, v)
    return out, *kernel.backward(q, k, v, out, kept, dout)


def distance(one: Tensor, other: Tensor) -> float:
    """Return how far `one` is from `other`, relative to the 2-norm of `other`; 0 where both are zero."""
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in (one - other, other)]
    off, size = (float(norm) for norm in norms)
    return 0.0 if off == 0 else off / size if size else float("inf")


def _faults(kernel: Kernel, given: Sequence[Tensor], trusted: Sequence[Tensor]) -> str:
    """Return which results are not the trusted ones, and by how much; empty if all are."""
    q, k, v, dout = given
    found = both_passes(kernel, q, k, v, dout)
    far = {name: distance(one, other) for name, one, other in zip(RESULTS, found, trusted, strict=True)}
    wrong = [f"{name} by {off:.3g}" for name, off in far.items() if not off <= TOLERANCE]
    return f"wrong, of its norm: {', '.join(wrong)}" if wrong else ""


def right_form(
    kernel: Kernel, given: Sequence[Tensor], trusted: Sequence[Tensor]
) -> tuple[Kernel | None, str]:
    """Return the kernel, or its mended form, whichever is right, or None and why neither is.

    `given` are q, k, v and the gradient of out; `trusted` what the trusted kernel's `both_passes` made of it.
    """
    why: list[str] = []
    form: Kernel | None = kernel
    while form is not None:
        try:
            fault = _faults(form, given, trusted)
        except Exception as error:  # noqa: BLE001 - of any library: it is why the kernel is not taken
            fault = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            return None, "; mended: ".join([*why, fault])
        if not fault:
            return form, ""
        why.append(fault)
        form = form.mended
    return None, "; mended: ".join(why)


TIMED, WARM = 5, 1
AHEAD_CYCLES = 4_000_000  # about 2 ms, in which the host has handed over all ways


def milliseconds(ways: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median time of each way, of a few rounds in which each has its turn.

    The GPU is kept busy until all ways of a round wait in its stream: else the host's time for a call would
    count, which is hidden in a training step.
    """
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(WARM + TIMED):
        marks = []
        torch.cuda._sleep(AHEAD_CYCLES)
        for way in ways:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            way()
            end.record()
            marks.append((begin, end))
        torch.cuda.synchronize()
        for kept, (begin, end) in zip(times, marks, strict=True):
            kept.append(begin.elapsed_time(end))
    return [statistics.median(kept[WARM:]) for kept in times]


def choose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    trusted: Kernel,
    others: Sequence[Kernel],
    clock: Callable[[Sequence[Callable[[], object]]], list[float]] = milliseconds,
) -> tuple[Kernel, Choice]:
    """Return the fastest right kernel, and what was found. `clock` returns the milliseconds of each run.

    The random gradient comes from a generator of its own: no other draw changes. No result is kept.
    """
    generator = torch.Generator(q.device).manual_seed(0)
    dout = torch.randn(q.shape, generator=generator, device=q.device, dtype=q.dtype)
    results = both_passes(trusted, q, k, v, dout)
    right, kept_out = {trusted.name: trusted}, {}
    for kernel in others:
        form, why = right_form(kernel, (q, k, v, dout), results)
        if form is None:
            kept_out[kernel.name] = why
        else:
            right[kernel.name] = form
    del results
    times = clock([partial(both_passes, form, q, k, v, dout) for form in right.values()])
    choice = Choice(
        heads=q.shape[0] * q.shape[2],
        queries=q.shape[1],
        keys=k.shape[1],
        milliseconds=dict(zip(right, times, strict=True)),
        kept_out=kept_out,
    )
    return right[choice.kernel], choice
