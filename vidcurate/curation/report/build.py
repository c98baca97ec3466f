"""Report page RUN/report.html: what a curation did, on one offline page.

No script, no external link, no date: the same run gives the same bytes. Captions are hostile input: the
template escapes them, and a Content-Security-Policy blocks scripts should escaping fail.
"""

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from markupsafe import Markup, escape

from vidcurate import __version__
from vidcurate.curation.clip_table import costs, table
from vidcurate.curation.clip_table.own_columns import own_columns
from vidcurate.curation.model_fit.summary import read_fit
from vidcurate.curation.report import (
    contact_sheet,
    distributions,
    duplicates,
    facts,
    funnel,
    limits,
    review_link,
    svg,
)
from vidcurate.curation.report.review_summary import review_summary
from vidcurate.curation.review_decisions.journal import REVIEWS
from vidcurate.errors import InputError, counted
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.storage import atomic_file

PAGE = "report.html"
SHOWN = 24  # clips on each contact sheet
_LONGEST_TEXT = 1200  # characters of a caption or a reason
_BREAK = re.compile(r"([_.:-]+)(?=.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSummary:
    """Counts of the page. `up_to_date`: the existing page had the same bytes."""

    page: str
    rows_in: int
    rows_kept: int
    rows_rejected: int
    clips_shown: int
    size_bytes: int
    up_to_date: bool


def _clean(value: Any) -> Any:
    """Remove control characters from text and truncate very long text; return other values unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        text = "".join("\ufffd" if ord(sign) < 32 and sign not in "\t\n" else sign for sign in value)
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"
    return value


def _size_as_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def _time_as_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def with_breaks(name: str) -> Markup:
    """Return a name as HTML that a browser breaks behind `_`, `.`, `:` and `-`, and nowhere inside a word."""
    return Markup(_BREAK.sub(r"\1<wbr>", str(escape(_clean(name)))))


def _page(values: dict[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_clean,
    )
    environment.filters["shown"] = svg.shown
    environment.filters["size"] = _size_as_text
    environment.filters["counted"] = counted
    environment.filters["sign"] = lambda text: text.replace(">=", "≥").replace("<=", "≤")
    environment.filters["breaks"] = with_breaks
    environment.filters["measure"] = distributions.measure_as_text
    environment.filters["time"] = _time_as_text
    environment.filters["review"] = review_link.link
    return environment.get_template(PAGE).render(values, chart_style=Markup(svg.STYLE))


def _template(name: str) -> str:
    return files("vidcurate.curation.report").joinpath(name).read_text(encoding="utf-8")


def _totals(checked: pl.LazyFrame) -> dict[str, Any]:
    columns = checked.collect_schema().names()
    seconds = pl.col("duration_seconds") if "duration_seconds" in columns else pl.lit(None, dtype=pl.Float64)
    row = checked.select(
        rows_in=pl.len(),
        rows_kept=pl.col("is_kept").sum(),
        kept_seconds=seconds.filter(pl.col("is_kept")).sum(),
        datasets=pl.col("source_dataset").drop_nulls().unique().sort().implode(),
        sources=pl.col("source_id").drop_nulls().n_unique(),
    ).collect()
    totals: dict[str, Any] = row.row(0, named=True)
    return {**totals, "rows_rejected": totals["rows_in"] - totals["rows_kept"]}


def _cards(
    checked: pl.LazyFrame, wanted: dict[str, list[str]], videos: Path | None, progress: Progress
) -> dict[tuple[str, str], contact_sheet.Card]:
    """Return (kind, clip id) → card, each built once; a `strip` has three frames, a `single` one."""
    pairs = list(dict.fromkeys((kind, clip) for kind, ids in wanted.items() for clip in ids))
    rows = {row["clip_id"]: row for row in contact_sheet.clips(checked, list({clip for _, clip in pairs}))}
    found = {}
    for number, (kind, clip) in enumerate(pairs):
        frames = contact_sheet.FRAMES if kind == "strip" else 1
        found[kind, clip] = contact_sheet.card(rows[clip], videos, frames=frames)
        progress(number + 1, len(pairs), "clips")
    return found


def run_report(run: Path, *, videos: Path | None = None, progress: Progress = no_progress) -> ReportSummary:
    """Write RUN/report.html from the stages that have run, and return what it shows.

    `videos` is the folder that `video_path` is relative to; without it the contact sheets have no pictures.
    Raises InputError for a missing folder, StageError for a missing or outdated table, TableError for a
    damaged file, StorageError.
    """
    if videos is not None and not videos.is_dir():
        raise InputError(f"{videos}: no such video folder. Set it with --videos FOLDER.")
    checked, is_checked = facts.verdicts(table.scan(run, table.newest_stage(run)))
    checked = facts.with_unwritten(run, checked)
    totals = _totals(checked)
    steps = funnel.by_rule(run, checked, totals["rows_in"])
    every = limits.bounds(run)
    near = limits.nearest(run, checked, every)
    twins = duplicates.clusters(checked)
    kept = contact_sheet.choose_kept(checked, SHOWN)
    dropped = contact_sheet.choose_rejected(checked, [step["rule"] for step in steps], SHOWN)
    beside = [clip for one in near for side in ("kept", "rejected") for clip, _ in one[side]]
    alike = [clip["clip_id"] for one in (twins or {"shown": []})["shown"] for clip in one["clips"]]
    cards = _cards(checked, {"strip": [*kept, *dropped, *beside], "single": alike}, videos, progress)
    page = _page(
        {
            "name": run.resolve().name,
            "version": __version__,
            "is_filtered": is_checked,
            "totals": totals,
            "stages": facts.stages(run),
            "steps_by_stage": funnel.by_stage(run, checked, steps, totals["rows_in"]),
            "reconciled": facts.findings(run),
            "rules": funnel.with_examples(checked, steps),
            "failures": funnel.failures(checked, steps),
            "histograms": distributions.histograms(checked, every, own_columns(run)),
            "own_texts": distributions.own_texts(checked, own_columns(run)),
            "split": distributions.levels(checked, facts.levels(run)),
            "shards": facts.shards(run),
            "fit": read_fit(run),
            "copies": twins,
            "review": review_summary(run) if (run / REVIEWS).exists() else None,
            "near": near,
            "costs": costs.read_costs(run),
            "kept": [cards["strip", clip] for clip in kept],
            "rejected": [cards["strip", clip] for clip in dropped],
            "cards": cards,
        }
    )
    target, data = run / PAGE, page.encode("utf-8", "replace")
    with atomic_file.storage_errors(target):
        up_to_date = not atomic_file.write_if_absent(target, data)
    review_link.write_page(run)
    return ReportSummary(
        page=str(target),
        rows_in=totals["rows_in"],
        rows_kept=totals["rows_kept"],
        rows_rejected=totals["rows_rejected"],
        clips_shown=len({clip for _, clip in cards}),
        size_bytes=len(data),
        up_to_date=up_to_date,
    )
