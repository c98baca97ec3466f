"""Line charts as inline SVG for the training reports.

STYLE colours the inks `ink-0` to `ink-7` for light and dark pages. `document` puts charts into one SVG file,
for pages of Markdown.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vidcurate.curation.report import svg
from vidcurate.curation.report.svg import Scale, short

INKS = 8
MOST_POINTS = 400
WIDTH, HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 12, 40
_LOG_FROM = 3.0  # from this ratio of the largest to the least value on, a logarithmic axis helps
_MOST_LOG_TICKS = 7

Point = tuple[float, float]

STYLE = (
    svg.STYLE
    + """
:root { --ink-0: #2a6fb5; --ink-1: #c8642b; --ink-2: #2f8f5b; --ink-3: #8a5cc0; --ink-4: #b8860b;
  --ink-5: #1f8a99; --ink-6: #b5476f; --ink-7: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --ink-0: #68a6e0; --ink-1: #e0894f; --ink-2: #5fc08c;
  --ink-3: #b592e6; --ink-4: #d9b044; --ink-5: #55bccb; --ink-6: #e07fa4; --ink-7: #9aa2ad; } }
svg text.title { fill: var(--ink); font-size: 13px; font-weight: 600; }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
svg .band { stroke: none; opacity: .2; } svg .dot { stroke: var(--card); stroke-width: 1; }
svg .error { stroke-width: 1.2; } svg .mark { stroke-width: 1.1; stroke-dasharray: 3 3; }
svg .flag { stroke: var(--card); stroke-width: 1; } svg .dashed { stroke-dasharray: 6 4; }
"""
    + "".join(
        f"svg .ink-{n} {{ stroke: var(--ink-{n}); }} svg .band.ink-{n}, svg .dot.ink-{n}, svg .flag.ink-{n},"
        f" svg rect.ink-{n} {{ fill: var(--ink-{n}); }} .key.ink-{n} {{ background: var(--ink-{n}); }}\n"
        for n in range(INKS)
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Curve: points by rising x. `band`: (x, low, high) behind it; `errors`: half the length of error bars.

    With `errors` or `has_dots` the chart also draws each point as a dot.
    """

    name: str
    ink: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    errors: Sequence[float | None] = ()
    has_dots: bool = False
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Vertical line at `x` with a flag; `words` appear as its tooltip.

    `target`: id of the page element that the flag links to, "" for none.
    """

    x: float
    words: str
    ink: int = 7
    target: str = ""


def thinned(points: Sequence[Point]) -> tuple[list[Point], list[tuple[float, float, float]]]:
    """Return at most MOST_POINTS means of equal groups of points, and each group's (x, least, most).

    Up to MOST_POINTS points stay unchanged, without a band. The band keeps single spikes visible.
    """
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return list(points), []
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    means = [(run[-1][0], math.fsum(y for _, y in run) / len(run)) for run in runs]
    return means, [(run[-1][0], min(y for _, y in run), max(y for _, y in run)) for run in runs]


def smoothed(points: Sequence[Point], reach: int) -> list[Point]:
    """Return the mean of each point and the `reach` - 1 before it."""
    total, found = 0.0, []
    for number, (x, y) in enumerate(points):
        total += y - (points[number - reach][1] if number >= reach else 0.0)
        found.append((x, total / min(number + 1, reach)))
    return found


def finite(points: Sequence[tuple[float, float | str | None]]) -> list[Point]:
    """Return the points whose y is a finite number."""
    return [(x, float(y)) for x, y in points if isinstance(y, (int, float)) and math.isfinite(y)]


def span(curves: Sequence[Curve]) -> tuple[float, float, float, float]:
    """Return (first x, last x, low, high) of what the curves show, with a margin above and below.

    Bands extend the range to at most three times that of the curves: one spike must not flatten the rest.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    for curve in curves:
        for (_, y), error in zip(curve.points, curve.errors, strict=False):
            ys += [y - (error or 0.0), y + (error or 0.0)]
    low, high = min(ys), max(ys)
    reach = high - low
    for curve in curves:
        for _, least, most in curve.band:
            low, high = min(low, max(least, min(ys) - reach)), max(high, min(most, max(ys) + reach))
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 0.05
    bottom = max(0.0, low - margin) if low >= 0 else low - margin
    return min(xs), max(xs), bottom, high + margin


def is_for_log(curves: Sequence[Curve]) -> bool:
    """Return whether a logarithmic axis helps: all values positive, largest far from least."""
    ys = [y for curve in curves for _, y in curve.points]
    return bool(ys) and min(ys) > 0 and max(ys) >= _LOG_FROM * min(ys)


def _log10(value: float) -> float:
    return math.log10(max(value, 1e-300))


def _logged(curve: Curve) -> Curve:
    """Return the curve with the logarithms of its values, for the range of an axis."""
    return Curve(
        name=curve.name,
        ink=curve.ink,
        points=[(x, _log10(y)) for x, y in curve.points],
        band=[(x, _log10(least), _log10(most)) for x, least, most in curve.band],
    )


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten within [low, high]; with more than 7 the powers alone."""
    powers = range(math.floor(_log10(low)), math.ceil(_log10(high)) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    found = [float(f"{value:.12g}") for value in found if low <= value <= high]
    tens = [value for value in found if math.log10(value).is_integer()]
    return tens if len(found) > _MOST_LOG_TICKS and len(tens) > 1 else found


def labels(values: Sequence[float]) -> list[str]:
    """Return short labels of an axis: 20k, 5e-4; with as many digits as keep them apart."""
    most = max((abs(value) for value in values), default=0.0)
    divisor, unit = (1e3, "k") if 1e4 <= most < 1e6 else (1e6, "M") if 1e6 <= most < 1e7 else (1.0, "")
    found = [short(value / divisor) + unit * (value != 0) for value in values]
    found = [
        _exponent(value) if 0 < abs(value) < 1e-3 else one for value, one in zip(values, found, strict=True)
    ]
    for digits in range(4, 8):
        if len(set(found)) == len(set(values)):
            break
        found = [f"{value / divisor:.{digits}g}{unit}" for value in values]
    return found


def _exponent(value: float) -> str:
    """Return a small number as 5e-4."""
    digits, _, power = f"{value:e}".partition("e")
    return f"{float(digits):.3g}e{int(power)}"


def chart(
    curves: Sequence[Curve],
    *,
    title: str,
    x_name: str = "step",
    marks: Sequence[Mark] = (),
    x_span: tuple[float, float] | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
    is_log: bool = False,
) -> str:
    """Return the curves as one SVG chart without a legend (see `legend`); "" when none has a point.

    `is_log`: the y axis is logarithmic (`is_for_log` says for which curves that helps).
    """
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return ""
    first, last, low, high = span([_logged(curve) for curve in curves] if is_log else curves)
    first, last = x_span or (first, last)
    last = last if last > first else first + 1
    right, bottom = width - _RIGHT, height - _BOTTOM

    across = svg.scale(first, last, _LEFT, right)
    placed = svg.scale(low, high, bottom, _TOP)
    down: Scale = (lambda y: placed(_log10(y))) if is_log else placed
    marked = log_ticks(10**low, 10**high) if is_log else svg.ticks(low, high, 4)
    ends = "; ".join(f"{curve.name} {short(curve.points[-1][1])}" for curve in curves)
    parts = [svg.opening(width, height, f"{title} by {x_name}, at the end: {ends}")]
    for value, label in zip(marked, labels(marked), strict=True):
        parts.append(svg.horizontal_grid(down(value), _LEFT, right, label))
    for value in svg.ticks(first, last, max(2, width // 90)):
        parts.append(
            f'<text x="{across(value):.1f}" y="{bottom + 16}" text-anchor="middle">{short(value)}</text>'
        )
    parts.append(svg.x_axis(bottom, _LEFT, right))
    parts.append(f'<text x="{right}" y="{height - 6}" text-anchor="end">{html.escape(x_name)}</text>')
    parts.extend(_mark(mark, across(mark.x), bottom) for mark in marks if first <= mark.x <= last)
    for curve in curves:
        parts.append(_drawn(curve, across, down))
    return "".join([*parts, "</svg>"])


def _mark(mark: Mark, x: float, bottom: float) -> str:
    words, ink = html.escape(mark.words), mark.ink % INKS
    line = f'<line class="mark ink-{ink}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>'
    flag = f'<circle class="flag ink-{ink}" cx="{x:.1f}" cy="{_TOP}" r="4.5"/>'
    drawn = f"<g><title>{words}</title>{line}{flag}</g>"
    return f'<a href="#{html.escape(mark.target)}" aria-label="{words}">{drawn}</a>' if mark.target else drawn


def _drawn(curve: Curve, across: Scale, down: Scale) -> str:
    ink, name = curve.ink % INKS, html.escape(curve.name)
    parts = [f"<g><title>{name}</title>"]
    if curve.band:
        up = [f"{across(x):.1f},{down(most):.1f}" for x, _, most in curve.band]
        back = [f"{across(x):.1f},{down(least):.1f}" for x, least, _ in reversed(curve.band)]
        parts.append(f'<polygon class="band ink-{ink}" points="{" ".join(up + back)}"/>')
    places = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in curve.points)
    dashed = " dashed" if curve.is_dashed else ""
    if len(curve.points) > 1:
        parts.append(f'<polyline class="line ink-{ink}{dashed}" points="{places}"/>')
    for (x, y), error in zip(curve.points, curve.errors, strict=False):
        if error:
            parts.append(
                f'<line class="error ink-{ink}" x1="{across(x):.1f}" x2="{across(x):.1f}"'
                f' y1="{down(y - error):.1f}" y2="{down(y + error):.1f}"/>'
            )
    if curve.errors or curve.has_dots or len(curve.points) == 1:
        for number, (x, y) in enumerate(curve.points):
            error = curve.errors[number] if number < len(curve.errors) else None
            spread = f" ± {short(error)}" if error else ""
            parts.append(
                f'<circle class="dot ink-{ink}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3.2">'
                f"<title>{name}: {short(y)}{spread} at {short(x)}</title></circle>"
            )
    return "".join([*parts, "</g>"])


def legend(names: Sequence[tuple[str, int]]) -> str:
    """Return the names of curves with the colour of each, as HTML."""
    items = "".join(
        f'<span><i class="key ink-{ink % INKS}"></i>{html.escape(name)}</span>' for name, ink in names
    )
    return f'<p class="legend">{items}</p>'


def document(
    panels: Sequence[tuple[str, str]], names: Sequence[tuple[str, int]], *, width: int, height: int
) -> str:
    """Return charts of one size below each other, with titles and one legend, as a complete SVG file.

    `panels` are (title, figure of `chart`).
    """
    head, row = 24, 20
    places: list[tuple[float, float]] = []
    x, y = 16.0, 18.0
    for name, _ in names:
        needed = 26 + 7.0 * len(name)
        if x + needed > width and x > 16:
            x, y = 16.0, y + row
        places.append((x, y))
        x += needed
    top = y + 14
    total = top + len(panels) * (height + head)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total:.0f}" width="{width}"'
        f' height="{total:.0f}"><style>{STYLE}</style>'
        '<rect width="100%" height="100%" style="fill: var(--card)"/>'
    ]
    for (name, ink), (x, y) in zip(names, places, strict=True):
        parts.append(
            f'<rect class="ink-{ink % INKS}" x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" rx="2"/>'
            f'<text x="{x + 15:.0f}" y="{y:.0f}">{html.escape(name)}</text>'
        )
    for number, (title, figure) in enumerate(panels):
        at = top + number * (height + head)
        placed = figure.replace("<svg ", f'<svg y="{at + head:.0f}" width="{width}" height="{height}" ', 1)
        parts.append(f'<text class="title" x="16" y="{at + 18:.0f}">{html.escape(title)}</text>{placed}')
    return "".join([*parts, "</svg>\n"])
