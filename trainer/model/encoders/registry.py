"""Encoder registry: video encoders (pixels, latents) and text encoders (captions).

`VideoSpec` and `TextSpec` are their recipe sections. `space_to_depth` and `words` are real and need no
download; `vae` and `t5` are those of the published models. Sizes are known without weights and without the
libraries that run the encoders.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Protocol

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from trainer.model import rng, tensors
from trainer.model.encoders.space_to_depth import SpaceToDepth, SpaceToDepthSpec
from trainer.model.encoders.t5 import T5, T5Spec
from trainer.model.encoders.vae import VaeSpec, VideoVae
from trainer.model.encoders.word_hash import WordHash, WordsSpec


class VideoEncoder(Protocol):
    """Video to latent and back. Without state that training changes."""

    @property
    def latent_channels(self) -> int:
        """Channels of the latent: the model's `in_channels`."""

    @property
    def device_bytes(self) -> int:
        """Bytes that its weights take on a device now; 0 before they are loaded."""

    def predicted_bytes(self) -> int | None:
        """Bytes that its weights will take on a device; None where its source cannot be read here.

        Nothing is loaded or fetched for it.
        """

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

    @property
    def device_bytes(self) -> int:
        """Bytes that its weights take on a device now; 0 before they are loaded."""

    def predicted_bytes(self) -> int | None:
        """Bytes that its weights will take on a device; None where its source cannot be read here.

        Nothing is loaded or fetched for it.
        """

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return features [B, 1, L, C], L = model_max_length, and bool mask [B, L], True first.

        Features have the dtype that the encoder computes in: float32, or its spec's `dtype`.

        Every row of the mask has at least one True, an empty caption's too.
        """


def _kind(*kinds: str) -> BeforeValidator:
    """Check the `kind` of a specification; the first is that of one which has none."""

    def check(value: object) -> object:
        if not isinstance(value, dict):
            return value
        kind = value.get("kind", kinds[0])
        if kind not in kinds:
            raise ValueError(f"no encoder is of kind {kind}; the kinds are {', '.join(kinds)}")
        return {"kind": kind, **value}

    return BeforeValidator(check)


VideoSpec = Annotated[SpaceToDepthSpec | VaeSpec, Field(discriminator="kind"), _kind("space_to_depth", "vae")]
TextSpec = Annotated[WordsSpec | T5Spec, Field(discriminator="kind"), _kind("words", "t5")]


def draw(mean: Tensor, variance: Tensor, *, seed: int, step: int, clip_ids: Sequence[str]) -> Tensor:
    """Return one draw from each clip's posterior, [B, C, T', H', W']; row b is keyed by its clip, seed, step.

    The same numbers whether mean and variance were just encoded or come from a shard.
    """
    noises = tensors.send(rng.normal(seed, "posterior", step, clip_ids, tuple(mean.shape[1:])), mean.device)
    return mean.float() + variance.float().sqrt() * noises


@lru_cache(maxsize=4)
def video_encoder(spec: SpaceToDepthSpec | VaeSpec) -> VideoEncoder:
    """Return the encoder that the recipe names, the same object for the same settings.

    It computes on the device of the video or latent that it is given. Weights are loaded on first use.
    """
    if isinstance(spec, VaeSpec):
        return VideoVae(spec)
    return SpaceToDepth(spatial=spec.spatial, temporal=spec.temporal)


def encoded_size(encoder: VideoEncoder, height: int, width: int) -> tuple[int, int]:
    """Return the part of (height, width) that the encoder's blocks divide: it cuts off the rest."""
    large = 1 << 12

    def largest(size: int, axis: int) -> int:
        blocks = [
            encoder.latent_shape(1, *((one, large) if axis == 2 else (large, one)))[axis]
            for one in (size, size - 1)
        ]
        return size if size <= 1 or blocks[0] != blocks[1] else largest(size - 1, axis)

    return largest(height, 2), largest(width, 3)


def loss_of_sample(spec: VideoSpec, height: int, width: int) -> str | None:
    """Return, as text, the pixels that the encoder cuts off a sample; None where it cuts off none."""
    size = encoded_size(video_encoder(spec), height, width)
    if size == (height, width):
        return None
    made = f"a sample of [{height}, {width}] is made as {[*size]}"
    return f"{made}; the video encoder's blocks divide no more of it"


@lru_cache(maxsize=4)
def text_encoder(spec: WordsSpec | T5Spec, device: torch.device | None = None) -> TextEncoder:
    """Return the encoder that the recipe names, the same object for the same settings.

    `device` is where T5 computes, None: this process's GPU if there is one. Weights are loaded on first use.
    """
    if isinstance(spec, T5Spec):
        return T5(spec, device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return WordHash(
        caption_channels=spec.caption_channels, model_max_length=spec.model_max_length, pairs=spec.pairs
    )
