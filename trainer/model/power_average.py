"""Power-function averages of weights, and other widths made from them (EDM2).

After update t an average of exponent γ weighs the weights of update τ by τ^γ: average ← β·average +
(1 − β)·weights with β = (1 − 1/t)^(γ+1). Its width is the profile's standard deviation over t. Two averages,
kept at several updates, span a space of profiles; the profile of any width is approximated in it by least
squares, and the same sums of the kept tensors are the average (Karras et al., arXiv 2312.02696, section 3).
"""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

PARTS = ("power_ema_narrow", "power_ema_wide")
"""Names of the averages in a checkpoint, in the order of the recipe's widths."""
WIDEST = math.sqrt(1 / 12)  # the plain mean of all updates, exponent 0
BINS = 4096  # of updates, in which profiles are compared


def _two_widths(widths: tuple[float, float]) -> tuple[float, float]:
    if not 0 < widths[0] < widths[1] < WIDEST:
        raise ValueError(f"the widths are {list(widths)}; give 0 < narrow < wide < {WIDEST:.4f}")
    return widths


Widths = Annotated[tuple[float, float], AfterValidator(_two_widths)]
"""Widths of the two averages that are tracked, narrow and wide; each takes as much memory as the weights."""


def exponent(width: float) -> float:
    """Return γ of the profile of this width: width² = (γ + 1) / ((γ + 2)² (γ + 3)). Raises ValueError."""
    if not 0 < width < WIDEST:
        raise ValueError(f"the width of an average is {width:g}; it must be between 0 and {WIDEST:.4f}.")
    found = np.roots([1, 7, 16 - width**-2, 12 - width**-2])
    return float(found.real.max())


def decay(gamma: float, update: int) -> float:
    """Return β of update number `update`, from 1; the first one takes the weights as they are."""
    return float((1 - 1 / update) ** (gamma + 1))


class Kept(NamedTuple):
    """An average as it was after `update` updates, of exponent `gamma`."""

    update: int
    gamma: float


class Mixture(NamedTuple):
    """Factors of kept averages, and how far their sum's profile is from the wanted one, over its norm."""

    factors: NDArray[np.float64]
    error: float


def _shares(kept: Kept, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of the updates in each bin, after an edge up to the next, over its size's root."""
    whole = (np.minimum(edges, kept.update) / kept.update) ** (kept.gamma + 1)
    found: NDArray[np.float64] = np.diff(whole) / np.sqrt(np.diff(edges))
    return found


def mixture(kept: Sequence[Kept], wanted: Kept) -> Mixture:
    """Return the factors with which the averages `kept` sum to `wanted`, by least squares."""
    last = max(wanted.update, *(one.update for one in kept))
    even = np.linspace(0, last, min(last, BINS) + 1).round()
    edges = np.unique(np.concatenate([even, [one.update for one in kept], [wanted.update]]))
    columns = np.stack([_shares(one, edges) for one in kept], axis=1)
    goal = _shares(wanted, edges)
    factors: NDArray[np.float64] = np.linalg.lstsq(columns, goal, rcond=1e-10)[0].astype(np.float64)
    error = float(np.linalg.norm(columns @ factors - goal) / np.linalg.norm(goal))
    return Mixture(factors=factors, error=error)
