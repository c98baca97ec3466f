"""Time of a micro-batch, predicted by a model of five terms fitted to steps.

    seconds = a·N + b·N·S + c·N·T + d·text + e

N is the number of tokens of the micro-batch, S of a frame, T the number of frames of a latent and `text` the
number of caption tokens. So the terms are: linear layers and all that reads a token once, spatial attention,
temporal attention, keys and values of the captions, and the fixed cost of a micro-batch. Forward and backward
are fitted separately, because a recomputed block costs its forward pass a second time. No coefficient is
negative, errors are relative to the measured time, and a term that explains no more than the measurements'
noise (Akaike 1974) stays zero. Plain numbers, no torch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TERMS = ("token", "token_and_place", "token_and_frame", "text_token", "micro_batch")

NOISE = 0.02  # relative difference of two measurements of one step

Five = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A micro-batch: `clips` latents of `frames` frames of `places` tokens, `text_tokens` to each caption.

    `text_tokens` are those with keys and values: of a measured step as it ran; of a memory prediction the
    maximum of a caption, so that fast blocks, which compute the true tokens alone, never need more.
    """

    clips: int
    frames: int
    places: int
    text_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of all clips."""
        return self.clips * self.frames * self.places

    @property
    def terms(self) -> Five:
        """Factors of the five coefficients."""
        n = self.tokens
        return (n, n * self.places, n * self.frames, self.clips * self.text_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured step: its micro-batches and the seconds of all forward and all backward passes.

    `recomputed`: the share of the blocks whose forward pass ran a second time within the backward pass.
    """

    name: str
    works: tuple[Work, ...]
    forward: float
    backward: float
    recomputed: float = 0.0

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds for each of the TERMS, of the forward pass and of a backward pass without recompute."""

    forward: Five
    backward: Five

    def seconds(self, work: Work, recomputed: float = 0.0) -> float:
        """Return the seconds of forward and backward where a share `recomputed` of the blocks runs twice."""
        terms = np.array(work.terms)
        forward, backward = float(terms @ self.forward), float(terms @ self.backward)
        return forward * (1 + recomputed) + backward

    def of_clips(self, work: Work) -> tuple[float, float]:
        """Return the seconds of each clip of `work`, and the fixed seconds of a micro-batch."""
        fixed = self.forward[-1] + self.backward[-1]
        return (self.seconds(work) - fixed) / work.clips, fixed

    def error(self, measured: Measured) -> float:
        """Return predicted / measured seconds of a step - 1."""
        predicted = sum(self.seconds(work, measured.recomputed) for work in measured.works)
        return predicted / measured.seconds - 1


def _least_squares(terms: NDArray[np.float64], seconds: NDArray[np.float64], noise: float) -> Five:
    """Return the coefficients, none below zero, with the least squared relative error.

    A non-zero coefficient is penalised by twice the noise squared. Tries all 31 sets of non-zero ones.
    """
    scaled = terms / seconds[:, None]
    size = np.abs(scaled).max(0)
    best, found = np.inf, np.zeros(len(TERMS))
    for chosen in itertools.product((False, True), repeat=len(TERMS)):
        some = np.flatnonzero(chosen)
        if not len(some):
            continue
        part = scaled[:, some] / size[some]
        values, *_ = np.linalg.lstsq(part, np.ones(len(seconds)), rcond=1e-9)
        loss = float(np.square(part @ values - 1).sum()) + 2 * noise**2 * len(some)
        if values.min() >= 0 and loss < best - 1e-12:
            best, found = loss, np.zeros(len(TERMS))
            found[some] = values / size[some]
    a, b, c, d, e = found.tolist()
    return a, b, c, d, e


def fit(steps: Sequence[Measured], noise: float = NOISE) -> Cost:
    """Return the cost that fits the measured steps best. Raises ValueError without any.

    `noise` is the relative error of a measurement.
    """
    if not steps:
        raise ValueError("no measured step to fit a cost to")
    terms = np.array([np.sum([work.terms for work in step.works], axis=0) for step in steps], dtype=float)
    forward = np.array([step.forward for step in steps])
    again = np.array([step.recomputed for step in steps]) * forward
    backward = np.array([step.backward for step in steps]) - again
    return Cost(
        forward=_least_squares(terms, forward, noise), backward=_least_squares(terms, backward, noise)
    )


def errors(steps: Sequence[Measured], noise: float = NOISE) -> dict[str, tuple[float, float]]:
    """Return, for each step, the error of the fit to all steps and of the fit to all other steps.

    The second estimates the prediction error of a shape that was not measured.
    """
    whole = fit(steps, noise)
    found: dict[str, tuple[float, float]] = {}
    for step in steps:
        others = [other for other in steps if other is not step]
        found[step.name] = (whole.error(step), fit(others, noise).error(step) if others else np.nan)
    return found
