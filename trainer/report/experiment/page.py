"""Experiment results as files: table.json, table.md and plot.svg."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from trainer.report import curves
from trainer.report.curves import Curve, Mark
from trainer.report.experiment.results import Pair, Row, Track, common_clips, over
from trainer.report.experiment.spec import ExperimentSpec
from trainer.run_folder.jsonl import to_json_value
from vidcurate.storage import atomic_file

WIDTH, HEIGHT = 860, 300
BEGINS = {"next": "next stage", "restart": "stop and restart", "weights": "restart with the weights alone"}


def _pair(pair: Pair | None, sign: str = "") -> str:
    if pair is None:
        return ""
    value, error = pair
    if not math.isfinite(value):
        return str(value)
    return f"{value:{sign}.4f}" + (f" ± {error:.4f}" if error is not None else "")


def markdown(spec: ExperimentSpec, rows: Sequence[Row]) -> str:
    """Return the table as a page of Markdown. ± is a standard error over seeds."""
    first = rows[0].name
    head = (
        "arm", "process starts", "final training loss", "final validation loss", f"less {first}",
        "jump at its marks", f"{first} there", "largest gradient / median", "same losses as",
    )  # fmt: skip
    lines = [f"# {spec.recipe.name}", "", spec.question, ""]
    lines += ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for row in rows:
        cells = (
            f"`{row.name}`", str(row.num_starts), _pair(row.final_loss), _pair(row.validation),
            _pair(row.against, "+"), _pair(row.jump, "+"), _pair(row.jump_there, "+"),
            f"{row.grad_peak[0]:.1f}", ", ".join(f"`{name}`" for name in row.equals),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    seeds = ", ".join(map(str, spec.seeds))
    lines += [
        "",
        f"Seeds {seeds}; {rows[0].updates:,} updates, {rows[0].clips:,.0f} clips an arm. ± is the standard "
        f"error over seeds, differences are paired by seed. Validation: the {rows[0].validation_clips} clips "
        f"that all arms validated on. A jump is the mean loss of the {spec.window_steps} updates after a "
        f"mark less that of the {spec.window_steps} before it.",
        "",
    ]
    lines += [f"- `{row.name}`: {row.what}" for row in rows if row.what]
    return "\n".join(lines).rstrip() + "\n"


def _training(name: str, ink: int, tracks: Sequence[Track], window: int) -> Curve:
    """Return an arm's losses in blocks of `window` updates: the mean over seeds, between least and most."""
    blocks = [
        [float(np.mean(track.losses[at : at + window])) for track in tracks]
        for at in range(0, len(tracks[0].losses), window)
    ]
    ends = [
        tracks[0].clips[min(at + window, len(tracks[0].clips)) - 1]
        for at in range(0, len(tracks[0].losses), window)
    ]
    shown = [(x, block) for x, block in zip(ends, blocks, strict=True) if all(map(math.isfinite, block))]
    return Curve(
        name=name,
        ink=ink,
        points=[(x, float(np.mean(block))) for x, block in shown],
        band=[(x, min(block), max(block)) for x, block in shown] if len(tracks) > 1 else (),
    )


def _validation(name: str, ink: int, tracks: Sequence[Track], ids: Mapping[int, Sequence[str]]) -> Curve:
    """Return an arm's validation loss over the `ids` of each seed: mean and standard error over the seeds."""
    by_place: dict[float, list[float]] = {}
    for track in tracks:
        for at, losses in track.rounds:
            if set(ids[track.seed]) <= set(losses):
                by_place.setdefault(at, []).append(over(losses, ids[track.seed]))
    places = sorted(
        at for at, found in by_place.items() if len(found) == len(tracks) and all(map(math.isfinite, found))
    )
    errors = [
        float(np.std(by_place[at], ddof=1)) / len(tracks) ** 0.5 if len(tracks) > 1 else None for at in places
    ]
    points = [(at, float(np.mean(by_place[at]))) for at in places]
    return Curve(name=name, ink=ink, points=points, errors=errors, has_dots=True)


@np.errstate(invalid="ignore")
def plot(spec: ExperimentSpec, tracks: Sequence[Track]) -> str:
    """Return the losses of all arms over the clips seen, marks and all, as an SVG file."""
    size = len(spec.seeds)
    arms = {arm.name: tracks[n * size : (n + 1) * size] for n, arm in enumerate(spec.arms)}
    ids = common_clips(tracks)
    names = [(name, ink) for ink, name in enumerate(arms)]
    marks: dict[tuple[float, str], list[tuple[int, str]]] = {}
    for ink, (name, mine) in enumerate(arms.items()):
        for _, at, begins in mine[0].marks:
            marks.setdefault((at, begins), []).append((ink, name))
    flags = [
        Mark(
            x=at,
            words=f"{BEGINS[begins]} of {', '.join(name for _, name in who)} after {at:,.0f} clips",
            ink=who[0][0] if begins != "next" else 7,
        )
        for (at, begins), who in sorted(marks.items())
    ]
    most = max(track.clips[-1] for track in tracks)
    losses = [_training(name, ink, arms[name], spec.window_steps) for name, ink in names]
    rounds = [_validation(name, ink, arms[name], ids) for name, ink in names] if all(ids.values()) else []
    panels = []
    for title, shown in (
        (f"Training loss, means of {spec.window_steps} updates; the band holds all seeds", losses),
        ("Validation loss, ± standard error over seeds", rounds),
    ):
        figure = curves.chart(
            shown, title=title, x_name="clips seen", marks=flags, x_span=(0, most), width=WIDTH, height=HEIGHT
        )
        if figure:
            panels.append((title, figure))
    return curves.document(panels, names, width=WIDTH, height=HEIGHT)


def write_page(spec: ExperimentSpec, rows: Sequence[Row], tracks: Sequence[Track], out: Path) -> None:
    """Write the three files into `out`, each atomically. Raises StorageError."""
    table = {"experiment": spec.recipe.name, "question": spec.question, "seeds": spec.seeds}
    text = json.dumps(to_json_value({**table, "arms": [asdict(row) for row in rows]}), indent=1) + "\n"
    atomic_file.write_text(out / "table.json", text, is_flushed=False)
    atomic_file.write_text(out / "table.md", markdown(spec, rows), is_flushed=False)
    atomic_file.write_text(out / "plot.svg", plot(spec, tracks), is_flushed=False)
