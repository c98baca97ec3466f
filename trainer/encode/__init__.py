"""Encoders: pixels to latents and back, captions to features. What the trainer asks of them, and which exist.

`VideoSpec` and `TextSpec` are the recipe's words for them. Both encoders here are real and need no download.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from pydantic import Field
from torch import Tensor

from trainer import noise
from trainer.encode.space_to_depth import SpaceToDepth
from trainer.encode.words import WordHash
from vidcurate.recipe import Recipe


class VideoEncoder(Protocol):
    """Video to latent and back. Without state that training changes."""

    @property
    def latent_channels(self) -> int:
        """Channels of the latent: the model's `in_channels`."""

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """Return the latent's (C, T, H, W) for a video of this size in pixels."""

    def encode(self, video: Tensor) -> Tensor:
        """Return float32 [B, C, T', H', W'] of `video` [B, 3, T, H, W]: uint8, or float in [-1, 1].

        Scaled as the model trains on it; of an encoder with a posterior, the posterior's mean.
        """

    def posterior(self, video: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean, as `encode`, and variance, both float32 [B, C, T', H', W'] in the scaled space.

        The variance of an encoder without a posterior is 0.
        """

    def decode(self, latent: Tensor, *, num_frames: int) -> Tensor:
        """Return float32 video [B, 3, num_frames, H, W], nominally in [-1, 1], for latents of it."""


class TextEncoder(Protocol):
    """Captions to features. The null caption of guidance is the model's own (`y_embedder.y_embedding`)."""

    @property
    def caption_channels(self) -> int:
        """Width of the features: the model's `caption_channels`."""

    @property
    def model_max_length(self) -> int:
        """Most tokens of a caption; the rest is cut off."""

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return features [B, 1, L, C], L = model_max_length, and bool mask [B, L], True first.

        Features have the dtype that the encoder computes in: float32, or its spec's `dtype`.

        Every row of the mask has at least one True, an empty caption's too.
        """


class VideoSpec(Recipe):
    """`space_to_depth`: blocks of temporal x spatial x spatial pixels become channels (see its file)."""

    kind: Literal["space_to_depth"] = "space_to_depth"
    """the encoder: space_to_depth"""
    spatial: int = Field(default=4, ge=1, le=32)
    """pixels of a block's side that become channels"""
    temporal: int = Field(default=1, ge=1, le=16)
    """frames that become channels"""


class TextSpec(Recipe):
    """`words`: one hashed vector per word and, with `pairs`, per pair of neighbours (see its file)."""

    kind: Literal["words"] = "words"
    """the encoder: words"""
    caption_channels: int = Field(default=64, ge=8)
    """width of a word's vector"""
    model_max_length: int = Field(default=32, ge=2)
    """most tokens of a caption"""
    pairs: bool = True
    """add a token for each pair of neighbouring words, as attention does not see their order"""


def draw(mean: Tensor, variance: Tensor, *, seed: int, step: int, clip_ids: Sequence[str]) -> Tensor:
    """Return one draw from each clip's posterior [B, C, T', H', W'], row b keyed by (seed, step, clip_ids[b]).

    The same numbers whether mean and variance were just encoded or come from a shard.
    """
    noises = noise.normal(seed, "posterior", step, clip_ids, tuple(mean.shape[1:])).to(mean.device)
    return mean.float() + variance.float().sqrt() * noises


def video_encoder(spec: VideoSpec) -> VideoEncoder:
    """Return the encoder that the recipe names."""
    return SpaceToDepth(spatial=spec.spatial, temporal=spec.temporal)


def text_encoder(spec: TextSpec) -> TextEncoder:
    """Return the encoder that the recipe names."""
    return WordHash(
        caption_channels=spec.caption_channels, model_max_length=spec.model_max_length, pairs=spec.pairs
    )
