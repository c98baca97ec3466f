"""Encoding of a recipe: what decides the bytes of its latents and text features."""

from dataclasses import dataclass

from trainer.model.encoders.precision import EncodedSpec
from trainer.model.encoders.registry import TextSpec, VideoSpec
from trainer.model.stdit import STDiT3Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Settings of a recipe that decide the bytes of its latents and text features."""

    video: VideoSpec
    text: TextSpec
    kept: EncodedSpec
    model: STDiT3Config  # whose caption projection may be applied before training
