"""Clip views: the start frame and the caption of a clip at each showing.

Both depend on the epoch of the clip's cell, never on a worker or a rank. Without `num_views`, every showing
has a new random start frame, keyed by its position in the order. With `num_views`, a clip has that many fixed
views in rotation: a finite set can be encoded ahead. A view depends on the clip alone, not on the seed, so
one set of latents serves every run. Captions take turns from epoch to epoch, or are drawn with weights,
keyed by the position in the order.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng

Epochs = TypeVar("Epochs", int, NDArray[np.int64])

# Multiples of the golden ratio spread evenly over [0, 1), for any number of views.
_GOLDEN = 0x9E3779B97F4A7C15
_MODULUS = 1 << 64


def view_number(epoch: Epochs, num_views: int) -> Epochs:
    """Return the number (from 0) of the view shown in this epoch; an array for an array of epochs."""
    return epoch % num_views


def caption_number(epoch: Epochs, num_views: int | None, num_captions: int) -> Epochs:
    """Return the number of the caption in this epoch: each caption stays until all views were shown."""
    return epoch // (num_views or 1) % num_captions


def drawn_caption(draw: int, weights: Sequence[float]) -> int:
    """Return the number of the caption that 64 random bits choose: as often as its share of the weights."""
    target, total = draw / _MODULUS * math.fsum(weights), 0.0
    for number, weight in enumerate(weights):
        total += weight
        if target < total:
            return number
    return max(number for number, weight in enumerate(weights) if weight)  # the sum was rounded down


def weights_at(first: Sequence[float], later: Mapping[int, Sequence[float]], step: int) -> Sequence[float]:
    """Return the weights of a step of the order: `first`, or those of the last step of `later` up to it."""
    begun = [begin for begin in later if begin <= step]
    return later[max(begun)] if begun else first


def first_frame(clip_id: str, view: int, num_starts: int) -> int:
    """Return the first frame of a view, one of 0 … num_starts - 1; independent of the number of views."""
    return rng.scale_to_range((rng.key("view", clip_id) + view * _GOLDEN) % _MODULUS, num_starts)
