"""Fit of a run's kept clips to models, in clips and hours, kept as RUN/fit.json."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import require
from vidcurate.curation.model_fit.fit_clip import Fit, fit_clip
from vidcurate.curation.model_fit.models import Model, check_choice
from vidcurate.shards import kept_clips
from vidcurate.storage import atomic_file, regular_file

NAME = "fit.json"
_MOST_LISTED = 12
FACTS = ("width", "height", "fps", "num_frames", "duration_seconds")


@dataclass(slots=True)
class _Total:
    clips: int = 0
    hours: float = 0.0

    def add(self, clips: int, seconds: float) -> None:
        self.clips += clips
        self.hours += seconds / 3600


@dataclass(slots=True)
class _Weighted:
    """Values of clips, with how many clips have each."""

    values: list[tuple[float, int]] = field(default_factory=list)

    def median(self) -> float | None:
        """Return the median (the lower one of two); None without a clip."""
        half, seen = (sum(clips for _, clips in self.values) + 1) // 2, 0
        for value, clips in sorted(self.values):
            seen += clips
            if seen >= half:
                return value
        return None

    def most(self) -> float | None:
        return max((value for value, _ in self.values), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSummary:
    """Fit of the kept clips of a run: `models` has one record for each model; see `fit_counts`."""

    stage: str
    clips: int
    hours: float
    models: list[dict[str, Any]]


def kept_facts(clips: pl.DataFrame, where: Path) -> pl.DataFrame:
    """Return the clips' sizes, rates and lengths (FACTS). Raises ColumnError when a column is missing."""
    require(clips.columns, FACTS, str(where), "Run `vidcurate probe` first.")
    return clips.select(FACTS)


def fit_counts(
    model: Model, rows: Iterable[tuple[dict[str, Any], int]], *, size: str | None, frames: int | None
) -> dict[str, Any]:
    """Return the counts of one model over (facts of a clip, number of such clips).

    Hours are those of the clips as they are, `hours_written` those that the model would see.
    """
    totals = {name: _Total() for name in ("taken", "too_short", "too_small", "still_image", "unknown")}
    totals |= {name: _Total() for name in ("retimed", "repeated", "cropped", "shortened", "below_smallest")}
    rate, crop, tokens = _Weighted(), _Weighted(), _Weighted()
    sizes: Counter[str] = Counter()
    frame_counts: Counter[int] = Counter()
    written = 0.0
    for facts, clips in rows:
        fit = fit_clip(model, **facts, size=size, frames=frames)
        seconds = clips * (facts["duration_seconds"] or 0.0)
        totals[fit.reason or "taken"].add(clips, seconds)
        if fit.reason:
            continue
        for name, holds in _changes(fit).items():
            if holds:
                totals[name].add(clips, seconds)
        if fit.is_retimed:
            rate.values.append((fit.rate_factor, clips))
        if fit.is_cropped:
            crop.values.append((fit.crop_share, clips))
        tokens.values.append((fit.tokens, clips))
        sizes[f"{fit.width}x{fit.height}"] += clips
        frame_counts[fit.num_frames] += clips
        written += clips * fit.duration_seconds
    counts: dict[str, Any] = {"model": model.name, "title": model.title}
    for name, total in totals.items():
        counts |= {f"{name}_clips": total.clips, f"{name}_hours": round(total.hours, 4)}
    return counts | {
        "hours_written": round(written / 3600, 4),
        "rate_factor_median": _rounded(rate.median()),
        "crop_share_median": _rounded(crop.median()),
        "crop_share_most": _rounded(crop.most()),
        "tokens_median": tokens.median(),
        "tokens_most": tokens.most(),
        "frame_counts": {str(count): clips for count, clips in sorted(frame_counts.items(), reverse=True)},
        "sizes": dict(sizes.most_common(_MOST_LISTED)),
        "size_count": len(sizes),
        "memory": [asdict(one) for one in model.memory],
        "source": f"{model.source}; read {model.date}",
    }


def _changes(fit: Fit) -> dict[str, bool]:
    return {
        "retimed": fit.is_retimed,
        "repeated": fit.has_repeats,
        "cropped": fit.is_cropped,
        "shortened": fit.used_share < 1 - 1e-9,
        "below_smallest": fit.size is None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def run_fit(run: Path, models: list[Model], *, size: str | None, frames: int | None) -> FitSummary:
    """Fit the kept clips of a run to each model, write RUN/fit.json for the report, and return the counts.

    Raises InputError for a size or frame count that a model does not take, StageError, ColumnError,
    StorageError.
    """
    check_choice(models, size=size, frames=frames)
    stage = table.newest_stage(run)
    where = table.stage_path(run, stage)
    facts = kept_facts(kept_clips.read_clips(run, stage)[0], where)
    alike = facts.group_by(FACTS).len().sort(FACTS)
    rows = [({name: row[name] for name in FACTS}, int(row["len"])) for row in alike.to_dicts()]
    summary = FitSummary(
        stage=stage,
        clips=facts.height,
        hours=round(float(facts["duration_seconds"].fill_null(0).sum()) / 3600, 4),
        models=[fit_counts(model, rows, size=size, frames=frames) for model in models],
    )
    with run_lock.alone(run):
        atomic_file.write_json(run / NAME, {"table_sha256": table.digest(where), **asdict(summary)})
    return summary


def read_fit(run: Path) -> dict[str, Any] | None:
    """Return RUN/fit.json; None when it is not there, or was made from another table than the newest."""
    try:
        found: dict[str, Any] = json.loads(regular_file.read_bytes(run / NAME))
        where = table.stage_path(run, table.newest_stage(run))
        is_fresh = found["table_sha256"] == table.digest(where) and found["stage"] == where.stem
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if is_fresh else None
