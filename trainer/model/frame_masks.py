"""Frame masks of training: which latent frames are given as conditioning.

With them one model continues and fills in clips. True = to be generated, False = given (clean, timestep 0).
The names and their meaning are the published ones; `interpolate` is misspelled there. Short clips are safe
here: the published code raises for `quarter_*` of 2 or 3 frames and leaves `image_head_tail` of 2 frames
nothing to generate.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.model import rng

Mask = NDArray[np.bool_]
SUM_TOLERANCE = 1e-6


def _random(mask: Mask, source: np.random.Generator) -> None:
    """Each frame is given with one probability, itself drawn from 0.1 ... 0.9."""
    ratio = source.uniform(0.1, 0.9)
    mask[:] = source.random(len(mask)) > ratio


def _interpolate(mask: Mask, source: np.random.Generator) -> None:
    """Every second frame is given."""
    mask[source.integers(2) :: 2] = False


def _quarter(num_frames: int, source: np.random.Generator) -> int:
    """Draw how many frames are given: 1 to a quarter of the clip."""
    return int(source.integers(1, max(1, num_frames // 4) + 1))


def _one(num_frames: int, source: np.random.Generator) -> int:
    return 1


Count = Callable[[int, np.random.Generator], int]


def _somewhere(count: Count) -> Callable[[Mask, np.random.Generator], None]:
    def apply(mask: Mask, source: np.random.Generator) -> None:
        given = count(len(mask), source)
        start = int(source.integers(0, len(mask) - given + 1))
        mask[start : start + given] = False

    return apply


def _at_ends(count: Count, *, head: bool, tail: bool) -> Callable[[Mask, np.random.Generator], None]:
    def apply(mask: Mask, source: np.random.Generator) -> None:
        given = count(len(mask), source)
        if head:
            mask[:given] = False
        if tail:
            mask[-given:] = False

    return apply


def _identity(mask: Mask, source: np.random.Generator) -> None:
    """Nothing is given."""


STRATEGIES: dict[str, Callable[[Mask, np.random.Generator], None]] = {
    "identity": _identity,
    "random": _random,
    "interpolate": _interpolate,
    "quarter_random": _somewhere(_quarter),
    "quarter_head": _at_ends(_quarter, head=True, tail=False),
    "quarter_tail": _at_ends(_quarter, head=False, tail=True),
    "quarter_head_tail": _at_ends(_quarter, head=True, tail=True),
    "image_random": _somewhere(_one),
    "image_head": _at_ends(_one, head=True, tail=False),
    "image_tail": _at_ends(_one, head=False, tail=True),
    "image_head_tail": _at_ends(_one, head=True, tail=True),
}


def check_ratios(ratios: Mapping[str, float]) -> dict[str, float]:
    """Return the probability of every strategy, in the order of STRATEGIES; they sum to 1.

    What the given ratios leave goes to `identity`. Raises ValueError, naming the value, for an unknown name,
    a ratio outside [0, 1], and ratios that sum to more than 1, or, with `identity` among them, not to 1.
    """
    for name, ratio in ratios.items():
        if name not in STRATEGIES:
            raise ValueError(f"{name} is not a mask strategy; they are {', '.join(STRATEGIES)}")
        if not 0 <= ratio <= 1:
            raise ValueError(f"mask ratio {name} is {ratio:g}; a ratio lies between 0 and 1")
    total = sum(ratios.values())
    if total > 1 + SUM_TOLERANCE or ("identity" in ratios and total < 1 - SUM_TOLERANCE):
        raise ValueError(
            f"mask ratios sum to {total:g}; they must sum to 1 (leave identity out: it takes the rest)"
        )
    rest = {"identity": max(0.0, 1.0 - total)} if "identity" not in ratios else {}
    every = {**ratios, **rest}
    return {name: every.get(name, 0.0) for name in STRATEGIES}


def choose(ratios: Mapping[str, float], draw: float) -> str:
    """Return the strategy that a uniform `draw` in [0, 1) falls on, along `check_ratios`' order."""
    probabilities = check_ratios(ratios)
    end = 0.0
    for name, probability in probabilities.items():
        end += probability
        if draw < end:
            return name
    # Rounding can leave the last end just below 1.
    return next(name for name in reversed(probabilities) if probabilities[name] > 0)


def frame_mask(strategy: str, num_frames: int, source: np.random.Generator) -> Mask:
    """Return the mask of one clip, bool [num_frames] in latent frames; at least one frame is True.

    Where a strategy would give every frame, the last stays to be generated. An image is always generated.
    """
    mask = np.ones(num_frames, dtype=np.bool_)
    if num_frames > 1:
        STRATEGIES[strategy](mask, source)
        if not mask.any():
            mask[-1] = True
    return mask


def draw_masks(
    ratios: Mapping[str, float], num_frames: int, *, seed: int, step: int, clip_ids: Sequence[str]
) -> tuple[Tensor, tuple[str, ...]]:
    """Return bool [B, num_frames] and the strategy of each clip; both belong to (seed, step, clip) alone."""
    rows: list[Mask] = []
    names: list[str] = []
    for clip_id in clip_ids:
        source = rng.generator(seed, "mask", step, clip_id)
        names.append(choose(ratios, float(source.random())))
        rows.append(frame_mask(names[-1], num_frames, source))
    return torch.from_numpy(np.stack(rows)), tuple(names)
