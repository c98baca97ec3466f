"""The dtype that an encoder computes in, whatever is on around it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@contextmanager
def own_precision(device: torch.device) -> Iterator[None]:
    """No gradients and no autocast."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield
