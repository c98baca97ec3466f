"""One page that shows a run: its samples, prompts down and steps across, and its loss curve above them.

`RUN/gallery.html` is drawn from `RUN/metrics.jsonl` and `RUN/samples/step-…/samples.json`, stands alone but
for the videos beside it (relative links, no network, no script but one line for play and pause), and is
written again after each round of samples. `python -m trainer.gallery RUN` draws it by hand.
"""

import html
import json
import math
import sys
from pathlib import Path
from typing import Any

from trainer import metrics
from vidcurate.errors import InputError, VidcurateError

SAMPLES = "samples"
LISTING = "samples.json"
PAGE = "gallery.html"

_WIDTH, _HEIGHT = 880, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 28
_MAX_POINTS = 600

_STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --ink: #1f2328; --soft: #6a6f76; --line: #dcdcd6;
        --card: #ffffff; --curve: #1a66b8; --raw: #9dbfe0; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e7e8ea; --soft: #9aa0a8;
        --line: #33373c; --card: #1e2125; --curve: #6fb0f0; --raw: #35587a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 76rem; background: var(--paper);
       color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 2.25rem 0 .75rem; }
p.about { margin: 0; color: var(--soft); }
svg { display: block; width: 100%; height: auto; background: var(--card); border: 1px solid var(--line);
      border-radius: 8px; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); } .raw { stroke: var(--raw); fill: none; stroke-width: 1; }
.curve { stroke: var(--curve); fill: none; stroke-width: 2; stroke-linejoin: round; }
.stage { stroke: var(--soft); stroke-dasharray: 3 3; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--card); }
table { border-collapse: collapse; }
th, td { padding: .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tr:last-child > * { border-bottom: 0; }
thead th { font-weight: 600; font-size: .8rem; color: var(--soft); white-space: nowrap; }
tbody th { position: sticky; left: 0; background: var(--card); font-weight: 400; width: 13rem;
           min-width: 13rem; font-size: .9rem; }
video { display: block; height: 8rem; border-radius: 4px; background: #000; image-rendering: pixelated; }
.none { color: var(--soft); font-size: .85rem; }
button { font: inherit; font-size: .85rem; padding: .2rem .7rem; border-radius: 6px; cursor: pointer;
         border: 1px solid var(--line); background: var(--card); color: var(--ink); }
"""
_TOGGLE = (
    "const v=[...document.querySelectorAll('video')];const p=v.some(x=>!x.paused);"
    "v.forEach(x=>{if(p){x.pause()}else{x.currentTime=0;x.play()}})"
)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return round values between `low` and `high`, about `count` of them."""
    rough = (high - low) / max(1, count)
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step) + 1)]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most _MAX_POINTS points: the means of equal runs of them."""
    size = math.ceil(len(points) / _MAX_POINTS)
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    return [(run[-1][0], math.fsum(y for _, y in run) / len(run)) for run in runs]


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the mean over the last tenth of what came before each point."""
    smooth = []
    for number in range(len(points)):
        window = points[max(0, number - max(1, len(points) // 20)) : number + 1]
        smooth.append((points[number][0], math.fsum(y for _, y in window) / len(window)))
    return smooth


def _stage_starts(lines: list[dict[str, Any]]) -> list[tuple[int, str]]:
    starts: list[tuple[int, str]] = []
    for line in lines:
        if not starts or starts[-1][1] != line["stage"]:
            starts.append((line["step"], line["stage"]))
    return starts


def loss_curve(lines: list[dict[str, Any]]) -> str:
    """Return the loss of metric lines as an inline SVG: each step faint, its running mean on top."""
    points = [(float(line["step"]), line["loss"]) for line in lines if isinstance(line["loss"], float)]
    if len(points) < 2:
        return '<p class="none">The loss curve appears after the second step.</p>'
    points = _thin(points)
    first, last = points[0][0], points[-1][0]
    low, high = min(y for _, y in points), max(y for _, y in points)
    margin = 0.05 * (high - low) or 0.1
    low, high = low - margin, high + margin

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT),
            _TOP + (high - y) / (high - low) * (_HEIGHT - _TOP - _BOTTOM),
        )

    def path(line: list[tuple[float, float]]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Loss by step">']
    for value in _ticks(low, high, 5):
        y = place(first, value)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value in _ticks(first, last, 8):
        x = place(value, low)[0]
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{value:,.0f}</text>')
    for step, name in _stage_starts(lines)[1:]:
        x = place(step, low)[0]
        parts.append(f'<line class="stage" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{_TOP + 10}">{html.escape(name)}</text>')
    parts.append(f'<polyline class="raw" points="{path(points)}"/>')
    parts.append(f'<polyline class="curve" points="{path(_smooth(points))}"/></svg>')
    return "".join(parts)


def rounds(run: Path) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return (step, samples) of each complete round, oldest first; a round without its listing is passed."""
    found = []
    for listing in sorted((run / SAMPLES).glob(f"step-*/{LISTING}")):
        entries = json.loads(listing.read_text(encoding="utf-8"))
        found.append((int(entries["step"]), entries["samples"]))
    return sorted(found, key=lambda entry: entry[0])


def _table(run: Path) -> str:
    columns = rounds(run)
    if not columns:
        return '<p class="none">No samples yet.</p>'
    rows: dict[tuple[int, str, int], dict[int, str]] = {}
    for step, samples in columns:
        for sample in samples:
            key = (sample["number"], sample["prompt"], sample["seed"])
            rows.setdefault(key, {})[step] = sample["file"]
    head = "".join(f"<th>step {step:,}</th>" for step, _ in columns)
    body = []
    for (_, prompt, seed), files in rows.items():
        cells = "".join(
            f'<td><video src="{html.escape(files[step])}" loop muted autoplay playsinline controls'
            f' preload="metadata" aria-label="{html.escape(prompt)}, step {step}"></video></td>'
            if step in files
            else '<td class="none">not sampled</td>'
            for step, _ in columns
        )
        body.append(
            f'<tr><th scope="row">{html.escape(prompt)}<br><span class="none">seed {seed}</span></th>'
            f"{cells}</tr>"
        )
    return (
        f'<p><button onclick="{_TOGGLE}">play or pause all</button></p>'
        f'<div class="scroll"><table><thead><tr><th>prompt</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def write_gallery(run: Path, name: str | None = None) -> Path:
    """Write RUN/gallery.html and return its path. Raises InputError where there is no run."""
    if not run.is_dir():
        raise InputError(f"{run}: no such run folder.")
    lines = metrics.read(run / metrics.METRICS)
    about = "no steps yet"
    if lines:
        about = f"{lines[-1]['step']:,} steps, stage {lines[-1]['stage']}, last loss {lines[-1]['loss']:.4g}"
    title = html.escape(name or run.name or run.resolve().name)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}: samples</title><style>{_STYLE}</style></head><body>"
        f'<h1>{title}</h1><p class="about">{html.escape(about)}</p>'
        f"<h2>Loss</h2>{loss_curve(lines)}<h2>Samples</h2>{_table(run)}</body></html>\n"
    )
    partial = run / f".{PAGE}.partial"
    partial.write_text(page, encoding="utf-8")
    return partial.replace(run / PAGE)


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1 or given[0].startswith("-"):
        print("usage: python -m trainer.gallery RUN", file=sys.stderr)
        return 0 if given in (["-h"], ["--help"]) else 2
    try:
        print(write_gallery(Path(given[0])))
    except VidcurateError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
