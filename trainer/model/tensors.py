"""Send tensors to a device without waiting for the copy."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; the host does not wait for what the device has still to do.

    A copy of the CPU's memory waits for all that was given to a GPU before, unless the memory is page-locked.
    """
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
