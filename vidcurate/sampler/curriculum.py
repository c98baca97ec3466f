"""Curriculum: a mixture in phases, each with its weights, and ramps between them.

`mixture` cuts a ramp into at most 64 equal slices of constant weights, the ramp's weights in the middle of
the slice. As `mixture.piecewise` makes good the rounding error of each slice in the next, the whole ramp
follows its shape to within the mixture's bound. All numbers are integers: the shape is rounded to 2^-16, so
the result is the same on all machines. A phase without a ramp begins exactly with its first turn. A light
module.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vidcurate.sampler import mixture as sampler_mixture

SLICES = 64
_WHOLE = 1 << 16

Shape = Literal["linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a curriculum: cell → weight from turn `first` on; 0 for a cell without an entry.

    The first `ramp_turns` turns move from the weights of the previous phase to these.
    """

    first: int
    weights: Mapping[str, int]
    ramp_turns: int = 0
    ramp: Shape = "linear"


def done(shape: Shape, slice_number: int, slices: int) -> int:
    """Return the progress of a ramp in the middle of a slice, in units of 2^-16."""
    middle = (2 * slice_number + 1) / (2 * slices)
    return round(_WHOLE * (middle if shape == "linear" else (1 - math.cos(math.pi * middle)) / 2))


def _ramp(
    before: Sequence[int], after: Sequence[int], phase: Phase, run: int
) -> list[tuple[int, Sequence[int]]]:
    """Return (first turn within the phase, weights) of each slice of the ramp."""
    runs = phase.ramp_turns // run
    slices = min(SLICES, runs)
    old, new = sum(before), sum(after)
    pieces: list[tuple[int, Sequence[int]]] = []
    for number in range(slices):
        part = done(phase.ramp, number, slices)
        weights = tuple(
            a * new * (_WHOLE - part) + b * old * part for a, b in zip(before, after, strict=True)
        )
        divisor = math.gcd(*weights)
        first = number * runs // slices * run
        pieces.append((first, tuple(weight // divisor for weight in weights)))
    return pieces


def mixture(phases: Sequence[Phase], cells: Sequence[str], *, run: int = 1) -> sampler_mixture.Mixture:
    """Return the mixture of these phases over these cells; the first phase begins at turn 0, without a ramp.

    `run`: number of consecutive turns that go to one cell. Raises ValueError for phases and ramps that do
    not fit.
    """
    if not phases or phases[0].first != 0 or phases[0].ramp_turns:
        raise ValueError("a curriculum begins with turn 0 and without a ramp")
    rows = [[phase.weights.get(cell, 0) for cell in cells] for phase in phases]
    parts: list[tuple[int, list[tuple[int, Sequence[int]]]]] = []
    for number, (phase, row) in enumerate(zip(phases, rows, strict=True)):
        if phase.ramp_turns % run or phase.first % run:
            raise ValueError(f"phases and ramps must be whole runs of {run} turns")
        if number + 1 < len(phases) and phase.first + phase.ramp_turns > phases[number + 1].first:
            raise ValueError(f"a ramp of {phase.ramp_turns} turns does not end before the next phase begins")
        if phase.ramp_turns:
            start, pieces = parts[-1]
            if pieces[-1][0] == phase.first - start:  # the phase before was a ramp throughout
                pieces.pop()
            pieces += [(phase.first - start + at, w) for at, w in _ramp(rows[number - 1], row, phase, run)]
            pieces.append((phase.first - start + phase.ramp_turns, row))
        else:
            parts.append((phase.first, [(0, row)]))
    return sampler_mixture.chained(
        [(first, sampler_mixture.piecewise(pieces, run=run)) for first, pieces in parts]
    )
