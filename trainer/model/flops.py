"""FLOPs of a training step, and the rates TFLOP/s and MFU.

MFU is model FLOPs divided by the peak of the devices in the same wall time (PaLM, arXiv 2204.02311,
appendix B). Model FLOPs are three times the forward pass of the real shapes, with the true number of caption
tokens; recomputed blocks do not count twice. Waiting for clips counts as time.
"""

from collections import Counter
from collections.abc import Sequence

from trainer.model.layers import WAVE_CHANNELS
from trainer.model.routing import RoutingSpec, route
from trainer.model.stdit import STDiT3Config

Shape = tuple[int, int, int]
"""Frames, rows and columns of a latent."""

# Dense bfloat16 FLOP/s by the name that the driver gives, from the vendor's data sheets. A device that is not
# here gets TFLOP/s and no MFU: a guessed peak would be a guessed MFU.
PEAK_FLOPS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
}


def forward_flops(
    config: STDiT3Config,
    num_frames: int,
    height: int,
    width: int,
    text_tokens: int,
    routing: RoutingSpec | None = None,
) -> int:
    """Return the FLOPs of one sample's forward pass; a training step takes 3 times as many.

    `num_frames`, `height`, `width` are the latent's. A multiply-add counts as two. Counts the matmuls that
    the mathematics needs: with the true number of caption tokens, without recomputation or padding of heads,
    and without queries and keys for the temporal attention of an image. With `routing`, its pairs of blocks
    count the tokens that they compute.
    """
    d, (_, p, q) = config.hidden_size, config.patch_size
    space = -(-height // p) * -(-width // q)
    tokens = num_frames * space
    blocks = config.depth * _pair_flops(config, num_frames, space, text_tokens)
    if taken := route(routing, space):
        kept, first, last = taken
        dense, routed = (_pair_flops(config, num_frames, count, text_tokens) for count in (space, kept))
        blocks -= (last - first + 1) * (dense - routed)
    patch = tokens * 2 * p * q * d * (config.in_channels + config.out_channels)
    clocks = 2 * 2 * (WAVE_CHANNELS * d + d * d) + 2 * 6 * d * d
    text = 0 if config.skip_y_embedder else text_tokens * 2 * (config.caption_channels * d + d * d)
    return blocks + patch + clocks + text


def _pair_flops(config: STDiT3Config, num_frames: int, space: int, text_tokens: int) -> int:
    """Return the forward FLOPs of a spatial and a temporal block over `num_frames` x `space` tokens."""
    d, tokens = config.hidden_size, num_frames * space
    hidden = int(d * config.mlp_ratio)
    cross = tokens * (4 * d * d + 4 * text_tokens * d) + text_tokens * 4 * d * d
    mlp = tokens * 4 * d * hidden
    spatial = tokens * (8 * d * d + 4 * space * d) if space > 1 else tokens * 4 * d * d
    temporal = tokens * (8 * d * d + 4 * num_frames * d) if num_frames > 1 else tokens * 4 * d * d
    return spatial + temporal + 2 * (cross + mlp)


def flops_per_step(
    config: STDiT3Config,
    shapes: Sequence[Shape],
    text_tokens: Sequence[int],
    routing: RoutingSpec | None = None,
) -> int:
    """Return the FLOPs of one update: forward and backward of every clip, a multiply-add counted as two.

    `shapes` are the clips' latents, `text_tokens` those that each of them reads, `routing` that of the step.
    """
    clips = Counter(zip(shapes, text_tokens, strict=True))
    return 3 * sum(
        count * forward_flops(config, *shape, tokens, routing) for (shape, tokens), count in clips.items()
    )


def rates(model_flops: int, seconds: float, device_name: str, world_size: int) -> dict[str, float]:
    """Return `tflops_per_device` (10¹² FLOP/s) and, for a device of PEAK_FLOPS, `mfu` (0 to 1)."""
    per_device = model_flops / seconds / world_size
    found = {"tflops_per_device": per_device / 1e12}
    if device_name in PEAK_FLOPS:
        found["mfu"] = per_device / PEAK_FLOPS[device_name]
    return found
