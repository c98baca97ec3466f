"""What of a clip is shown when its turn comes: from which frame on, and under which of its captions.

Both follow from how often its cell was read through before (the pass), never from a worker or a rank. Without
`num_views` every showing has a start frame of its own, drawn for its place in the order. With it a clip has
that many fixed views, and they take turns: what is finite can be encoded ahead. A view belongs to the clip
alone, not to the seed, so one set of latents serves every run.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vidcurate import rng

Passes = TypeVar("Passes", int, NDArray[np.int64])

# Multiples of the golden ratio fall evenly into [0, 1), however many there are: view 2 lies far from 0 and 1.
_GOLDEN = 0x9E3779B97F4A7C15
_MODULUS = 1 << 64


def view_number(pass_number: Passes, num_views: int) -> Passes:
    """Return which of a clip's `num_views` views is shown in this pass, from 0; of many passes, an array."""
    return pass_number % num_views


def caption_number(pass_number: Passes, num_views: int | None, num_captions: int) -> Passes:
    """Return which of a clip's captions it is shown under: each stays until all views were shown with it."""
    return pass_number // (num_views or 1) % num_captions


def first_frame(clip_id: str, view: int, num_starts: int) -> int:
    """Return the first frame of a view, one of 0 … num_starts - 1. More views leave the earlier as is."""
    return rng.scale_to_range((rng.key("view", clip_id) + view * _GOLDEN) % _MODULUS, num_starts)
