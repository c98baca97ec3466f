"""RUN/report.html: one page that shows what a curation did, and opens without a network.

No script, no link to anywhere, no time of day: the same run gives the same bytes. Captions are hostile input
and are escaped by the template; a Content-Security-Policy keeps even a mistake from running.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import polars as pl
from markupsafe import Markup

from vidcurate import __version__, table
from vidcurate.engine import Progress, no_progress
from vidcurate.errors import InputError, StorageError
from vidcurate.report import charts, facts, sheet
from vidcurate.report.charts import Series, Span

__all__ = ["PAGE", "ReportSummary", "run_report"]

PAGE = "report.html"
SHOWN = 24  # clips on each contact sheet
_MOST_INKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSummary:
    """What the page shows. `up_to_date`: the page that was there had the same bytes."""

    page: str
    rows_in: int
    rows_kept: int
    rows_rejected: int
    clips_shown: int
    size_bytes: int
    up_to_date: bool


# What is drawn as a histogram: title, unit, the columns it needs, and its values.
_MEASURES: dict[str, tuple[str, str, tuple[str, ...], pl.Expr]] = {
    "duration_seconds": ("Duration", "s", ("duration_seconds",), pl.col("duration_seconds")),
    "short_side": ("Short side", "px", ("width", "height"), pl.min_horizontal("width", "height")),
    "aspect_ratio": (
        "Aspect ratio (height / width)",
        "",
        ("width", "height"),
        pl.col("height") / pl.col("width"),
    ),
    "fps": ("Frame rate", "frames/s", ("fps",), pl.col("fps")),
    "num_frames": ("Frames", "", ("num_frames",), pl.col("num_frames")),
    "caption_num_words": ("Caption length", "words", ("caption_num_words",), pl.col("caption_num_words")),
    "noun_count": ("Nouns in the caption", "", ("noun_count",), pl.col("noun_count")),
}


def _values(frame: pl.DataFrame, name: str) -> charts.Values:
    values: charts.Values = frame[name].drop_nulls().cast(pl.Float64).to_numpy()
    return values


def _histograms(judged: pl.LazyFrame, limits: dict[str, list[tuple[str, float]]]) -> list[dict[str, Any]]:
    """Return a drawn histogram of each measure that the table has; one that a score is limited by too."""
    columns = judged.collect_schema()
    measures = {
        name: measure for name, measure in _MEASURES.items() if all(one in columns for one in measure[2])
    }
    for name in limits:
        if name in columns and name not in measures and columns[name].is_numeric():
            measures[name] = (name.replace("_", " ").capitalize(), "", (name,), pl.col(name))
    frame = judged.select(
        "is_kept", *(value.cast(pl.Float64).alias(name) for name, (*_, value) in measures.items())
    ).collect()
    kept, dropped = frame.filter("is_kept"), frame.filter(~pl.col("is_kept"))
    drawn = []
    for name, (title, unit, _, _) in measures.items():
        series = [
            Series(name="kept", ink="keep", values=_values(kept, name)),
            Series(name="rejected", ink="drop", values=_values(dropped, name)),
        ]
        known = sum(part.values.size for part in series)
        if known:
            svg = charts.histogram(series, title=title, unit=unit, thresholds=limits.get(name, ()))
            drawn.append(
                {
                    "title": title,
                    "unit": unit,
                    "svg": svg,
                    "words": _in_words(series[0].values, unit),
                    "unknown": frame.height - known,
                }
            )
    return drawn


def _in_words(values: charts.Values, unit: str) -> str:
    values = values[np.isfinite(values)]
    if not values.size:
        return "nothing kept"
    low, middle, high = (charts.shown(float(np.quantile(values, share))) for share in (0.05, 0.5, 0.95))
    return f"kept: median {middle}{f' {unit}' if unit else ''}, 90 % within {low} to {high}"


def _ink(level: int, levels: int) -> str:
    """Return the class of a level: the page has five inks from light to dark."""
    return f"level-{1 + round((level - 1) * (_MOST_INKS - 1) / max(levels - 1, 1))}"


def _levels(judged: pl.LazyFrame, told: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the split's figures with its two drawings."""
    if told is None:
        return None
    column, rows = told["column"], told["levels"]
    frame = judged.filter(pl.col("level").is_not_null()).select("level", column).collect()
    series = [
        Series(
            name=f"in level {row['level']}",
            ink=_ink(row["level"], len(rows)),
            values=_values(frame.filter(pl.col("level") == row["level"]), column),
        )
        for row in rows
    ]
    spans = [
        Span(
            name=f"level {row['level']}",
            ink=_ink(row["level"], len(rows)),
            low=row["min"],
            high=row["max"],
            mean=row["mean"],
            spread=row["standard_deviation"],
        )
        for row in rows
    ]
    title = column.replace("_", " ")
    return {
        **told,
        "title": title,
        "histogram": charts.histogram(series, title=f"{title} by level"),
        "spans": charts.spans(spans, title=f"{title} of each level"),
        "inks": {row["level"]: _ink(row["level"], len(rows)) for row in rows},
    }


def _sheet(
    judged: pl.LazyFrame, ids: list[str], videos: Path | None, progress: Progress, done: int, total: int
) -> list[sheet.Card]:
    cards = []
    for number, clip in enumerate(sheet.clips(judged, ids)):
        cards.append(sheet.card(clip, videos))
        progress(done + number + 1, total, "clips")
    return cards


def _clean(value: Any) -> Any:
    """Return text without the control characters that no page may hold; anything else as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "".join("\ufffd" if ord(sign) < 32 and sign not in "\t\n" else sign for sign in value)
    return value


def _size_in_words(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def _time_in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _measure_in_words(column: str) -> str:
    title = _MEASURES[column][0] if column in _MEASURES else column.replace("_", " ")
    return title[:1].lower() + title[1:]


def _page(values: dict[str, Any]) -> str:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_clean,
    )
    environment.filters["shown"] = charts.shown
    environment.filters["size"] = _size_in_words
    environment.filters["sign"] = lambda text: text.replace(">=", "≥").replace("<=", "≤")
    environment.filters["measure"] = _measure_in_words
    environment.filters["time"] = _time_in_words
    source = files("vidcurate.report").joinpath(PAGE).read_text(encoding="utf-8")
    return environment.from_string(source).render(values)


def _totals(judged: pl.LazyFrame) -> dict[str, Any]:
    columns = judged.collect_schema().names()
    seconds = pl.col("duration_seconds") if "duration_seconds" in columns else pl.lit(None, dtype=pl.Float64)
    row = judged.select(
        rows_in=pl.len(),
        rows_kept=pl.col("is_kept").sum(),
        kept_seconds=seconds.filter(pl.col("is_kept")).sum(),
        datasets=pl.col("source_dataset").drop_nulls().unique().sort().implode(),
        sources=pl.col("source_id").drop_nulls().n_unique(),
    ).collect()
    totals: dict[str, Any] = row.row(0, named=True)
    return {**totals, "rows_rejected": totals["rows_in"] - totals["rows_kept"]}


def run_report(run: Path, *, videos: Path | None = None, progress: Progress = no_progress) -> ReportSummary:
    """Write RUN/report.html from whatever stages have been run, and return what it shows.

    `videos` is the folder that `video_path` is relative to; without it the contact sheets have no pictures.
    Raises InputError when that folder is not there, StageError when there is no table or an outdated one,
    TableError for a damaged file, StorageError.
    """
    if videos is not None and not videos.is_dir():
        raise InputError(f"{videos}: no such folder of videos. Give the folder with --videos.")
    judged, is_judged = facts.verdicts(table.scan(run, table.newest_stage(run)))
    totals = _totals(judged)
    steps = facts.funnel(run, judged, totals["rows_in"])
    kept = sheet.choose_kept(judged, SHOWN)
    dropped = sheet.choose_rejected(judged, [step["rule"] for step in steps], SHOWN)
    total = len(kept) + len(dropped)
    page = _page(
        {
            "name": run.resolve().name,
            "version": __version__,
            "is_judged": is_judged,
            "totals": totals,
            "stages": facts.stages(run),
            "reconciled": facts.findings(run),
            "rules": facts.rejected(judged, steps),
            "histograms": _histograms(judged, facts.thresholds(run)),
            "split": _levels(judged, facts.levels(run)),
            "shards": facts.shards(run),
            "kept": _sheet(judged, kept, videos, progress, 0, total),
            "rejected": _sheet(judged, dropped, videos, progress, len(kept), total),
        }
    )
    target, partial = run / PAGE, run / f".{PAGE}.partial"
    data = page.encode("utf-8", "replace")
    try:
        up_to_date = target.is_file() and target.read_bytes() == data
        if not up_to_date:
            partial.write_bytes(data)
            table.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{target}: cannot be written ({error.strerror or error}).") from error
    return ReportSummary(
        page=str(target),
        rows_in=totals["rows_in"],
        rows_kept=totals["rows_kept"],
        rows_rejected=totals["rows_rejected"],
        clips_shown=total,
        size_bytes=len(data),
        up_to_date=up_to_date,
    )
