"""Scores of clips, one question a file; here they are put into the run's table.

Today's scores follow from the captions alone. They are measured in slices of the table, so that memory does
not grow with it, and a slice's rows do not see each other: the slices change nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import polars as pl
from pydantic import Field

from vidcurate import table
from vidcurate.engine import Progress, no_progress
from vidcurate.recipe import Recipe
from vidcurate.schema import COLUMNS, require
from vidcurate.score import caption_length, nouns
from vidcurate.score.text import TextScore

_ROWS_PER_SLICE = 65_536


class ScoreSpec(Recipe):
    """How to score. Every score is always computed; only how may be chosen."""

    noun_engine: Annotated[str, Field(pattern=r"^(auto|builtin|spacy:.+)$")] = "auto"
    """auto, builtin, or spacy:PIPELINE (an installed package or a folder); auto takes en_core_web_sm when it
    is installed, else builtin"""


# Every score, in the order of its columns: given the settings and the number of processes it may use.
SCORES: dict[str, Callable[[ScoreSpec, int], TextScore]] = {
    "nouns": lambda spec, num_workers: nouns.score(spec.noun_engine, num_workers),
    "caption_length": lambda spec, num_workers: caption_length.score(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary:
    """What was scored. `rows_scored` counts the rows that have a caption."""

    rows_in: int
    rows_scored: int
    nouns: int
    nouns_per_caption: float | None
    noun_engine: str
    noun_engine_reason: str
    up_to_date: bool


def _measure(captions: pl.LazyFrame, scores: list[TextScore], progress: Progress) -> pl.DataFrame:
    """Return clip_id and every score's columns, in the order of the rows."""
    total = captions.select(pl.len()).collect().item()
    slices = []
    for first in range(0, max(total, 1), _ROWS_PER_SLICE):
        rows = captions.slice(first, _ROWS_PER_SLICE).collect()
        parts = [score.measure(rows["caption"]) for score in scores]
        slices.append(pl.concat([rows.select("clip_id"), *parts], how="horizontal"))
        progress(min(first + len(rows), total), total, "captions")
    known = {name: COLUMNS[name].dtype for score in scores for name in score.columns}
    return pl.concat(slices).cast(known)  # type: ignore[arg-type]


def run_score(
    run: Path, spec: ScoreSpec, *, num_workers: int = 1, progress: Progress = no_progress
) -> ScoreSummary:
    """Score every row of the run's table and write RUN/score.parquet.

    `num_workers` is for the spaCy engine; the built-in one needs one thread. Raises InputError for an engine
    that is not there, ColumnError for a table without captions or with noun counts of another engine,
    StageError, StorageError.
    """
    scores = [make(spec, num_workers) for make in SCORES.values()]
    previous = table.previous_stage(run, "score")
    source = table.stage_path(run, previous)
    clips = table.scan(run, previous)
    require(clips.collect_schema().names(), ("clip_id", "caption"), str(source))
    origin = table.Provenance(
        stage="score",
        settings={name: value for score in scores for name, value in score.settings.items()},
        inputs={previous: table.digest(source)},
    )
    target = table.stage_path(run, "score")
    up_to_date = table.is_up_to_date(target, origin)
    if not up_to_date:
        for score in scores:
            if score.check is not None:
                score.check(clips, str(source))
        table.write(_measure(clips.select("clip_id", "caption"), scores, progress), target, origin)
    counts = pl.read_parquet(target, columns=["noun_count"])["noun_count"]
    said = {name: text for score in scores for name, text in score.said.items()}
    mean = counts.mean()
    return ScoreSummary(
        rows_in=len(counts),
        rows_scored=counts.count(),
        nouns=int(counts.sum()),
        nouns_per_caption=round(float(mean), 3) if isinstance(mean, float) else None,
        noun_engine=said["noun_engine"],
        noun_engine_reason=said["noun_engine_reason"],
        up_to_date=up_to_date,
    )
