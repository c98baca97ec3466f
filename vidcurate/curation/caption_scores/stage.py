"""Stage `score`: caption scores as columns of the run's table.

The stage scores the table in slices, so that memory does not grow with the table. Rows do not depend on each
other, so slicing does not change the scores.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from pydantic import Field

from vidcurate.curation.caption_scores import language, nouns, other_languages, t5_tokens, text_scores
from vidcurate.curation.caption_scores.text_scores import TextScore
from vidcurate.curation.clip_table import run_lock, table
from vidcurate.curation.clip_table.schema import COLUMNS, require
from vidcurate.errors import InputError
from vidcurate.executor.map_clips import Progress, no_progress
from vidcurate.recipe.recipe import Recipe

_ROWS_PER_SLICE = 65_536
_OTHER_LANGUAGES = "nouns_of_other_languages"
_LANGUAGE_RULES = "language_rules"
_LATER = (_OTHER_LANGUAGES, other_languages.SETTING)  # settings that older tables have not


class ScoreSpec(Recipe):
    """Settings of the caption scores.

    Scores that cost seconds per million captions are always computed. These settings enable the others, whose
    columns are missing otherwise, and say how the nouns and the languages are found.
    """

    noun_engine: Annotated[str, Field(pattern=r"^(auto|builtin|spacy:.+)$")] = "auto"
    """auto, builtin, or spacy:PIPELINE (an installed package or a folder); auto: en_core_web_sm when
    installed, else builtin"""
    language: bool = False
    """detect the language of each caption, which takes minutes per million captions and the extra `language`;
    false: only where the words are not English"""
    nouns_of_other_languages: bool = False
    """count nouns also in captions that are not English, which the engines do not know; false: no count where
    most letters are not Latin, where the words are another language's, or where `language` finds one"""
    t5_tokenizer: str | None = None
    """count tokens with this tokenizer: a folder, or a name such as google/t5-v1_1-xxl; needs transformers"""


# Every score, in column order: from settings to a score, None when disabled.
SCORES: dict[str, Callable[[ScoreSpec], TextScore | None]] = {
    "nouns": lambda spec: nouns.score(spec.noun_engine),
    "caption_length": lambda spec: text_scores.length_score(),
    "t5_tokens": lambda spec: t5_tokens.score(spec.t5_tokenizer) if spec.t5_tokenizer else None,
    "language": lambda spec: language.score() if spec.language else other_languages.score(),
    "boilerplate": lambda spec: text_scores.boilerplate_score(),
    "repeats": lambda spec: text_scores.repeats_score(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary:
    """Counts of a scored table. `rows_scored`: rows that have a caption; `not_english`: those without a noun
    count, as their captions are not English."""

    rows_in: int
    rows_scored: int
    not_english: int
    nouns: int
    nouns_per_caption: float | None
    noun_engine: str
    noun_engine_reason: str
    up_to_date: bool


def _columns_of(captions: pl.Series, scores: list[TextScore], spec: ScoreSpec) -> pl.DataFrame:
    found = pl.concat([score.measure(captions) for score in scores], how="horizontal")
    if spec.nouns_of_other_languages:
        return found
    if spec.language:
        is_other = other_languages.is_not_english(captions, found)
    else:  # the words have been looked at
        is_other = (found["caption_language"] != "en").fill_null(value=False)
    return other_languages.without_their_nouns(found, is_other)


def _settings(scores: list[TextScore], spec: ScoreSpec) -> dict[str, Any]:
    """Return what determines the values of the table, as plain JSON."""
    settings: dict[str, Any] = {_OTHER_LANGUAGES: spec.nouns_of_other_languages}
    if not spec.nouns_of_other_languages:
        settings[_LANGUAGE_RULES] = other_languages.RULES
    for score in scores:
        settings |= score.settings
    return settings


def _measure(
    captions: pl.LazyFrame, scores: list[TextScore], spec: ScoreSpec, progress: Progress
) -> pl.DataFrame:
    """Return clip_id and every score's columns, in the order of the rows."""
    total = captions.select(pl.len()).collect().item()
    first_passes = [score.first_pass for score in scores if score.first_pass is not None]
    for first in range(0, total if first_passes else 0, _ROWS_PER_SLICE):
        seen = captions.slice(first, _ROWS_PER_SLICE).select("caption").collect()["caption"]
        for first_pass in first_passes:
            first_pass(seen)
    slices = []
    for first in range(0, max(total, 1), _ROWS_PER_SLICE):
        rows = captions.slice(first, _ROWS_PER_SLICE).collect()
        parts = [rows.select("clip_id"), _columns_of(rows["caption"], scores, spec)]
        slices.append(pl.concat(parts, how="horizontal"))
        progress(min(first + len(rows), total), total, "captions")
    known = {name: COLUMNS[name].dtype for score in scores for name in score.columns}
    return pl.concat(slices).cast(known)  # type: ignore[arg-type]


def rescore(run: Path, captions: pl.Series, columns: Collection[str]) -> pl.DataFrame:
    """Return the scores of edited captions, with the settings by which RUN/score.parquet was made.

    One row per caption, only those of `columns` (the table's) that a caption alone determines: no
    caption_repeats. Raises InputError when the noun engine, tokenizer or detector is not the recorded one.
    """
    recorded = table.provenance(table.stage_path(run, "score")).settings
    engine = str(recorded.get("noun_engine", ""))
    spec = ScoreSpec(
        noun_engine=engine.partition("@")[0] if engine.startswith("spacy:") else "builtin",
        language="language" in recorded,
        nouns_of_other_languages=bool(recorded.get(_OTHER_LANGUAGES, True)),
        t5_tokenizer=recorded.get("t5_tokenizer"),
    )
    scores = [score for make in SCORES.values() if (score := make(spec)) is not None]
    for name, value in _settings(scores, spec).items():
        if recorded.get(name) != value and (name in recorded or name not in _LATER):
            raise InputError(
                f"{run}: edited captions cannot be scored like the others: score.parquet has {name} "
                f"{recorded.get(name)}, and here it is {value}. Run `vidcurate score {run}` again."
            )
    found = _columns_of(captions, [score for score in scores if score.first_pass is None], spec)
    return found.select(pl.col(name).cast(COLUMNS[name].dtype) for name in found.columns if name in columns)


@run_lock.holding_run
def run_score(run: Path, spec: ScoreSpec, *, progress: Progress = no_progress) -> ScoreSummary:
    """Score every row of the run's table and write RUN/score.parquet.

    Raises InputError for a missing engine, tokenizer or package, ColumnError for a table without captions or
    with noun counts of another engine, StageError, StorageError.
    """
    scores = [score for make in SCORES.values() if (score := make(spec)) is not None]
    previous = table.previous_stage(run, "score")
    source = table.stage_path(run, previous)
    clips = table.scan(run, previous)
    require(clips.collect_schema().names(), ("clip_id", "caption"), str(source))
    origin = table.Provenance(
        stage="score",
        settings=_settings(scores, spec),
        inputs={previous: table.digest(source)},
    )
    target = table.stage_path(run, "score")
    up_to_date = table.is_up_to_date(target, origin)
    if not up_to_date:
        for score in scores:
            if score.check is not None:
                score.check(clips, str(source))
        table.write(_measure(clips.select("clip_id", "caption"), scores, spec, progress), target, origin)
    scored = pl.read_parquet(target, columns=["noun_count", "caption_num_words"])
    counts, captions = scored["noun_count"], scored["caption_num_words"].count()
    facts = {name: text for score in scores for name, text in score.facts.items()}
    mean = counts.mean()
    return ScoreSummary(
        rows_in=len(counts),
        rows_scored=captions,
        not_english=captions - counts.count(),
        nouns=int(counts.sum()),
        nouns_per_caption=round(float(mean), 3) if isinstance(mean, float) else None,
        noun_engine=facts["noun_engine"],
        noun_engine_reason=facts["noun_engine_reason"],
        up_to_date=up_to_date,
    )
