"""A curriculum as a mixture: phases in turn, each with its weights, and ramps between them.

A ramp is cut into at most 64 equal slices of constant weights, each those of its middle; as
`interleave.drifting` lets no slice's error stand, the turns of the whole ramp are the shape's to within the
mixture's bound. Whole numbers throughout: the shape is rounded to 2^-16, so it is the same on all machines.
A phase without a ramp begins strictly with its first turn. A light module.
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
    """One phase of a curriculum: from turn `first` on, cell → weight; a cell that is not named has 0.

    The first `ramp_turns` turns lead over from the weights of the leg before.
    """

    first: int
    weights: Mapping[str, int]
    ramp_turns: int = 0
    ramp: Shape = "linear"


def done(shape: Shape, slice_number: int, slices: int) -> int:
    """Return how much of a ramp is done in the middle of a slice, of 2^16."""
    middle = (2 * slice_number + 1) / (2 * slices)
    return round(_WHOLE * (middle if shape == "linear" else (1 - math.cos(math.pi * middle)) / 2))


def _ramp(
    before: Sequence[int], after: Sequence[int], leg: Phase, run: int
) -> list[tuple[int, Sequence[int]]]:
    """Return the (turn of the leg, weights) of the slices of its ramp."""
    runs = leg.ramp_turns // run
    slices = min(SLICES, runs)
    old, new = sum(before), sum(after)
    pieces: list[tuple[int, Sequence[int]]] = []
    for number in range(slices):
        part = done(leg.ramp, number, slices)
        weights = tuple(
            a * new * (_WHOLE - part) + b * old * part for a, b in zip(before, after, strict=True)
        )
        divisor = math.gcd(*weights)
        first = number * runs // slices * run
        pieces.append((first, tuple(weight // divisor for weight in weights)))
    return pieces


def mixture(legs: Sequence[Phase], cells: Sequence[str], *, run: int = 1) -> sampler_mixture.Mixture:
    """Return the mixture of these legs over these cells, the first leg from turn 0 on and without a ramp.

    `run`: so many turns in a row go to one cell. Raises ValueError for legs and ramps that do not fit.
    """
    if not legs or legs[0].first != 0 or legs[0].ramp_turns:
        raise ValueError("a curriculum begins with turn 0 and without a ramp")
    rows = [[leg.weights.get(cell, 0) for cell in cells] for leg in legs]
    parts: list[tuple[int, list[tuple[int, Sequence[int]]]]] = []
    for number, (leg, row) in enumerate(zip(legs, rows, strict=True)):
        if leg.ramp_turns % run or leg.first % run:
            raise ValueError(f"legs and ramps are whole runs of {run} turns")
        if number + 1 < len(legs) and leg.first + leg.ramp_turns > legs[number + 1].first:
            raise ValueError(f"a ramp of {leg.ramp_turns} turns does not end before the next leg begins")
        if leg.ramp_turns:
            start, pieces = parts[-1]
            if pieces[-1][0] == leg.first - start:  # the phase before was a ramp throughout
                pieces.pop()
            pieces += [(leg.first - start + at, w) for at, w in _ramp(rows[number - 1], row, leg, run)]
            pieces.append((leg.first - start + leg.ramp_turns, row))
        else:
            parts.append((leg.first, [(0, row)]))
    return sampler_mixture.chained(
        [(first, sampler_mixture.drifting(pieces, run=run)) for first, pieces in parts]
    )
