"""Temporal VAE of Open-Sora 1.2: per-frame latents to chunk latents, four to one.

It works on the spatial VAE's latents and keeps height and width. Every convolution is causal in time, with
zeros before the first frame; the group norms average over the whole chunk, so within a chunk a frame does
depend on later ones. Chunks are independent. State-dict names are the original's
(hpcai-tech/OpenSora-VAE-v1.2, prefix `temporal_vae.`).
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TIME_FACTOR = 4
LOGVAR_RANGE = (-30.0, 20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalConfig:
    """Widths; the defaults are those published."""

    filters: int = 128
    """channels of the first level"""
    channel_multipliers: tuple[int, ...] = (1, 2, 2, 4)
    """channels of each level over `filters`"""
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    """after which levels time is halved"""
    num_res_blocks: int = 4
    """residual blocks of a level"""
    num_groups: int = 32
    """groups of a group norm"""
    latent_channels: int = 4
    """channels of the latents, here and of the spatial VAE"""

    def __post_init__(self) -> None:
        if len(self.temporal_downsample) != len(self.channel_multipliers) - 1:
            raise ValueError("temporal_downsample has one entry for each step between two levels")
        if 2 ** sum(self.temporal_downsample) != TIME_FACTOR:
            raise ValueError(f"temporal_downsample must shorten time by {TIME_FACTOR} in all")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.filters * multiplier for multiplier in self.channel_multipliers)


class CausalConv(nn.Module):
    """Conv3d that keeps height and width and pads time with zeros in front only: kernel - stride of them."""

    def __init__(
        self, channels: int, out_channels: int, kernel: int = 3, *, time_stride: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        self.front = kernel - time_stride
        side = kernel // 2
        self.conv = nn.Conv3d(
            channels, out_channels, kernel, stride=(time_stride, 1, 1), padding=(0, side, side), bias=bias
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.front:
            x = F.pad(x, (0, 0, 0, 0, self.front, 0))
        return cast(Tensor, self.conv(x))


class ResBlock(nn.Module):
    """norm, SiLU, conv, twice, beside a shortcut that is a 1 x 1 x 1 conv where the width changes."""

    def __init__(self, channels: int, out_channels: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = CausalConv(channels, out_channels, bias=False)
        self.norm2 = nn.GroupNorm(groups, out_channels)
        self.conv2 = CausalConv(out_channels, out_channels, bias=False)
        self.conv3 = CausalConv(channels, out_channels, 1, bias=False) if channels != out_channels else None

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(x)))
        inner = self.conv2(F.silu(self.norm2(inner)))
        return cast(Tensor, (x if self.conv3 is None else self.conv3(x)) + inner)


def _row(count: int, channels: int, out_channels: int, groups: int) -> nn.ModuleList:
    """Return `count` residual blocks, the first of which changes the width."""
    widths = [channels] + [out_channels] * count
    return nn.ModuleList(ResBlock(widths[number], out_channels, groups) for number in range(count))


def _through(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


class Encoder(nn.Module):
    """[B, C, T, H, W] to [B, 2C, T/4, H, W]."""

    def __init__(self, config: TemporalConfig) -> None:
        super().__init__()
        widths, count, groups = config.widths, config.num_res_blocks, config.num_groups
        self.conv_in = CausalConv(config.latent_channels, widths[0], bias=False)
        before = (widths[0], *widths[:-1])
        self.block_res_blocks = nn.ModuleList(
            _row(count, channels, width, groups) for channels, width in zip(before, widths, strict=True)
        )
        self.conv_blocks = nn.ModuleList(
            CausalConv(width, width, time_stride=2) if halved else nn.Identity()
            for width, halved in zip(widths, config.temporal_downsample, strict=False)
        )
        self.res_blocks = _row(count, widths[-1], widths[-1], groups)
        self.norm1 = nn.GroupNorm(groups, widths[-1])
        self.conv2 = CausalConv(widths[-1], 2 * config.latent_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for number, blocks in enumerate(self.block_res_blocks):
            x = _through(cast(nn.ModuleList, blocks), x)
            if number < len(self.conv_blocks):
                x = self.conv_blocks[number](x)
        x = _through(self.res_blocks, x)
        return cast(Tensor, self.conv2(F.silu(self.norm1(x))))


class Decoder(nn.Module):
    """[B, C, T/4, H, W] to [B, C, T, H, W]. Levels are numbered as in the encoder and run backwards."""

    def __init__(self, config: TemporalConfig) -> None:
        super().__init__()
        widths, count, groups = config.widths, config.num_res_blocks, config.num_groups
        self.temporal_downsample = config.temporal_downsample
        self.conv1 = CausalConv(config.latent_channels, widths[-1])
        self.res_blocks = _row(count, widths[-1], widths[-1], groups)
        above = (*widths[1:], widths[-1])
        self.block_res_blocks = nn.ModuleList(
            _row(count, channels, width, groups) for channels, width in zip(above, widths, strict=True)
        )
        self.conv_blocks = nn.ModuleList(
            CausalConv(width, 2 * width) if doubled else nn.Identity()
            for width, doubled in zip(widths[1:], config.temporal_downsample, strict=True)
        )
        self.norm1 = nn.GroupNorm(groups, widths[0])
        self.conv_out = CausalConv(widths[0], config.latent_channels)

    def forward(self, z: Tensor) -> Tensor:
        x = _through(self.res_blocks, self.conv1(z))
        for number in reversed(range(len(self.block_res_blocks))):
            x = _through(cast(nn.ModuleList, self.block_res_blocks[number]), x)
            if number and self.temporal_downsample[number - 1]:
                # Channels hold (channel, moment), the moment fastest: it becomes time.
                x = torch.unflatten(self.conv_blocks[number - 1](x), 1, (-1, 2))
                x = x.transpose(2, 3).flatten(2, 3)
        return cast(Tensor, self.conv_out(F.silu(self.norm1(x))))


class TemporalVAE(nn.Module):
    """One chunk at a time; `trainer.model.encoders.vae` cuts clips into chunks."""

    def __init__(self, config: TemporalConfig) -> None:
        super().__init__()
        channels = config.latent_channels
        self.encoder = Encoder(config)
        self.quant_conv = CausalConv(2 * channels, 2 * channels, 1)
        self.post_quant_conv = CausalConv(channels, channels, 1)
        self.decoder = Decoder(config)

    def encode(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance, float32 [B, C, ceil(T / 4), H, W], of `latents` [B, C, T, H, W].

        Zeros are put in front of T so that 4 divides it. The log variance lies within -30 … 20.
        """
        latents = F.pad(latents, (0, 0, 0, 0, -latents.shape[2] % TIME_FACTOR, 0))
        mean, logvar = self.quant_conv(self.encoder(latents)).float().chunk(2, dim=1)
        return mean, logvar.clamp(*LOGVAR_RANGE)

    def decode(self, z: Tensor, *, num_frames: int) -> Tensor:
        """Return [B, C, num_frames, H, W] of `z` [B, C, ceil(num_frames / 4), H, W]."""
        return cast(Tensor, self.decoder(self.post_quant_conv(z)))[:, :, -num_frames % TIME_FACTOR :]


def temporal_length(num_frames: int, chunk: int) -> int:
    """Return the latent frames of `num_frames`, encoded in chunks of `chunk` and a shorter last one."""
    whole, rest = divmod(num_frames, chunk)
    return whole * -(-chunk // TIME_FACTOR) + -(-rest // TIME_FACTOR)
