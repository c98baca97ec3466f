"""Layers of STDiT3, with the published state dict's names and numeric arguments."""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-6
WAVE_CHANNELS = 256
THETA = 10_000.0


def apply(layer: nn.Module, *arguments: Tensor | None) -> Tensor:
    """Call a layer that gives one tensor, for the type checker's sake."""
    return cast(Tensor, layer(*arguments))


def _waves(values: Tensor) -> Tensor:
    """Return [..., 256] float32: cosines, then sines, of `values` at frequencies 1 ... 1/10000.

    A timestep goes to 1000, where one unit in the last place of a frequency moves the model's output by
    1e-5. So the exponents are rounded to float32, as published, and the exponential is taken in float64: its
    rounding then depends on no machine's vector library.
    """
    half = WAVE_CHANNELS // 2
    steps = torch.arange(half, dtype=torch.float32, device=values.device)
    frequencies = torch.exp((-math.log(THETA) * steps / half).double()).float()
    angles = values.float()[..., None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class WaveEmbedder(nn.Module):
    """Number -> sinusoid -> MLP; one for the timestep and one for the frames per second."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WAVE_CHANNELS, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, values: Tensor) -> Tensor:
        """Return [B, D] for `values` [B], of which the sinusoid is taken in float32."""
        return apply(self.mlp, _waves(values).to(cast(Tensor, self.mlp[0].weight).dtype))


class Mlp(nn.Module):
    """Linear, GELU (tanh), linear."""

    def __init__(self, width_in: int, hidden: int, width_out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width_in, hidden)
        self.fc2 = nn.Linear(hidden, width_out)

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return apply(self.fc2, F.gelu(apply(self.fc1, x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Projects text features; holds the null caption's features as a buffer."""

    y_embedding: Tensor

    def __init__(self, max_length: int, channels: int, width: int) -> None:
        super().__init__()
        self.register_buffer("y_embedding", torch.empty(max_length, channels))
        self.y_proj = Mlp(channels, width, width)

    def forward(self, y: Tensor, drop_caption: Tensor | None = None) -> Tensor:
        """Return [B, 1, L, D] for `y` [B, 1, L, C]; True in `drop_caption` [B] puts the null caption in."""
        if drop_caption is not None:
            null = self.y_embedding[: y.shape[2]].to(y.dtype)
            y = torch.where(drop_caption[:, None, None, None], null, y)
        return apply(self.y_proj, y)


class PatchEmbed(nn.Module):
    """Non-overlapping patches to tokens. The weight is that of a Conv3d; the product is one matmul."""

    def __init__(self, channels: int, width: int, patch: tuple[int, int]) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv3d(channels, width, kernel_size=(1, *patch), stride=(1, *patch))

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T*H*W, D] for `x` [B, C, T, H*p, W*q], tokens in the order T, H, W."""
        (p, q), (b, c, t, height, width) = self.patch, x.shape
        cells = x.reshape(b, c, t, height // p, p, width // q, q).permute(0, 2, 3, 5, 1, 4, 6)
        return F.linear(cells.flatten(4).flatten(1, 3), self.proj.weight.flatten(1), self.proj.bias)


class PositionEmbedding(nn.Module):
    """Sine position of a token in its frame, in units of a 512-pixel square; nothing to learn."""

    def __init__(self, width: int, square: int, *, rounded: bool) -> None:
        super().__init__()
        self.width, self.square, self.rounded = width, float(square), rounded

    def forward(self, x: Tensor, rows: int, columns: int, area: Tensor) -> Tensor:
        """Return [1, rows*columns, D] in the dtype of `x`; `area` is the frame's size in pixels squared.

        The first half of the channels holds the column, the second the row: as the original, whatever its
        variables are called.
        """
        half = self.width // 2
        steps = torch.arange(0, half, 2, dtype=torch.float32, device=x.device)
        frequencies = 1.0 / THETA ** (steps / half)
        if self.rounded:
            frequencies = frequencies.bfloat16().float()
        scale = (area.double().sqrt() / self.square).float()
        base = round(math.sqrt(rows * columns))

        def axis(count: int) -> Tensor:
            places = torch.arange(count, dtype=torch.float32, device=x.device) / scale * (base / count)
            angles = places[:, None] * frequencies
            return torch.cat([angles.sin(), angles.cos()], dim=-1)

        across = axis(columns)[None].expand(rows, columns, half)
        down = axis(rows)[:, None].expand(rows, columns, half)
        return torch.cat([across, down], dim=-1).reshape(1, rows * columns, self.width).to(x.dtype)


class Rope(nn.Module):
    """Rotary position over latent frames, on adjacent pairs of channels.

    `freqs` only keeps the state dict's name: it is never trained, and the angles are made from theta in
    float32, so that casting the model does not round them.
    """

    def __init__(self, head_dim: int, *, rounded: bool) -> None:
        super().__init__()
        self.rounded = rounded
        self.freqs = nn.Parameter(torch.empty(head_dim // 2), requires_grad=False)

    def forward(self, num_frames: int) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, each float32 [num_frames, head_dim], every value twice in a row."""
        device = self.freqs.device
        frequencies = rope_frequencies(2 * self.freqs.shape[0], device)
        places = torch.arange(num_frames, dtype=torch.float32, device=device)
        if self.rounded:
            frequencies, places = frequencies.bfloat16(), places.bfloat16()
        angles = (places[:, None] * frequencies).repeat_interleave(2, dim=-1)
        return angles.cos().float(), angles.sin().float()


def rope_frequencies(head_dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Return float32 [head_dim / 2]: 10000 ** (-2i / head_dim)."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    return 1.0 / THETA ** (steps / head_dim)


def _rotate(x: Tensor, wave: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair of `x` [N, T, heads, head_dim] by its angle."""
    cosine, sine = (part[:, None].to(x.dtype) for part in wave)
    first, second = torch.unflatten(x, -1, (-1, 2)).unbind(-1)
    return x * cosine + torch.stack([-second, first], dim=-1).flatten(-2) * sine


class RmsNorm(nn.Module):
    """Root-mean-square norm over a head: float32 inside, cast back, then the weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)).to(x.dtype)


class SelfAttention(nn.Module):
    """Attention among the tokens of one frame, or among the frames at one place."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm, self.k_norm = RmsNorm(self.head_dim), RmsNorm(self.head_dim)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, wave: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return [N, L, D] for `x` [N, L, D]; `wave` is the rotation of the L positions, if any."""
        if x.shape[1] == 1:
            return self._alone(x)
        q, k, v = torch.unflatten(apply(self.qkv, x), -1, (3, self.heads, self.head_dim)).unbind(2)
        q, k = apply(self.q_norm, q), apply(self.k_norm, k)
        if wave is not None:
            q, k = _rotate(q, wave), _rotate(k, wave)
        # Norm and rotation may have promoted q and k under autocast; v says which dtype is meant.
        q, k, v = (part.to(v.dtype).transpose(1, 2) for part in (q, k, v))
        return apply(self.proj, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def _alone(self, x: Tensor) -> Tensor:
        """A token that sees only itself: softmax over one key is 1, so the result is v.

        Kernels have crashed on sequences of length 1, and q and k need not be computed. Their norms keep a
        gradient of zero, as softmax would give them: ranks that train on images and ranks that train on
        video then have gradients for the same parameters.
        """
        width = self.heads * self.head_dim
        bias = self.qkv.bias[2 * width :]
        for norm in (self.q_norm, self.k_norm):
            bias = bias + 0.0 * norm.weight.sum()
        return apply(self.proj, F.linear(x, self.qkv.weight[2 * width :], bias))


class CrossAttention(nn.Module):
    """Attention of every video token to the caption's tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.q_linear = nn.Linear(width, width)
        self.kv_linear = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor, text_mask: Tensor | None) -> Tensor:
        """Return [B, N, D] for `x` [B, N, D], text `y` [B, L, D], bool `text_mask` [B, 1, 1, L] or None."""
        q = torch.unflatten(apply(self.q_linear, x), -1, (self.heads, self.head_dim)).transpose(1, 2)
        k, v = torch.unflatten(apply(self.kv_linear, y), -1, (2, self.heads, self.head_dim)).unbind(2)
        out = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=text_mask)
        return apply(self.proj, out.transpose(1, 2).flatten(2))


def _normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)


class Block(nn.Module):
    """Self-attention (over space, or over time), attention to the caption, MLP."""

    def __init__(self, width: int, heads: int, hidden: int, *, temporal: bool) -> None:
        super().__init__()
        self.temporal = temporal
        self.scale_shift_table = nn.Parameter(torch.empty(6, width))
        self.attn = SelfAttention(width, heads)
        self.cross_attn = CrossAttention(width, heads)
        self.mlp = Mlp(width, hidden, width)

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        modulation: Tensor,
        text_mask: Tensor | None,
        num_frames: int,
        wave: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """Return [B, T*S, D]; `modulation` is [B, T, 6, D], or [B, 1, 6, D] where all frames share it."""
        b, n, width = x.shape
        t, s = num_frames, n // num_frames
        table = (self.scale_shift_table + modulation)[:, :, :, None]  # [B, T or 1, 6, 1, D]
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = table.unbind(2)

        h = _normed(x).reshape(b, t, s, width) * (1 + scale) + shift
        if self.temporal:
            h = apply(self.attn, h.transpose(1, 2).reshape(b * s, t, width), cast(Tensor, wave))
            h = h.reshape(b, s, t, width).transpose(1, 2)
        else:
            h = apply(self.attn, h.reshape(b * t, s, width)).reshape(b, t, s, width)
        x = x + (gate * h).reshape(b, n, width)
        x = x + cast(Tensor, self.cross_attn(x, y, text_mask))
        h = _normed(x).reshape(b, t, s, width) * (1 + mlp_scale) + mlp_shift
        return x + (mlp_gate * apply(self.mlp, h)).reshape(b, n, width)


class FinalLayer(nn.Module):
    """Norm, modulation by the timestep itself, and the map to patches."""

    def __init__(self, width: int, out: int, *, modulates_twice: bool) -> None:
        super().__init__()
        self.modulates_twice = modulates_twice
        self.scale_shift_table = nn.Parameter(torch.empty(2, width))
        self.linear = nn.Linear(width, out)

    def forward(self, x: Tensor, t: Tensor, given: tuple[Tensor, Tensor] | None, num_frames: int) -> Tensor:
        """Return [B, T*S, patch * out_channels] for `x` [B, T*S, D] and `t` [B, D].

        `given` is (noisy bool [B, T, 1], the embedding of timestep 0 [B, D]), or None if no frame is given.
        """
        h = torch.unflatten(x, 1, (num_frames, -1))
        if given is None:
            h = self._modulated(h, t[:, None])
        elif self.modulates_twice:
            # The published code puts the already modulated frames through norm and modulation again.
            noisy, still = given
            h = self._modulated(h, t[:, None])
            h = torch.where(noisy[..., None], h, self._modulated(h, still[:, None]))
        else:
            noisy, still = given
            h = self._modulated(h, torch.where(noisy, t[:, None], still[:, None]))
        return apply(self.linear, h.flatten(1, 2))

    def _modulated(self, h: Tensor, t: Tensor) -> Tensor:
        shift, scale = (self.scale_shift_table + t[:, :, None])[:, :, :, None].unbind(2)
        return _normed(h) * (1 + scale) + shift
