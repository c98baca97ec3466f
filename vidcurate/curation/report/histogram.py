"""Histograms and level ranges as SVG charts for the curation report.

style.html colours the classes `keep`, `drop` and `level-N`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from vidcurate.curation.report.svg import (
    horizontal_grid,
    nice_step,
    opening,
    scale,
    shown,
    spaced,
    ticks,
    x_axis,
)

Values = NDArray[np.float64]

WIDTH, HEIGHT = 440, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 26, 30
_MOST_BARS = 32
_LARGEST = 1e300  # larger values are drawn there: the difference of two of them has to be a number
_HALVES = 2.0**52  # from here on no number has a half
_TAIL, _LONG = 0.95, 3.0  # a tail beyond this quantile is long when it is this many times all before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Series of a stacked histogram, from the bottom up. `ink` is a CSS class of the page."""

    name: str
    ink: str
    values: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Counted bars: `counts` is [series, bar]; `edges` has one more entry than there are bars.

    The last bar also counts the `num_beyond` values above its edge.
    """

    edges: Values
    counts: NDArray[np.int64]
    is_whole: bool
    num_beyond: int


def bars(series: Sequence[Series], thresholds: Sequence[float] = ()) -> Bars:
    """Count the finite values of each series into bars with round edges.

    A small number of distinct whole numbers get one bar each. The last bar counts a long tail (_TAIL, _LONG),
    unless a threshold lies in the tail.
    """
    parts = [np.clip(part.values[np.isfinite(part.values)], -_LARGEST, _LARGEST) for part in series]
    every = np.concatenate(parts)
    if every.size == 0:
        return Bars(
            edges=np.array([0.0, 1.0]),
            counts=np.zeros((len(parts), 1), dtype=np.int64),
            is_whole=False,
            num_beyond=0,
        )
    low, high = float(every.min()), float(every.max())
    tail = max(float(np.quantile(every, _TAIL, method="lower")), *thresholds, low)
    num_beyond = 0
    if high - low > _LONG * (tail - low) > 0:
        high = tail
    is_whole = bool((every == np.round(every)).all())
    if is_whole and high - low < _MOST_BARS and max(abs(low), abs(high)) < _HALVES:
        edges = np.arange(math.floor(low), math.floor(high) + 2, dtype=np.float64) - 0.5
    else:
        step = nice_step(max(high - low, abs(high) * 1e-6, 1e-9) / (_MOST_BARS - 4))
        if is_whole:
            step = max(step, 1.0)
        first = math.floor(low / step + 1e-9)
        last = max(math.ceil(high / step - 1e-9), first + 1)
        if last * step <= high:  # a value on the last edge gets its own bar
            last += 1
        edges = np.arange(first, last + 1, dtype=np.float64) * step
        is_whole = False
    num_beyond = int((every > edges[-1]).sum())
    inside = [np.clip(part, edges[0], np.nextafter(edges[-1], -np.inf)) for part in parts]
    counts = np.stack([np.histogram(part, bins=edges)[0] for part in inside]).astype(np.int64)
    return Bars(edges=edges, counts=counts, is_whole=is_whole, num_beyond=num_beyond)


def _bar_name(found: Bars, bar: int, unit: str) -> str:
    low, high = float(found.edges[bar]), float(found.edges[bar + 1])
    ending = f" {unit}" if unit else ""
    if found.is_whole:
        return f"{shown(low + 0.5)}{ending}"
    if bar == len(found.edges) - 2 and found.num_beyond:
        return f"{shown(low)}{ending} and more"
    return f"{shown(low)} to {shown(high)}{ending}"


def histogram(
    series: Sequence[Series], *, title: str, unit: str = "", thresholds: Sequence[tuple[str, float]] = ()
) -> Markup:
    """Return a stacked histogram of the series as SVG, with the thresholds as lines.

    `thresholds` are (label, value), such as ("min", 2.0).
    """
    found = bars(series, [value for _, value in thresholds])
    parts = [(part.name, part.ink) for part in series]
    return counted_histogram(
        found,
        parts,
        description=_description(title, series, unit, thresholds),
        unit=unit,
        thresholds=thresholds,
    )


def counted_histogram(
    found: Bars,
    series: Sequence[tuple[str, str]],
    *,
    description: str,
    unit: str = "",
    thresholds: Sequence[tuple[str, float]] = (),
) -> Markup:
    """Return counted bars as SVG. `series` are (name, ink) of the rows of `found.counts`."""
    low, high = float(found.edges[0]), float(found.edges[-1])
    # The axis extends to a threshold just outside the values; one further out is drawn at the margin.
    reach = high - low
    low = min([low, *(value for _, value in thresholds if low - 0.25 * reach <= value < low)])
    high = max([high, *(value for _, value in thresholds if high < value <= high + 0.25 * reach)])
    most = max(int(found.counts.sum(axis=0).max()), 1)
    marks = [mark for mark in ticks(0, most, 3) if mark == round(mark)]

    across = scale(low, high, _LEFT, WIDTH - _RIGHT)
    up = scale(0, most, HEIGHT - _BOTTOM, _TOP)
    parts = [opening(WIDTH, HEIGHT, description)]
    parts.extend(horizontal_grid(up(mark), _LEFT, WIDTH - _RIGHT, f"{mark:,.0f}") for mark in marks)
    for bar in range(found.counts.shape[1]):
        below = 0
        left, right = across(float(found.edges[bar])), across(float(found.edges[bar + 1]))
        inner = max(right - left - 1, 0.5)
        for (name, ink), count in zip(series, found.counts[:, bar], strict=True):
            if count:
                top = up(below + int(count))
                parts.append(
                    f'<rect class="{ink}" x="{left + 0.5:.1f}" width="{inner:.1f}" y="{top:.1f}"'
                    f' height="{max(up(below) - top, 0.8):.1f}"><title>{escape(_bar_name(found, bar, unit))}:'
                    f" {int(count):,} {escape(name)}</title></rect>"
                )
                below += int(count)
    bottom = HEIGHT - _BOTTOM
    parts.append(x_axis(bottom, _LEFT, WIDTH - _RIGHT))
    if found.num_beyond:
        parts.append(
            f'<text x="{WIDTH - _RIGHT}" y="{bottom + 16}" text-anchor="end">'
            f"{shown(float(found.edges[-2]))} and more</text>"
        )
    for mark in spaced(_x_marks(found, low, high), across):
        # The first label stays clear of the 0 of the other axis, the last inside the figure.
        x = max(across(mark), _LEFT - 6 + 4 * len(shown(mark)))
        anchor = "end" if x > WIDTH - _RIGHT - 16 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{shown(mark)}</text>')
    parts.extend(_threshold(label, value, across(value), bottom) for label, value in thresholds)
    parts.append("</svg>")
    return Markup("".join(parts))


def _x_marks(found: Bars, low: float, high: float) -> list[float]:
    marks = ticks(low, high, 6)
    is_whole = found.is_whole or bool((found.edges == np.round(found.edges)).all())
    if found.num_beyond:  # the axis ends with "… and more"
        marks = [mark for mark in marks if mark < low + 0.62 * (high - low)]
    return [mark for mark in marks if mark == round(mark)] if is_whole else marks


def _threshold(label: str, value: float, x: float, bottom: float) -> str:
    is_right = x > WIDTH * 0.7
    anchor, shift = ("end", -4) if is_right else ("start", 4)
    return (
        f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 14}" y2="{bottom}"/>'
        f'<text class="limit" x="{x + shift:.1f}" y="{_TOP - 8}" text-anchor="{anchor}">'
        f"{escape(label)} {shown(value)}</text>"
    )


def _description(
    title: str, series: Sequence[Series], unit: str, thresholds: Sequence[tuple[str, float]]
) -> str:
    found = []
    for part in series:
        values = part.values[np.isfinite(part.values)]
        if values.size:
            found.append(
                f"{values.size:,} {part.name}, from {shown(float(values.min()))}"
                f" to {shown(float(values.max()))}, median {shown(float(np.median(values)))}"
            )
    limits = "".join(f"; {label} {shown(value)}" for label, value in thresholds)
    return f"{title}{f' in {unit}' if unit else ''}: {'; '.join(found) or 'no values'}{limits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Range of one level on a common axis, with its mean and one standard deviation (`spread`)."""

    name: str
    ink: str
    low: float
    high: float
    mean: float
    spread: float


def spans(rows: Sequence[Span], *, title: str, unit: str = "") -> Markup:
    """Return the spans as SVG, one below another: range as line, spread as band, mean as dot.

    When all ranges end at whole numbers, as counts do, the axis has whole numbers only.
    """
    left, right, row_height = 70, 16, max(34, 150 // len(rows))  # at least as high as a histogram
    width, height = WIDTH, row_height * len(rows) + 34
    low, high = min(row.low for row in rows), max(row.high for row in rows)
    high = high if high > low else low + 1

    across = scale(low, high, left, width - right)
    description = "; ".join(
        f"{row.name}: {shown(row.low)} to {shown(row.high)}, mean {shown(row.mean)}" for row in rows
    )
    parts = [opening(width, height, f"{title}: {description}")]
    bottom = row_height * len(rows) + 8
    is_whole = all(end == round(end) for row in rows for end in (row.low, row.high))
    marks = [mark for mark in ticks(low, high, 6) if not is_whole or mark == round(mark)]
    for mark in spaced(marks, across):
        parts.append(
            f'<line class="grid" x1="{across(mark):.1f}" x2="{across(mark):.1f}" y1="4" y2="{bottom}"/>'
            f'<text x="{across(mark):.1f}" y="{bottom + 16}" text-anchor="middle">{shown(mark)}</text>'
        )
    for number, row in enumerate(rows):
        middle = row_height * number + row_height / 2 + 4
        from_x, to_x = across(row.mean - row.spread), across(row.mean + row.spread)
        parts.append(
            f"<g><title>{escape(row.name)}: {shown(row.low)} to {shown(row.high)} {escape(unit)}, mean"
            f" {shown(row.mean)}, standard deviation {shown(row.spread)}</title>"
            f'<text class="name" x="{left - 10}" y="{middle + 4:.1f}" text-anchor="end">'
            f"{escape(row.name)}</text>"
            f'<line class="range" x1="{across(row.low):.1f}" x2="{across(row.high):.1f}" y1="{middle:.1f}"'
            f' y2="{middle:.1f}"/>'
            f'<rect class="{row.ink}" x="{from_x:.1f}" width="{max(to_x - from_x, 2):.1f}"'
            f' y="{middle - 8:.1f}" height="16" rx="3"/>'
            f'<circle class="mean" cx="{across(row.mean):.1f}" cy="{middle:.1f}" r="4"/></g>'
        )
    parts.append("</svg>")
    return Markup("".join(parts))
