"""Run report as one HTML file: curves, events, time ledger, samples.

The page has no script and requests nothing.
"""

# ruff: noqa: E501

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.report import curves, event_marks, notable_steps, rank_times, review_links, summary, timeline
from trainer.report.curves import Curve, Mark
from trainer.report.goodput import PARTS
from trainer.report.read import RunData
from trainer.run_folder import sample_rounds
from trainer.run_folder.metrics import seconds_as_text

SCALARS = {
    "loss": ("Loss", ""),
    "grad_norm": ("Gradient norm", "before clipping"),
    "weight_norm": ("Weight norm", ""),
    "lr": ("Learning rate", ""),
    "tokens_per_second": ("Tokens per second", ""),
    "mfu": ("MFU", "share of the device's peak"),
    "data_share": ("Data wait", "share of the step"),
    "peak_gib": ("Peak memory", "GiB"),
}
MOST_PLAYING = 48  # clips that play by themselves; of more each has its own button
TABLES = {
    "loss_by_bucket": "Loss by bucket",
    "loss_by_source": "Loss by source",
    "loss_by_level": "Loss by level",
    "loss_by_timestep": "Loss by timestep",
}
SECTIONS = {
    "goodput": "Where the time went",
    "ranks": "Predicted and actual time",
    "curves": "Curves",
    "events": "Events",
    "slowest": "Slowest updates",
    "losses": "Updates with the highest loss",
    "samples": "Samples",
}


def _value(line: dict[str, Any], name: str) -> float | str | None:
    share = float(line["data_seconds"]) / max(float(line["seconds"]), 1e-9) if name == "data_share" else None
    value: float | str | None = line.get(name, share)
    return value


def _curve(name: str, ink: int, points: Sequence[curves.Point]) -> Curve:
    means, band = curves.thinned(points)
    return Curve(name=name, ink=ink, points=means, band=band)


def _panel(title: str, note: str, figure: str, names: Sequence[tuple[str, int]] = ()) -> str:
    if not figure:
        return ""
    soft = f' <span class="soft">{html.escape(note)}</span>' if note else ""
    return f'<div class="panel"><h3>{html.escape(title)}{soft}</h3>{figure}{curves.legend(names) if len(names) > 1 else ""}</div>'


def _losses(runs: Sequence[RunData], names: Sequence[str], marks: Sequence[Mark]) -> str:
    validation = [
        Curve(
            name=names[number],
            ink=number,
            points=curves.finite([(line["step"], line["loss"]) for line in run.rounds]),
            errors=[line.get("standard_error") for line in run.rounds if isinstance(line["loss"], float)],
        )
        for number, run in enumerate(runs)
    ]
    return _loss_panel("Validation loss", "± standard error", validation, marks, _keys(names))


def _loss_panel(
    title: str, note: str, drawn: Sequence[Curve], marks: Sequence[Mark], keys: Sequence[tuple[str, int]]
) -> str:
    """Return a panel of losses, on a logarithmic axis where they differ by a multiple."""
    is_log = curves.is_for_log(drawn)
    note = ", ".join(part for part in (note, "logarithmic" if is_log else "") if part)
    return _panel(title, note, curves.chart(drawn, title=title, marks=marks, is_log=is_log), keys)


def _keys(names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, number) for number, name in enumerate(names)]


def _curves(runs: Sequence[RunData], names: Sequence[str]) -> str:
    marks = event_marks.marks(runs)
    panels = []
    for key, (title, note) in SCALARS.items():
        drawn = [
            _curve(
                names[number],
                number,
                curves.finite([(line["step"], _value(line, key)) for line in run.lines]),
            )
            for number, run in enumerate(runs)
        ]
        if key == "loss":
            panels.append(_loss_panel(title, note, drawn, marks, _keys(names)))
            panels.append(_losses(runs, names, marks))
        else:
            panels.append(_panel(title, note, curves.chart(drawn, title=title, marks=marks), _keys(names)))
    for number, run in enumerate(runs):
        for key, title in TABLES.items():
            parts = sorted({part for line in run.lines for part in line.get(key, {})}, key=_natural)
            if len(parts) == 1:  # its loss is the loss
                continue
            note = ", every second tenth; 0 is data, 1000 is noise" if key == "loss_by_timestep" else ""
            parts = parts[::2] if note else parts
            drawn = [
                _curve(
                    part,
                    ink,
                    curves.finite([(line["step"], line.get(key, {}).get(part)) for line in run.lines]),
                )
                for ink, part in enumerate(parts[: curves.INKS])
            ]
            more = f", {len(parts) - curves.INKS} more not shown" if len(parts) > curves.INKS else note
            note = (names[number] if len(runs) > 1 else "") + more
            own = marks if len(runs) == 1 else ()
            panels.append(_loss_panel(title, note.lstrip(", "), drawn, own, _keys(parts[: curves.INKS])))
    return f'<section id="curves"><h2>Curves</h2><div class="panels">{"".join(panels)}</div></section>'


def _natural(name: str) -> tuple[int, str]:
    head = name.split("-")[0]
    return (int(head), name) if head.isdigit() else (0, name)


def _goodput(runs: Sequence[RunData], names: Sequence[str]) -> str:
    shown = []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        title = f"<h3>{html.escape(name)}</h3>" if len(runs) > 1 else ""
        found = run.ledger
        if found is None:
            shown.append(
                f'{title}<p class="soft">Its events have no times: it was written by an older version.</p>'
            )
            continue
        rows = "".join(
            f'<tr><th scope="row"><i class="key {timeline.INKS[part]}"></i>{part}</th>'
            f'<td class="n">{timeline.lasting(seconds)}</td><td class="n">{100 * seconds / max(found.wall_seconds, 1e-9):.1f} %</td>'
            f'<td class="soft">{PARTS[part]}</td></tr>'
            for part, seconds in sorted(found.seconds.items(), key=lambda pair: -pair[1])
        )
        attempts = "".join(
            f'<tr><th scope="row">{count}</th><td>{html.escape(one.kind)}</td><td class="n">{one.step:,}</td>'
            f'<td class="n">{timeline.lasting(one.began - found.began)}</td><td class="n">{timeline.lasting(one.ended - one.began)}</td></tr>'
            for count, one in enumerate(found.attempts, start=1)
        )
        shown.append(
            f'{title}{timeline.bar(found)}{timeline.strip(number, run, found)}{summary.key_of_flags(run)}<div class="scroll"><table><thead><tr><th>part</th><th class="n">time</th>'
            f'<th class="n">share</th><th>what</th></tr></thead><tbody>{rows}<tr><th scope="row">all</th>'
            f'<td class="n">{timeline.lasting(found.wall_seconds)}</td><td class="n">100 %</td><td></td></tr></tbody></table></div>'
            f"<details><summary>{len(found.attempts)} attempt{'s' * (len(found.attempts) != 1)}</summary>"
            '<div class="scroll"><table><thead><tr><th>attempt</th><th>began as</th><th class="n">at step</th>'
            f'<th class="n">after</th><th class="n">lasted</th></tr></thead><tbody>{attempts}</tbody></table></div></details>'
        )
    return f'<section id="goodput"><h2>Where the time went</h2>{"".join(shown)}</section>'


def _events(runs: Sequence[RunData], names: Sequence[str], beside: Path) -> str:
    parts = []
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        rows = []
        to = review_links.targets(run.path, beside)
        for count, event in enumerate(run.shown_events[: event_marks.MOST_EVENTS]):
            after, moment = summary.after(run, event)
            facts = "".join(
                f"<dt>{html.escape(key)}</dt><dd>{review_links.event_fact(key, value, review_links.target(to, event.get('stage')))}</dd>"
                for key, value in event.items()
                if key not in ("event", "step", "time")
            )
            reported = (
                f"<details><summary>{html.escape(event_marks.brief(event))}</summary><dl>{facts}</dl></details>"
                if facts
                else ""
            )
            ink = event_marks.ink(event)
            rows.append(
                f'<tr id="{event_marks.target(number, count)}"><td class="n moment">{moment}</td><td class="n">{after}</td><td class="n">{event["step"]:,}</td>'
                f'<th scope="row"><i class="key ink-{ink}"></i>{html.escape(str(event["event"])).replace("_", "_<wbr>")}</th><td>{reported}</td></tr>'
            )
        more = len(run.shown_events) - event_marks.MOST_EVENTS
        title = f"<h3>{html.escape(name)}</h3>" if len(runs) > 1 else ""
        parts.append(
            f'{title}<div class="scroll"><table><thead><tr><th class="n moment">time (UTC)</th><th class="n">after</th><th class="n">step</th><th>event</th>'
            f"<th>facts</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
            + (f'<p class="soft">and {more:,} more in events.jsonl</p>' if more > 0 else "")
        )
    return f'<section id="events"><h2>Events</h2>{"".join(parts)}</section>'


def _samples(runs: Sequence[RunData], names: Sequence[str], beside: Path) -> str:
    parts = []
    for run, name in zip(runs, names, strict=True):
        rounds = sample_rounds.rounds(run.path)
        if not rounds:
            continue
        rows: dict[tuple[int, str, int], dict[int, str]] = {}
        for facts in rounds:
            for one in facts["samples"]:
                rows.setdefault((one["number"], one["prompt"], one["seed"]), {})[facts["step"]] = one["file"]
        steps = [facts["step"] for facts in rounds]
        shown = steps if len(steps) <= 6 else [steps[round(n * (len(steps) - 1) / 5)] for n in range(6)]
        plays = len(rows) * len(shown) <= MOST_PLAYING
        body = "".join(
            f'<tr><th scope="row">{html.escape(prompt)} <span class="soft">seed {seed}</span></th>'
            + "".join(_video(files.get(step), run.path, beside, prompt, step, plays) for step in shown)
            + "</tr>"
            for (_, prompt, seed), files in rows.items()
        )
        head = "".join(f"<th>step {step:,}</th>" for step in shown)
        page = html.escape(os.path.relpath(run.path / "gallery.html", beside))
        title = f"<h3>{html.escape(name)}</h3>" if len(runs) > 1 else ""
        parts.append(
            f'{title}<p class="soft">All of them: <a href="{page}">the gallery</a>.</p><div class="scroll"><table><thead><tr>'
            f"<th>prompt</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
    return f'<section id="samples"><h2>Samples</h2>{"".join(parts)}</section>' if parts else ""


def _video(file: str | None, run: Path, beside: Path, prompt: str, step: int, plays: bool) -> str:
    if file is None:
        return '<td class="soft">not sampled</td>'
    source = html.escape(os.path.relpath(run / file, beside))
    words = html.escape(f"{prompt}, step {step}")
    how = "autoplay" if plays else 'controls preload="metadata"'
    return f'<td><video src="{source}" loop muted playsinline {how} aria-label="{words}"></video></td>'


def _tile(name: str, value: str, note: str = "") -> str:
    return f'<div class="tile"><dt>{name}</dt><dd>{value} <small>{note}</small></dd></div>'


def _tiles(run: RunData) -> str:
    tiles = []
    if run.lines:
        last = run.lines[-1]
        tiles.append(_tile("steps", f"{last['step']:,}", html.escape(last["stage"])))
        tiles.append(_tile("loss", html.escape(_short(last["loss"]))))
    if run.rounds:
        tiles.append(_tile("validation", html.escape(_short(run.rounds[-1]["loss"]))))
    if run.ledger:
        tiles.append(_tile("wall time", seconds_as_text(run.ledger.wall_seconds)))
        tiles.append(_tile("goodput", f"{100 * run.ledger.goodput:.1f} %", "productive share"))
        tiles.append(_tile("attempts", f"{len(run.ledger.attempts)}"))
    tiles.append(_tile("events", f"{len(run.events):,}"))
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def page(runs: Sequence[RunData], beside: Path) -> str:
    """Return the HTML; links to samples are relative to the folder `beside`, where it will lie."""
    names = [run.name for run in runs]
    names = [
        f"{name} ({run.path.name})" if names.count(name) > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]
    title = html.escape(" against ".join(names))
    heads = "".join(
        (f"<h3>{html.escape(name)}</h3>" if len(runs) > 1 else "")
        + summary.standing(number, run)
        + _tiles(run)
        for number, (name, run) in enumerate(zip(names, runs, strict=True))
    )
    sections = [
        _goodput(runs, names), rank_times.section(runs, names), _curves(runs, names), _events(runs, names, beside), notable_steps.slowest(runs, names, beside), notable_steps.highest_loss(runs, names, beside), _samples(runs, names, beside),
    ]  # fmt: skip
    links = "".join(
        f'<a href="#{name}">{words}</a>'
        for name, words in SECTIONS.items()
        if f'id="{name}"' in "".join(sections)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        'initial-scale=1"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        'media-src \'self\' file:; style-src \'unsafe-inline\'"><meta name="color-scheme" content="light dark">'
        f"<title>{title}: run report</title><style>{curves.STYLE}{STYLE}</style></head><body><header><h1>{title}: run report</h1>"
        f"{heads}<nav>{links}</nav></header><main>{''.join(sections)}</main></body></html>\n"
    )


STYLE = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 5rem; max-width: 74rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; font-weight: 650; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 3rem 0 .5rem; font-weight: 650; } h3 { font-size: .95rem; margin: .6rem 0 .35rem; font-weight: 600; }
p { margin: .35rem 0 1rem; max-width: 46rem; } a { color: var(--ink-0); } .soft { color: var(--soft); font-weight: 400; }
code { font: .87em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
nav { margin: 1.5rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; font-size: .92rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem; margin: 1rem 0 0; padding: 0; }
.tile, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: .8rem 1rem .75rem; } .tile dt { color: var(--soft); font-size: .85rem; }
.tile dd { margin: 0; font-size: 1.3rem; line-height: 1.3; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile dd small { font-size: .8rem; font-weight: 400; color: var(--soft); }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: .9rem; margin-top: 1rem; }
.panel { padding: .9rem 1rem .7rem; min-width: 0; }
svg { display: block; width: 100%; height: auto; } svg.life { height: 26px; border-radius: 6px; margin: .6rem 0 .4rem; }
svg.times { height: 54px; margin: 0 0 .8rem; overflow: visible; } svg.times .attempt { fill: var(--soft); opacity: .55; }
svg.life rect { stroke: none; } .part-idle { fill: var(--line); background: var(--line); } .part-other { fill: var(--soft); background: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; color: var(--soft); margin: .3rem 0 .7rem; max-width: none; }
.key { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin-right: .4em; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .45rem .8rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; } thead th { color: var(--soft); font-weight: 500; font-size: .85rem; white-space: nowrap; }
tbody th { font-weight: 400; } .n { text-align: right; white-space: nowrap; }
tr:target > * { background: var(--well); box-shadow: inset 0 1px var(--ink-0), inset 0 -1px var(--ink-0); }
details { margin-top: .2rem; } summary { cursor: pointer; color: var(--soft); }
dl { margin: .3rem 0; } td dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .8rem; font-size: .86rem; }
td dt { color: var(--soft); } td dd { margin: 0; overflow-wrap: anywhere; }
video { display: block; height: 7rem; border-radius: 4px; background: #000; image-rendering: pixelated; }
.key.dot { border-radius: 50%; } td details { margin: 0; min-width: 15rem; overflow-wrap: anywhere; } #events tbody th { white-space: nowrap; }
@media (max-width: 40rem) { .panel svg { overflow: visible; } .panel svg text { font-size: 16px; } #ranks td.n { white-space: normal; } #goodput tbody th { white-space: nowrap; } .moment { display: none; } body { padding: 1.5rem 1rem 3rem; } th, td { padding: .4rem .35rem; } table { font-size: .82rem; } thead th, thead .n, #events tbody th { white-space: normal; } td { overflow-wrap: break-word; } td details { min-width: 0; } td dl { display: block; } }
@media print { .panel, tr { break-inside: avoid; } nav { display: none; } }
"""
