"""What a step costs in floating-point operations, and how fast that was: TFLOP/s and MFU.

MFU is model FLOPs over what the devices could have done in the same wall time (PaLM, arXiv 2204.02311,
appendix B). Model FLOPs are three times the forward pass of the real shapes, with the true number of caption
tokens; what is computed twice to save memory does not count. Waiting for clips counts as time.
"""

from collections import Counter
from collections.abc import Sequence

from trainer.model.stdit import STDiT3Config, flops

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


def flops_per_step(config: STDiT3Config, shapes: Sequence[Shape], text_tokens: Sequence[int]) -> int:
    """Return the FLOPs of one update: forward and backward of every clip, a multiply-add counted as two.

    `shapes` are the clips' latents, `text_tokens` those that each of them reads.
    """
    clips = Counter(zip(shapes, text_tokens, strict=True))
    return 3 * sum(count * flops(config, *shape, tokens) for (shape, tokens), count in clips.items())


def rates(model_flops: int, seconds: float, device_name: str, world_size: int) -> dict[str, float]:
    """Return `tflops_per_device` (10¹² FLOP/s) and, for a device of PEAK_FLOPS, `mfu` (0 to 1)."""
    per_device = model_flops / seconds / world_size
    found = {"tflops_per_device": per_device / 1e12}
    if device_name in PEAK_FLOPS:
        found["mfu"] = per_device / PEAK_FLOPS[device_name]
    return found
