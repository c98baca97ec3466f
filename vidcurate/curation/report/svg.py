"""SVG charts: number format, axes and colours that all report pages share.

Charts are inline SVG without scripts; each has a text description for screen readers. This module is light
(standard library only): the training reports import it too.
"""

import html
import math
from collections.abc import Callable, Sequence

Scale = Callable[[float], float]  # a value's position in the figure, px

# Page colours, light and dark, and what every chart has.
STYLE = """
:root { --paper: #fcfcfa; --card: #ffffff; --well: #f1f1ec; --ink: #1f2328; --soft: #656b73;
  --line: #dfdfd8; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --card: #1d2024; --well: #24282d;
  --ink: #e6e8ea; --soft: #9ba2aa; --line: #33383e; } }
svg text { fill: var(--soft); font: 11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); } svg .axis { stroke: var(--soft); }
"""


_PX_PER_LETTER = 7.5  # of a label, about


def shown(value: float) -> str:
    """Format a number for readers: thousands separators, at most three significant decimals."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def short(value: float) -> str:
    """Format a number as `shown`, from ten million on with an exponent: 1.25e7."""
    if math.isfinite(value) and abs(value) >= 1e7:
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")
    return shown(value)


def nice_step(rough: float) -> float:
    """Return the round number (1, 2 or 5 times a power of ten) that is not below `rough`."""
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round values within [low, high]."""
    if not high > low:
        return [low]
    step = nice_step((high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * number:.12g}") for number in range(first, last + 1)]


def spaced(marks: Sequence[float], scale: Scale) -> list[float]:
    """Return every mark, or every 2nd, 3rd …, so that no label of `shown` reaches the next one."""
    for step in range(1, len(marks) + 1):
        chosen = list(marks[::step])
        widths = [_PX_PER_LETTER * len(shown(mark)) for mark in chosen]
        if all(
            scale(right) - scale(left) > (before + after) / 2 + _PX_PER_LETTER
            for left, right, before, after in zip(chosen, chosen[1:], widths, widths[1:], strict=False)
        ):
            return chosen
    return list(marks[:1])


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return the linear map from [low, high] to [start, end]; values outside are clamped."""
    return lambda value: start + (min(max(value, low), high) - low) / (high - low) * (end - start)


def opening(width: int, height: int, description: str) -> str:
    """Return the start tag of a chart; `description` is its text for screen readers."""
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(description)}">'


def horizontal_grid(y: float, left: float, right: float, label: str) -> str:
    """Return a horizontal grid line with its label at the left."""
    return (
        f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def x_axis(y: float, left: float, right: float) -> str:
    """Return the line of the x axis."""
    return f'<line class="axis" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
