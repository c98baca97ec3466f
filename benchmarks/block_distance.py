"""Error of a bfloat16 block of XL/2 against plain float32, by form, on a GPU.

    python benchmarks/block_distance.py

Fresh random input, weights and captions of two lengths; the largest relative distance (2-norm) among the
output and all gradients. Ends with 1 where a form is too far: fast over 1.5 times as far as plain, or float8
over FLOAT8_APART.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from step_shapes import TEXT_TOKENS
from torch import Tensor, nn
from train_step import CONFIG

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.model.kernels.apply import fast_block, padded
from trainer.model.layers import Block, Rope

FLOAT8_APART = 0.12  # each rounding to e4m3 is 0.026 of the norm


def distances(temporal: bool, frames: int, places: int) -> dict[str, float]:
    """Return the relative error of a bfloat16 block against the plain one in float32, by form."""
    width = CONFIG.hidden_size
    with torch.device("cuda"):
        block = Block(width, CONFIG.num_heads, 4 * width, temporal=temporal)
        given = [torch.randn(2, count, width) for count in (frames * places, TEXT_TOKENS)]
        given.append(0.3 * torch.randn(2, frames, 6, width))
        mask = (torch.arange(TEXT_TOKENS) < torch.tensor([[120], [TEXT_TOKENS]]))[:, None, None]
        seed = torch.randn_like(given[0])
        rope = Rope(CONFIG.head_dim, rounded=False)
    for name, weight in block.named_parameters():
        nn.init.normal_(weight, 1.0 if name.endswith("norm.weight") else 0.0, 0.02)
    wave = rope(frames) if temporal else None

    def outcome(run: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        inputs = [tensor.to(dtype).requires_grad_() for tensor in given]
        out = run(*inputs, mask, frames, wave)
        return [out.detach(), *torch.autograd.grad(out, [*inputs, *block.parameters()], seed.to(dtype))]

    exact = outcome(block, torch.float32)
    block.bfloat16()
    found = {}

    def through_kernels(
        float8: bool, x: Tensor, y: Tensor, modulation: Tensor, mask: Tensor, *rest: Any
    ) -> Tensor:
        rows, captions = padded(y, mask)
        return fast_block(block, x, rows, modulation, captions, *rest, float8=float8)

    fast, float8 = (partial(through_kernels, small) for small in (False, True))
    for name, run in (("plain", block), ("fast", fast), ("float8", float8)):
        pairs = zip(outcome(run, torch.bfloat16), exact, strict=True)
        found[name] = max(float((one.float() - two).norm() / two.norm()) for one, two in pairs)
    return found


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    if not torch.cuda.is_available():
        sys.exit("block_distance computes blocks on a GPU and finds none; run it where torch sees CUDA.")
    is_far = False
    for temporal, frames, places in itertools.product((False, True), (15, 30), (144, 405)):
        found = distances(temporal, frames, places)
        is_far |= found["fast"] > 1.5 * found["plain"] or found["float8"] > FLOAT8_APART
        kind = "temporal" if temporal else "spatial"
        apart = ", ".join(f"{form} {off:.4f}" for form, off in found.items())
        print(f"{kind:8} {frames} x {places}: from float32 {apart}")
    sys.exit(is_far)


if __name__ == "__main__":
    main()
