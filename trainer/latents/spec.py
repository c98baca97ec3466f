"""What latents and text features are kept in. It holds on line as well, so that both train the same."""

from typing import Annotated

from pydantic import Field

from trainer.encode.precision import Dtype
from vidcurate.recipe import Recipe


class EncodedSpec(Recipe):
    """The form of an encoded clip.

    Training rounds to these dtypes whether clips are encoded ahead or on line. `shard_bytes` changes no
    number.
    """

    latent_dtype: Dtype = "float32"
    """of latents, and of the posterior's variance: float32, bfloat16 or float16"""
    text_dtype: Dtype = "float32"
    """of text features: float32, bfloat16 or float16"""
    shard_bytes: Annotated[int, Field(ge=1 << 16)] = 1 << 30
    """about the size of a shard of latents or texts"""
