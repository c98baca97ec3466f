"""Gallery page of a run: samples (prompts down, steps across) and the loss curve.

`RUN/gallery.html` needs no network: its videos lie beside it, and `RUN/gallery.js` has its data, from
`RUN/metrics.jsonl` and the rounds in `RUN/samples`. An open page reloads that script every few seconds, as a
browser lets a page from disk read nothing else. Each round of samples updates the page; `python -m trainer
gallery RUN` does so by hand.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands
from trainer.report import review_links
from trainer.run_folder import clip_losses, metrics, sample_rounds
from trainer.run_folder import layout as run_folder_layout
from vidcurate.curation.report import review_link
from vidcurate.errors import InputError, StorageError
from vidcurate.storage import atomic_file

PAGE = "gallery.html"
DATA = "gallery.js"
SERVE = "serve"  # the inference server's folder in a run's folder
OWN_TAB = "own"
_WIDTH, _HEIGHT = 880, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 28
_MAX_POINTS = 600


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return round values between `low` and `high`, about `count` of them."""
    rough = (high - low) / max(1, count)
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step) + 1)]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most _MAX_POINTS points: means of equal groups."""
    size = math.ceil(len(points) / _MAX_POINTS)
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    return [(run[-1][0], math.fsum(y for _, y in run) / len(run)) for run in runs]


def _smooth(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the mean over the last tenth of the values before each point."""
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


def loss_curve(lines: list[dict[str, Any]], validation: Sequence[tuple[float, float]] = ()) -> str:
    """Return the loss of metric lines as an inline SVG: each step faint, its running mean on top.

    `validation` are (step, loss), marked with a ring.
    """
    points = [(float(line["step"]), line["loss"]) for line in lines if isinstance(line["loss"], float)]
    if len(points) < 2:
        return '<p class="none">The loss curve appears after the second step.</p>'
    points = _thin(points)
    first, last = points[0][0], points[-1][0]
    marks = [(x, y) for x, y in validation if first <= x <= last]
    low, high = min(y for _, y in (*points, *marks)), max(y for _, y in (*points, *marks))
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
        anchor = "end" if x > _WIDTH - 40 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="{anchor}">{value:,.0f}</text>')
    for step, name in _stage_starts(lines)[1:]:
        x = place(step, low)[0]
        parts.append(f'<line class="stage" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{_TOP + 10}">{html.escape(name)}</text>')
    parts.append(f'<polyline class="raw" points="{path(points)}"/>')
    parts.append(f'<polyline class="curve" points="{path(_smooth(points))}"/>')
    if marks:
        right, line = _WIDTH - _RIGHT - 6, _TOP + 10
        parts.append(f'<circle class="mark" cx="{right - 90}" cy="{line - 4}" r="3"/>')
        parts.append(f'<text x="{right}" y="{line}" text-anchor="end">validation loss</text>')
    for x, y in marks:
        left, top = place(x, y)
        title = f"<title>validation loss {y:.4g} at step {x:,.0f}</title>"
        parts.append(f'<circle class="mark" cx="{left:.1f}" cy="{top:.1f}" r="3">{title}</circle>')
    return "".join(parts) + "</svg>"


def _set(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a set's rounds for the page: its steps, and a row for each prompt and seed."""
    rows: dict[tuple[int, int, str], dict[str, str]] = {}
    for facts in found:
        for sample in facts["samples"]:
            key = (sample["number"], sample["seed"], sample["prompt"])
            # A repeated round has the same names: the URL must change, or browsers show cached clips.
            file = f"{sample['file']}?{facts.get('time', 0):.0f}"
            rows.setdefault(key, {})[str(facts["step"])] = file
    asked, weights = found[-1].get("asked"), found[-1].get("weights")
    return {
        "name": name or OWN_TAB,
        "about": "{num_frames} frames · {height} × {width} px · {fps:g} frames/s · {steps} steps · "
        "guidance {guidance:g} · ".format_map(asked)
        + f"{weights} weights"
        if asked
        else "",
        "ratio": f"{asked['width']} / {asked['height']}" if asked else "",
        "steps": [facts["step"] for facts in found],
        "rows": [
            {"number": number, "seed": seed, "prompt": prompt, "files": files}
            for (number, seed, prompt), files in sorted(rows.items())
        ],
    }


def _link(run: Path, sets: list[dict[str, Any]]) -> None:
    """Add links into the review app: a row's `link` to captions like its prompt, a set's `links` by step.

    A step leads to the clips of the newest recorded step that is not after it.
    """
    pages = review_links.targets(run, run)
    if not pages:
        return
    last = list(pages.values())[-1]
    steps = sorted({step for one in sets for step in one["steps"]})
    recorded = clip_losses.newest_before(run, steps)
    for one in sets:
        for row in one["rows"]:
            row["link"] = review_links.link_captions(row["prompt"], last)
        found = {step: recorded[step] for step in one["steps"] if step in recorded}
        one["links"] = {
            str(step): [line["step"], review_link.link_clips(map(str, line["clip_ids"]), to)]
            for step, line in found.items()
            if (to := review_links.target(pages, line["stage"]))
        }


def _validation(run: Path) -> list[tuple[float, float]]:
    """Return (step, loss) of each validation round; the training's own if the server has one, too."""
    found: dict[int, float] = {}
    for path in (run / SERVE / metrics.VALIDATION, run / metrics.VALIDATION):
        found |= {
            line["step"]: line["loss"] for line in metrics.read_metrics(path) if line["weights"] == "ema"
        }
    return [(float(step), loss) for step, loss in sorted(found.items()) if isinstance(loss, float)]


def _about(lines: list[dict[str, Any]]) -> str:
    if not lines:
        return "no steps yet"
    loss = lines[-1]["loss"]
    shown = f"{loss:.4g}" if isinstance(loss, float) else loss
    return f"{lines[-1]['step']:,} steps, stage {lines[-1]['stage']}, last loss {shown}"


def _name(run: Path) -> str:
    """Return the run's name by its recipe, or the folder's name without a recipe."""
    try:
        return str(run_folder_layout.read_recipe(run)["name"])
    except (StorageError, KeyError):
        return run.name or run.resolve().name


def page_data(run: Path, name: str | None = None) -> dict[str, Any]:
    """Return the page's data as JSON values."""
    lines = metrics.read_metrics(run / metrics.METRICS)
    sets = [(own, sample_rounds.rounds(run, own)) for own in sample_rounds.sets(run)]
    shown = [_set(own, found) for own, found in sets if found]
    _link(run, shown)
    return {
        "name": name or _name(run),
        "about": _about(lines),
        "curve": loss_curve(lines, _validation(run)),
        "sets": shown,
    }


def write_gallery(run: Path, name: str | None = None) -> Path:
    """Write RUN/gallery.html and its data, RUN/gallery.js; return the page's path.

    Raises InputError without a run, StorageError.
    """
    if not run.is_dir():
        raise InputError(f"{run}: no such run folder.")
    data = page_data(run, name)
    page = _with_policy(Path(__file__).with_name("gallery_page.html").read_text(encoding="utf-8"))
    _put(run / DATA, f"gallery({json.dumps(data, ensure_ascii=False)});\n")
    return _put(run / PAGE, page.replace("TITLE", html.escape(data["name"])))


def _with_policy(page: str) -> str:
    """Return the page with the hash of its script in its content security policy: no other script may run."""
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page.replace("SCRIPT_HASH", f"'sha256-{digest}'", 1)


def _put(path: Path, text: str) -> Path:
    """Write a file that the training and a server may write at the same time."""
    return atomic_file.write_text(path, text, is_flushed=False)


def main(words: Sequence[str]) -> int:
    parser = commands.parser(
        "gallery",
        "Write RUN/gallery.html anew: its samples, prompts down and steps across, and its loss above them.",
        "  python -m trainer gallery runs/smoke",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    given = parser.parse_args(words)

    def run() -> None:
        metrics.check_is_run(given.run)
        print(write_gallery(given.run))

    return commands.run_short_command(run)
