"""Tensors of decoded frames: the only loader file that imports torch."""

import numpy as np
import torch
from numpy.typing import NDArray

from vidcurate.loader.loader import MicroBatch


def pixels(
    batch: MicroBatch, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the frames of a micro-batch as (B, 3, T, H, W) in [−1, 1], on `device`.

    `as_pixels` copies the bytes and converts them on the device: a quarter of the traffic.
    """
    return as_pixels(batch.frames, device, dtype)


def as_pixels(
    frames: NDArray[np.uint8], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return uint8 frames (B, T, H, W, 3) as `pixels` does; each clip's result is independent of others."""
    numbers = torch.from_numpy(frames).to(device).permute(0, 4, 1, 2, 3)
    numbers = numbers.to(torch.float32, memory_format=torch.contiguous_format)
    return numbers.div_(127.5).sub_(1.0).to(dtype)
