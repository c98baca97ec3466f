"""Seconds that both encoders take for a clip: FLOPs by torch's counter over measured rates.

The rates are those kept up for seconds, of benchmarks/encoders.py's rows; between two measured sizes the rate
is interpolated over the logarithm of a frame's pixels, outside them it is the nearest one's. FLOPs are
counted of the readable VAE on the meta device, so nothing is computed.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from rows import Row
from torch.utils.flop_counter import FlopCounterMode

from trainer.model.encoders.vae import CHANNELS, CHUNK, SPATIAL_FACTOR, build

METRIC = re.compile(r"VAE v1\.2 encode, \d+ x (\d+) x (\d+): kept up, FLOPs")


@cache
def _vae() -> Any:
    return build({}).eval()


def _flops(module: Any, *shape: int) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module.encode(torch.empty(shape, device="meta"))
    return int(counter.get_total_flops())


@cache
def _frame_flops(height: int, width: int) -> int:
    return _flops(_vae().frames, 1, 3, height, width)


@cache
def _chunk_flops(frames: int, height: int, width: int) -> int:
    size = height // SPATIAL_FACTOR, width // SPATIAL_FACTOR
    return _flops(_vae().temporal_vae, 1, CHANNELS, frames, *size)


def clip_flops(frames: int, height: int, width: int) -> int:
    """Return the FLOPs of encoding a clip (two for a multiply and an add), by torch's counter."""
    whole, rest = divmod(frames, CHUNK)
    total = frames * _frame_flops(height, width) + whole * _chunk_flops(CHUNK, height, width)
    return total + (_chunk_flops(rest, height, width) if rest else 0)


class Rates:
    """The measured rates of both encoders: FLOP/s of the VAE by a frame's pixels, seconds of a caption."""

    def __init__(self, table: Sequence[Row]) -> None:
        found = [(METRIC.fullmatch(row["metric"]), row["value"]) for row in table]
        self.points = sorted((int(size[1]) * int(size[2]), value * 1e12) for size, value in found if size)
        self.caption_seconds = next(1 / row["value"] for row in table if row["unit"] == "captions/s")

    def flops_per_second(self, pixels: int) -> float:
        """Return the VAE's rate at frames of `pixels`."""
        if pixels <= self.points[0][0]:
            return self.points[0][1]
        for (fewer, low), (more, high) in zip(self.points, self.points[1:], strict=False):
            if pixels <= more:
                share = math.log(pixels / fewer) / math.log(more / fewer)
                return low + share * (high - low)
        return self.points[-1][1]

    def clip_seconds(self, frames: int, height: int, width: int) -> float:
        """Return the seconds of a clip and its caption."""
        video = clip_flops(frames, height, width) / self.flops_per_second(height * width)
        return video + self.caption_seconds
