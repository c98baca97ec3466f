"""Device-to-host copies of tensors, asynchronous on a separate CUDA stream.

The copies start when the GPU's earlier work is done. Until they end, the sources must not change or be freed,
and nobody may read the page-locked targets: call `wait` first. Copies from host memory are synchronous.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies in progress; any thread may call. `event` follows the last copy; None: all are done."""

    event: torch.cuda.Event | None = None
    device: int = -1  # the GPU's number

    @property
    def are_over(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Block this thread until the copies are done."""
        if self.event is not None:
            with torch.cuda.device(self.device):  # a new thread would initialise another GPU
                self.event.synchronize()


def stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a stream for copies from this device, to be reused; None for the CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


@torch.no_grad()
def begin_copy(pairs: Iterable[tuple[Tensor, Tensor]], beside: torch.cuda.Stream | None) -> Copies:
    """Start to copy each second tensor into the first on the stream `beside`; without one, copy now."""
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
