"""Copy tensors to a device, and back, without waiting for the copy."""

from collections.abc import Callable

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; the host does not wait for what the device has still to do.

    A copy of the CPU's memory waits for all that was given to a GPU before, unless the memory is page-locked.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def fetch(tensor: Tensor) -> Callable[[], Tensor]:
    """Start the copy of a tensor to the CPU; the returned function waits for it and returns the copy.

    Work that the device is given after this call runs while the host waits.
    """
    if tensor.device.type != "cuda":
        copied = tensor.clone()
        return lambda: copied
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def result() -> Tensor:
        done.synchronize()
        return host

    return result
