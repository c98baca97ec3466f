"""Space-to-depth video encoder: an orthogonal block transform, tiny and lossless.

A block of temporal x spatial x spatial pixels in 3 colours becomes one latent pixel. Orthonormal cosine
transforms act on the colours and the three axes of the block, so that the first channel is the block's
brightness and later channels are colour and finer detail. In video these have very different variances: a
fixed scale that falls with frequency divides each, so that latents have a variance near one, like the noise
that the loss mixes with them. Nothing is learned.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vidcurate.recipe.recipe import Recipe

COLOURS = 3
# Standard deviations that fit real clips within a factor of two: of a block's mean in [-1, 1], of the two
# colour differences relative to it, and the fall of both with frequency.
PIXEL_STD = 0.5
COLOUR_STD = (1.0, 0.6, 0.5)
FALL = (3.0, 1.25)


def cosine_basis(size: int) -> NDArray[np.float64]:
    """Return the orthonormal DCT-II [frequency, place] of `size` points."""
    place, frequency = np.arange(size) + 0.5, np.arange(size)[:, None]
    basis = np.cos(np.pi * frequency * place / size) * np.sqrt(2.0 / size)
    basis[0] = np.sqrt(1.0 / size)
    return np.asarray(basis)


@lru_cache(maxsize=8)
def block_transform(spatial: int, temporal: int) -> tuple[Tensor, Tensor]:
    """Return the orthogonal float32 [N, N] for flat blocks (colour, time, row, column), and scales [N]."""
    space, time, colour = cosine_basis(spatial), cosine_basis(temporal), cosine_basis(COLOURS)
    matrix = np.kron(np.kron(colour, time), np.kron(space, space))
    frequency = np.sqrt(
        np.arange(temporal)[:, None, None] ** 2
        + np.arange(spatial)[None, :, None] ** 2
        + np.arange(spatial)[None, None, :] ** 2
    )
    # The basis is orthonormal: a constant block has all its energy, std * sqrt(N), in the first coefficient.
    gain = PIXEL_STD * np.sqrt(COLOURS * temporal * spatial * spatial)
    fall = (1.0 + FALL[0] * frequency) ** -FALL[1]
    scale = gain * np.array(COLOUR_STD)[:, None, None, None] * fall[None]
    return torch.from_numpy(matrix).float(), torch.from_numpy(scale.reshape(-1)).float()


@lru_cache(maxsize=8)
def _transform_on(device: torch.device, spatial: int, temporal: int) -> tuple[Tensor, Tensor]:
    """Return `block_transform` on a device; a copy in each call would make the host wait for the GPU."""
    matrix, scale = block_transform(spatial, temporal)
    return matrix.to(device), scale.to(device)


class SpaceToDepthSpec(Recipe):
    """`space_to_depth`: blocks of temporal x spatial x spatial pixels become channels (see its file)."""

    kind: Literal["space_to_depth"] = "space_to_depth"
    """the encoder: space_to_depth"""
    spatial: int = Field(default=4, ge=1, le=32)
    """pixels of a block's side that become channels"""
    temporal: int = Field(default=1, ge=1, le=16)
    """frames that become channels"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceToDepth:
    """See the file's head. Height and width are cut to multiples of `spatial` at the right and the bottom.

    A length that `temporal` does not divide is filled up with the last frame, which decoding drops again.
    """

    spatial: int = 4
    temporal: int = 1

    @property
    def latent_channels(self) -> int:
        """3 * temporal * spatial²."""
        return COLOURS * self.temporal * self.spatial**2

    @property
    def device_bytes(self) -> int:
        """0: no weights."""
        return 0

    def predicted_bytes(self) -> int | None:
        """0: no weights."""
        return 0

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (C, T, H, W) of the latent of a video of `num_frames` x `height` x `width` pixels."""
        return (
            self.latent_channels,
            -(-num_frames // self.temporal),
            height // self.spatial,
            width // self.spatial,
        )

    def encode(self, video: Tensor) -> Tensor:
        """Return float32 [B, C, T', H', W'] of `video` [B, 3, T, H, W]: uint8, or float in [-1, 1]."""
        matrix, scale = _transform_on(video.device, self.spatial, self.temporal)
        x = video / 127.5 - 1.0 if video.dtype == torch.uint8 else video.float()
        b, colours, frames = x.shape[:3]
        channels, t, h, w = self.latent_shape(frames, *x.shape[3:])
        x = x[..., : h * self.spatial, : w * self.spatial]
        if t * self.temporal > frames:
            x = torch.cat([x, x[:, :, -1:].expand(-1, -1, t * self.temporal - frames, -1, -1)], dim=2)
        blocks = x.reshape(b, colours, t, self.temporal, h, self.spatial, w, self.spatial)
        blocks = blocks.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(b, t, h, w, channels)
        return (F.linear(blocks, matrix) / scale).permute(0, 4, 1, 2, 3).contiguous()

    def posterior(self, video: Tensor) -> tuple[Tensor, Tensor]:
        """Return `encode(video)` and zeros: nothing is uncertain."""
        latent = self.encode(video)
        return latent, torch.zeros_like(latent)

    def decode(self, latent: Tensor, *, num_frames: int) -> Tensor:
        """Return float32 video [B, 3, num_frames, H, W] for `latent` [B, C, T', H', W']; not clipped."""
        matrix, scale = _transform_on(latent.device, self.spatial, self.temporal)
        b, _, t, h, w = latent.shape
        blocks = F.linear(latent.float().permute(0, 2, 3, 4, 1) * scale, matrix.T)
        blocks = blocks.reshape(b, t, h, w, COLOURS, self.temporal, self.spatial, self.spatial)
        video = blocks.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(
            b, COLOURS, t * self.temporal, h * self.spatial, w * self.spatial
        )
        return video[:, :, :num_frames].contiguous()
