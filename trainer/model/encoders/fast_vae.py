"""VAE encoders through Triton kernels and cuDNN, twins of the readable ones.

`trainer.model.encoders.vae` takes them on a GPU in half precision. Every activation is rows [N, P, C],
channels side by side, which a convolution reads as channels_last without a copy. A layer hands on its output
without the bias of its convolution, its bias and its statistics (`Layer`): the pass that follows anyway adds
the one and applies the other. The kernels also write the zeros that causal and strided convolutions ask for.

How much is computed at once depends on the size alone, not on free memory: the same clips give the same bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.encoders.temporal_vae import LOGVAR_RANGE, TIME_FACTOR, CausalConv, ResBlock, TemporalVAE
from trainer.model.kernels.group_norm import normalize
from trainer.model.kernels.residual_sum import (
    Statistics,
    add,
    add_in_front,
    add_moments,
    add_with_corner,
    statistics,
)
from trainer.model.kernels.vae_layers import first_conv, softmax_rows

PIXELS = 4 << 20  # of all frames that the frame VAE takes at once: 10 of 480 x 848
CHUNK_PIXELS = 28 << 20  # of all chunks that the temporal VAE takes at once: 4 of 17 x 480 x 848
SCORES = 1 << 28  # attention scores at once, float32: 1 GiB
# Moments up to which a convolution over time is cut into one over the picture for each of its three steps:
# the steps that would read zeros alone are left out (a fifth of the FLOPs of 5 moments, a tenth of 10), and
# cuDNN's 3D convolution of 512 channels runs at two thirds of the 2D one's rate.
FEW_MOMENTS = 10
ALIGNED = 8  # rows and channels that a matmul or a convolution wants in multiples


class Layer(NamedTuple):
    """Rows [N, P, C], what is still to be added to each ([C], or nothing), and their statistics."""

    rows: Tensor
    bias: Tensor | None
    found: Statistics


class Block(NamedTuple):
    """A residual block's modules."""

    norm1: nn.GroupNorm
    conv1: nn.Module
    norm2: nn.GroupNorm
    conv2: nn.Module
    shortcut: nn.Module | None


def supports(vae: Any) -> bool:
    """Return whether the frame VAE is built of what this module computes, as the published one is."""
    config = vae.frames.config
    kinds = set(config.down_block_types)
    middle = vae.frames.encoder.mid_block
    return bool(
        kinds == {"DownEncoderBlock2D"}
        and config.act_fn == "silu"
        and len(middle.attentions) == 1
        and middle.attentions[0] is not None
        and middle.attentions[0].heads == 1
        and vae.frames.encoder.conv_in.out_channels <= 256
        and not (vae.frames.use_slicing or vae.frames.use_tiling)
    )


def prepare(vae: Any) -> None:
    """Lay the encoders' convolution weights out channels last, in place; values and names stay."""
    vae.frames.encoder.to(memory_format=torch.channels_last)
    vae.temporal_vae.encoder.to(memory_format=torch.channels_last_3d)


def at_once(pixels: int, most: int) -> int:
    """Return how many frames or chunks of `pixels` each are computed at once, at least one."""
    return max(1, most // pixels)


def even_parts(x: Tensor, most: int) -> tuple[Tensor, ...]:
    """Return `x` cut along its first dimension: as few parts as `most` allows, as even as can be."""
    return torch.tensor_split(x, -(-x.shape[0] // most))


def _total(*biases: Tensor | None) -> Tensor | None:
    """Return the sum of biases: one as it is, several in float32, None of none."""
    given = [bias for bias in biases if bias is not None]
    if len(given) < 2:
        return given[0] if given else None
    return torch.stack([bias.float() for bias in given]).sum(0)


def _conv(rows: Tensor, size: Sequence[int], conv: Any, padding: int | tuple[int, ...]) -> Tensor:
    """Return the convolution of pictures or clips of `size`, without its bias, as [N, P', C']."""
    x = rows.view(rows.shape[0], *size, rows.shape[2]).movedim(-1, 1)
    function = F.conv2d if len(size) == 2 else F.conv3d
    return _rows_of(function(x, conv.weight, None, conv.stride, padding))


def _rows_of(out: Tensor) -> Tensor:
    """Return [N, P, C], contiguous, of [N, C, …]: without a copy where that is channels_last, as on a GPU."""
    return out.movedim(1, -1).reshape(out.shape[0], -1, out.shape[1]).contiguous()


def _steps(moments: Tensor, size: Sequence[int], conv: Any) -> list[Tensor]:
    """Return what each moment gives at once, a moment later and two: [(T - k) N, P, C'] for each k.

    `moments` [T N, P, C] is `normalize`'s with `place`, `size` (time, height, width).
    """
    time, *picture = size
    samples = moments.shape[0] // time
    steps = []
    for later in range(min(3, time)):
        weight = conv.weight[:, :, 2 - later].contiguous(memory_format=torch.channels_last)
        x = moments[: (time - later) * samples].view(-1, *picture, moments.shape[2]).movedim(-1, 1)
        steps.append(_rows_of(F.conv2d(x, weight, None, 1, 1)))
    return steps


def _shortcut(x: Layer, block: Block) -> tuple[Tensor, Tensor | None]:
    """Return the rows beside the branch, and what is still to be added to them and to the branch."""
    last = cast(Any, block.conv2).bias
    if block.shortcut is None:
        return x.rows, _total(x.bias, last)
    shortcut = cast(Any, block.shortcut)
    weight = shortcut.weight.flatten(1)
    moved = None if x.bias is None else weight.float() @ x.bias.float()
    return F.linear(x.rows, weight), _total(moved, shortcut.bias, last)


def _branch(x: Layer, block: Block, size: tuple[int, ...]) -> Tensor:
    """Return the branch of a residual block without its last bias.

    `size` is (height, width), or (time, height, width) for convolutions that look back by two steps.
    """
    front, padding = (0, 1) if len(size) == 2 else (2 * size[1] * size[2], (0, 1, 1))
    padded = size if len(size) == 2 else (size[0] + 2, *size[1:])
    first = cast(Any, block.conv1)
    inner = normalize(x.rows, x.found, block.norm1, bias=x.bias, front=front)
    inner = _conv(inner, padded, first, padding)
    inner = normalize(inner, statistics(inner), block.norm2, bias=first.bias, front=front)
    return _conv(inner, padded, block.conv2, padding)


def _through(x: Layer, block: Block, size: tuple[int, ...]) -> Layer:
    """Return what a residual block gives."""
    rows, bias = _shortcut(x, block)
    if len(size) == 3 and size[0] <= FEW_MOMENTS:
        count, place = x.rows.shape[1], size[1] * size[2]
        inner = normalize(x.rows, x.found, block.norm1, bias=x.bias, place=place)
        middle, found = add_moments(None, _steps(inner, size, block.conv1), None, count)
        inner = normalize(middle, found, block.norm2, bias=cast(Any, block.conv1).bias, place=place)
        rows, found = add_moments(rows, _steps(inner, size, block.conv2), bias, count)
        return Layer(rows, None, found)
    rows, found = add(rows, _branch(x, block, size), bias)
    return Layer(rows, None, found)


# ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────


def _of_frames(block: Any) -> Block:
    return Block(block.norm1, block.conv1, block.norm2, block.conv2, block.conv_shortcut)


def _attention(x: Layer, attention: Any) -> Layer:
    """Return x + attention(norm(x)) of one head. Scores are float32, probabilities the input's dtype."""
    samples, rows, width = x.rows.shape
    padded = -(-rows // ALIGNED) * ALIGNED
    h = normalize(x.rows, x.found, attention.group_norm, bias=x.bias, back=padded - rows, silu=False)
    parts = attention.to_q, attention.to_k, attention.to_v
    weight, bias = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
    q, k, v = F.linear(h, weight, bias).chunk(3, 2)
    out = torch.empty_like(h)
    count = max(1, SCORES // padded**2)
    for first in range(0, samples, count):
        some = slice(first, first + count)
        scores = _scores(q[some], k[some])
        weights = softmax_rows(scores, rows, width**-0.5, h.dtype)
        torch.bmm(weights, v[some], out=out[some])
    last = attention.to_out[0]
    made, found = add(x.rows, F.linear(out, last.weight), _total(last.bias, x.bias))
    return Layer(made, None, found)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Return q kᵀ in float32."""
    if q.is_cuda and q.dtype != torch.float32:
        return torch.bmm(q, k.transpose(1, 2), out_dtype=torch.float32)
    return q.float() @ k.float().transpose(1, 2)


def encode_frames(autoencoder: Any, pixels: Tensor) -> Tensor:
    """Return the posterior's moments [N, 2C, H/8, W/8] of `pixels` [N, 3, H, W], uint8 or in [-1, 1]."""
    encoder = autoencoder.encoder
    size: tuple[int, ...] = (pixels.shape[2], pixels.shape[3])
    rows, found = first_conv(pixels, encoder.conv_in.weight)
    x = Layer(rows, encoder.conv_in.bias, found)
    for level in encoder.down_blocks:
        blocks = [_of_frames(block) for block in level.resnets]
        down = level.downsamplers[0].conv if level.downsamplers else None
        for block in blocks if down is None else blocks[:-1]:
            x = _through(x, block, size)
        if down is not None:
            rows, bias = _shortcut(x, blocks[-1])
            wide = add_with_corner(rows, _branch(x, blocks[-1], size), bias, size)
            height, width = size
            rows = _conv(wide, (height + 1, width + 1), down, 0)
            size = (height // 2, width // 2)
            x = Layer(rows, down.bias, statistics(rows))
    middle = encoder.mid_block
    x = _through(x, _of_frames(middle.resnets[0]), size)
    x = _attention(x, middle.attentions[0])
    x = _through(x, _of_frames(middle.resnets[1]), size)
    last = normalize(x.rows, x.found, encoder.conv_norm_out)
    out = _conv(last, size, encoder.conv_out, 1) + encoder.conv_out.bias
    quant = autoencoder.quant_conv
    if quant is not None:
        out = F.linear(out, quant.weight.flatten(1), quant.bias)
    return cast(Tensor, out.view(out.shape[0], *size, -1).movedim(-1, 1))


# ── chunks ──────────────────────────────────────────────────────────────────────────────────────────────────


def _of_chunks(block: ResBlock) -> Block:
    shortcut = None if block.conv3 is None else block.conv3.conv
    return Block(block.norm1, block.conv1.conv, block.norm2, block.conv2.conv, shortcut)


def encode_chunks(vae: TemporalVAE, latents: Tensor) -> Tensor:
    """Return mean and log variance [B, 2C, ceil(T / 4), H, W], float32, of `latents` [B, C, T, H, W].

    `TemporalVAE.encode` is the readable twin.
    """
    encoder = vae.encoder
    batch, channels, time, height, width = latents.shape
    fill = -time % TIME_FACTOR
    size: tuple[int, ...] = (time + fill, height, width)
    first = encoder.conv_in.conv
    wide = -(-channels // ALIGNED) * ALIGNED
    rows = latents.new_zeros(batch, size[0] + 2, height, width, wide)
    rows[:, fill + 2 :, ..., :channels] = latents.movedim(1, -1)
    weight = F.pad(first.weight, (0, 0) * 3 + (0, wide - channels))
    weight = weight.contiguous(memory_format=torch.channels_last_3d)
    rows = _rows_of(F.conv3d(rows.movedim(-1, 1), weight, None, 1, (0, 1, 1)))
    x = Layer(rows, None, statistics(rows))
    for number, level in enumerate(encoder.block_res_blocks):
        blocks = [_of_chunks(cast(ResBlock, block)) for block in cast(nn.ModuleList, level)]
        down = encoder.conv_blocks[number] if number < len(encoder.conv_blocks) else None
        halves = isinstance(down, CausalConv)
        for block in blocks[:-1] if halves else blocks:
            x = _through(x, block, size)
        if isinstance(down, CausalConv):
            place = height * width
            rows, bias = _shortcut(x, blocks[-1])
            rows = add_in_front(rows, _branch(x, blocks[-1], size), bias, place * down.front)
            rows = _conv(rows, (size[0] + down.front, height, width), down.conv, (0, 1, 1))
            size = (size[0] // 2, height, width)
            x = Layer(rows, down.conv.bias, statistics(rows))
    for last_block in encoder.res_blocks:
        x = _through(x, _of_chunks(cast(ResBlock, last_block)), size)
    out = normalize(x.rows, x.found, encoder.norm1)
    for last in (encoder.conv2.conv, vae.quant_conv.conv):
        out = F.linear(out, last.weight.flatten(1), last.bias)
    mean, logvar = out.view(batch, *size, -1).movedim(-1, 1).float().chunk(2, dim=1)
    return torch.cat([mean, logvar.clamp(*LOGVAR_RANGE)], dim=1)
