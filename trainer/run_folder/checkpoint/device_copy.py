"""Copies of tensors to the host that travel while the GPU goes on computing.

They run on a stream of their own and begin when all that was asked of the GPU before is done. Until they are
over their sources must not change and must not be freed, and their targets, which are page-locked, not be
read: `wait` first. From the host's own memory a copy is made at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies that were begun; any thread may ask. `event` comes after the last; None: all are made."""

    event: torch.cuda.Event | None = None
    device: int = -1  # the GPU's number

    @property
    def are_over(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Let this thread sleep until they are over."""
        if self.event is not None:
            with torch.cuda.device(self.device):  # a new thread would wake another GPU
                self.event.synchronize()


def stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a stream for copies from this device, to be kept for all of them; None for the CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


@torch.no_grad()
def begin_copy(pairs: Iterable[tuple[Tensor, Tensor]], beside: torch.cuda.Stream | None) -> Copies:
    """Begin to copy each second tensor into the first, on the stream `beside`; without one, do it."""
    if beside is None:
        for target, source in pairs:
            target.copy_(source)
        return Copies()
    beside.wait_stream(torch.cuda.current_stream(beside.device))
    with torch.cuda.stream(beside):
        for target, source in pairs:
            target.copy_(source, non_blocking=True)
        over = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        over.record()
    return Copies(over, beside.device.index)
