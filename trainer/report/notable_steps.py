"""Run report sections: the slowest updates, and those with the highest loss."""
# ruff: noqa: E501

import heapq
import html
import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.report import review_links
from trainer.report.read import RunData
from trainer.run_folder import clip_losses
from vidcurate.curation.report import review_link
from vidcurate.errors import StorageError

HIGHEST = 10


def _linked(words: str, clip_ids: Sequence[str], to: str | None) -> str:
    """Return words as HTML, as a link to clips where there is a page of links."""
    if to is None or not clip_ids:
        return html.escape(words)
    return review_links.anchor(review_link.link_clips(map(str, clip_ids), to), words)


def _loss(line: dict[str, Any]) -> float:
    """Return the mean loss of a recorded step's clips; a loss that is no number makes it infinite."""
    mean = math.fsum(map(float, line["losses"])) / max(len(line["losses"]), 1)
    return mean if math.isfinite(mean) else math.inf


def _head(runs: Sequence[RunData]) -> str:
    return "<th>run</th>" if len(runs) > 1 else ""


def _first(runs: Sequence[RunData], name: str) -> str:
    return f'<tr><th scope="row">{html.escape(name)}</th>' if len(runs) > 1 else "<tr>"


def _step_ids(run: RunData, steps: set[int]) -> dict[int, list[str]]:
    """Return step → the ids of its clips, where they are recorded; none of a damaged record."""
    found = {}
    with suppress(StorageError):  # the section below has the reason
        for line in clip_losses.read(run.path):
            if line["step"] in steps:
                found[line["step"]] = line["clip_ids"]
    return found


def _commands(runs: Sequence[RunData]) -> str:
    """Return the command that lists the clips of a step, of each run, as HTML."""
    shown = [f"python -m trainer inspect {html.escape(str(run.path))} --step N" for run in runs]
    return ", ".join(f"<code>{one}</code>" for one in shown)


def slowest(runs: Sequence[RunData], names: Sequence[str], beside: Path) -> str:
    """Return the section of the slowest updates, "" without updates."""
    rows = []
    for run, name in zip(runs, names, strict=True):
        usual = statistics.median(line["seconds"] for line in run.lines) if run.lines else 0.0
        to = review_links.targets(run.path, beside)
        ids = _step_ids(run, {line["step"] for line in run.slowest}) if to else {}
        for line in run.slowest:
            page = review_links.target(to, line.get("stage"))
            rows.append(
                _first(runs, name)
                + f'<td class="n">{_linked(format(line["step"], ","), ids.get(line["step"], ()), page)}</td><td class="n">{line["seconds"]:.2f} s</td>'
                f'<td class="n">{line["seconds"] / max(usual, 1e-9):.1f} ×</td><td class="n">{line["data_seconds"]:.2f} s</td>'
                f"<td>{html.escape(', '.join(line.get('loss_by_bucket', {})))}</td></tr>"
            )
    if not rows:
        return ""
    return (
        f'<section id="slowest"><h2>Slowest updates</h2><p class="soft">The clips of an update: {_commands(runs)}</p>'
        f'<div class="scroll"><table><thead><tr>{_head(runs)}<th class="n">step</th><th class="n">took</th><th class="n">of the median</th>'
        f'<th class="n">waited for data</th><th>buckets</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def highest_loss(runs: Sequence[RunData], names: Sequence[str], beside: Path) -> str:
    """Return the section of the updates whose clips had the highest mean loss, "" without recorded ones."""
    rows, damaged = [], ""
    for run, name in zip(runs, names, strict=True):
        to = review_links.targets(run.path, beside)
        try:
            lines = heapq.nlargest(HIGHEST, clip_losses.read(run.path), key=_loss)
        except StorageError as error:
            damaged += f'<p class="soft">{html.escape(str(error))}</p>'
            continue
        for line in lines:
            clips = sorted(
                clip_losses.by_clip(line),
                key=lambda clip: -clip["loss"] if clip["loss"] == clip["loss"] else -math.inf,
            )
            page = review_links.target(to, line.get("stage"))
            rows.append(
                _first(runs, name)
                + f'<td class="n">{_linked(format(line["step"], ","), [clip["clip_id"] for clip in clips], page)}</td>'
                f'<td class="n">{_loss(line):.4g}</td><td class="n">{len(clips):,}</td><td>{_highest(clips, page)}</td></tr>'
            )
    if not rows and not damaged:
        return ""
    return (
        '<section id="losses"><h2>Updates with the highest loss</h2><p class="soft">Of the updates that <code>clip_losses.jsonl</code> recorded: the mean of their clips. '
        "A step or a clip is a link into the review app, where its curation has one.</p>"
        + damaged
        + f'<div class="scroll"><table><thead><tr>{_head(runs)}<th class="n">step</th><th class="n">loss</th><th class="n">clips</th><th>highest</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _highest(clips: Sequence[dict[str, Any]], to: str | None) -> str:
    """Return the clip with the highest loss, as HTML."""
    if not clips:
        return ""
    name = str(clips[0]["clip_id"])
    return f"{_linked(name, [name], to)} {clips[0]['loss']:.4g}"
