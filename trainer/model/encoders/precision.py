"""Precision of an encoder: its dtype, whatever autocast is active around it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

import torch

from vidcurate.recipe.recipe import Recipe

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


class EncodedSpec(Recipe):
    """The form of an encoded clip.

    Training rounds to these dtypes whether clips are encoded ahead or on line.
    """

    latent_dtype: Dtype = "float32"
    """of latents, and of the posterior's variance: float32, bfloat16 or float16"""
    text_dtype: Dtype = "float32"
    """of text features: float32, bfloat16 or float16"""
    shard_bytes: ClassVar[int] = 1 << 30
    """about the size of a shard of latents or texts"""
