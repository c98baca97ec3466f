"""Counter-based random numbers: functions of (seed, purpose, step, clip) alone.

The key is hashed to the 128 bits of a Philox generator, so a draw depends on no earlier draw: any number of
ranks and workers get the same numbers, and a resumed run gets those of a run that never stopped. numpy draws
all numbers on the CPU; a GPU gets a copy.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

Purpose = Literal[
    "noise",
    "timestep",
    "mask",
    "caption_dropout",
    "posterior",
    "crop",
    "sample",
    "init",
    "validation",
    "route",
    "track",
]
"""What a draw is for; two purposes never share numbers."""


def generator(seed: int, purpose: Purpose, step: int = 0, clip_id: str = "") -> np.random.Generator:
    """Return the generator that belongs to this key alone. Costs about 15 microseconds.

    `step` counts optimizer steps over the whole run. Raises ValueError for a purpose that is not one.
    """
    if purpose not in get_args(Purpose):
        raise ValueError(
            f"{purpose!r} is no purpose of a draw; the purposes are {', '.join(get_args(Purpose))}."
        )
    # Length-prefixed by repr: ("a", 11) and ("a1", 1) cannot meet.
    text = repr((int(seed), purpose, int(step), str(clip_id)))
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, person=b"vidcurate-noise")
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key.digest(), "little")))


def normal(seed: int, purpose: Purpose, step: int, clip_ids: Sequence[str], shape: tuple[int, ...]) -> Tensor:
    """Return standard normal float32 [B, *shape], row b drawn for clip_ids[b]."""
    rows = np.empty((len(clip_ids), *shape), dtype=np.float32)
    for row, clip_id in zip(rows, clip_ids, strict=True):
        generator(seed, purpose, step, clip_id).standard_normal(dtype=np.float32, out=row)
    return torch.from_numpy(rows)


def scalars(
    seed: int,
    purpose: Purpose,
    step: int,
    clip_ids: Sequence[str],
    distribution: Literal["normal", "uniform"],
) -> Tensor:
    """Return one float32 draw per clip, [B]: standard normal, or uniform in [0, 1)."""
    draws = np.empty(len(clip_ids), dtype=np.float32)
    for number, clip_id in enumerate(clip_ids):
        source = generator(seed, purpose, step, clip_id)
        draws[number] = (
            source.standard_normal(dtype=np.float32)
            if distribution == "normal"
            else source.random(dtype=np.float32)
        )
    return torch.from_numpy(draws)


def caption_drops(seed: int, step: int, clip_ids: Sequence[str], probability: float) -> Tensor:
    """Return bool [B]: True where the caption is to be replaced by the null caption in this step."""
    return scalars(seed, "caption_dropout", step, clip_ids, "uniform") < probability
