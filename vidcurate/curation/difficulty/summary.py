"""Summary of a split, and the shape of RUN/levels.json, which holds it."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, model_validator

from vidcurate.curation.clip_table import stage_json
from vidcurate.curation.difficulty.advice import Ramp, Tail
from vidcurate.curation.difficulty.jumps import Jump
from vidcurate.storage.json_shape import Count

LEVELS = "levels.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Counts and statistics of one level."""

    level: Count
    clips: Count
    frames: Count | None
    tokens: Count | None
    hours: float | None
    validation_clips: Count
    min: float
    max: float
    mean: float
    standard_deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """Result of a split; `rows_in` = `rows_kept` + `rows_rejected`."""

    rows_in: int
    rows_kept: int
    rows_rejected: int
    rows_dropped_here: int
    train_clips: int
    validation_clips: int
    levels: tuple[Level, ...]
    jumps: tuple[Jump, ...]
    ramps: tuple[Ramp, ...]
    tail: Tail | None
    tail_to_ratio: Tail | None
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    up_to_date: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Histogram of a column: counts by level and bin, quantiles by level."""

    edges: list[FiniteFloat]
    counts: list[list[Count]]
    quantiles: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Histograms by column."""

    columns: dict[str, Counted]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsFile(SplitSummary):
    """What levels.json holds."""

    column: str
    histograms: Drawn | None = None

    @model_validator(mode="after")
    def _as_many_levels(self) -> "LevelsFile":
        """Raise ValueError for a histogram of other levels or bins than there are."""
        if not self.levels or [one.level for one in self.levels] != [*range(1, len(self.levels) + 1)]:
            raise ValueError("the levels are not numbered from 1 on")
        for name, one in (self.histograms.columns if self.histograms else {}).items():
            bins = {len(row) + 1 for row in one.counts}
            if not len(one.counts) == len(one.quantiles) == len(self.levels) or bins != {len(one.edges)}:
                raise ValueError(f"the histogram of {name} has another number of levels or bins")
        return self


def read_summary(path: Path) -> SplitSummary:
    """Return the summary of a split that is up to date. Raises TableError."""
    found = stage_json.require(path, LevelsFile)
    values: dict[str, Any] = {one.name: getattr(found, one.name) for one in fields(SplitSummary)}
    return SplitSummary(**{**values, "up_to_date": True})
