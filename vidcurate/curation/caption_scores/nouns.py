"""Noun count of a caption (NOUN and PROPN): the difficulty of a clip.
The stage also counts both kinds separately; engines disagree most on which of the two a noun is.

Two engines fill the same columns: an installed spaCy pipeline, and the built-in model, which needs no
download. Their counts differ (docs/nouns.md), so `noun_engine` names the engine with its version in every
row, and the stage refuses a table whose rows another engine has counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import polars as pl

from vidcurate.curation.caption_scores import nouns_builtin, nouns_spacy
from vidcurate.curation.caption_scores.text_scores import TextScore
from vidcurate.errors import ColumnError

COLUMNS = ("noun_count", "proper_noun_count", "noun_count_without_proper", "noun_engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Noun engine: `name` as in the column, `reason` for the choice, `load` to prepare it.

    `load` returns a function from captions to noun_count and proper_noun_count.
    """

    name: str
    reason: str
    load: Callable[[], Callable[[pl.Series], pl.DataFrame]]


def choose(noun_engine: str) -> Engine:
    """Return the engine for `auto`, `builtin` or `spacy:<package or folder>`, without loading its model.

    `auto` uses en_core_web_sm when installed, else the built-in engine. Raises InputError for a spaCy
    pipeline that is not installed.
    """
    reason = f"asked for as {noun_engine}"
    if noun_engine == "auto":
        if nouns_spacy.is_installed(nouns_spacy.DEFAULT):
            noun_engine = f"spacy:{nouns_spacy.DEFAULT}"
            reason = f"auto: {nouns_spacy.DEFAULT} is installed"
        else:
            noun_engine = "builtin"
            reason = f"auto: {nouns_spacy.DEFAULT} is not installed"
    if noun_engine == "builtin":
        return Engine(
            name=nouns_builtin.load_tables().engine, reason=reason, load=lambda: nouns_builtin.count_kinds
        )
    pipeline = noun_engine.removeprefix("spacy:")
    return Engine(name=nouns_spacy.engine(pipeline), reason=reason, load=partial(nouns_spacy.load, pipeline))


def refuse_another_engine(clips: pl.LazyFrame, where: str, engine: str) -> None:
    """Raise ColumnError when the table at `where` has counts of another or an unnamed engine."""
    names = clips.collect_schema().names()
    if "noun_count" not in names:
        return
    by = pl.col("noun_engine").cast(pl.String) if "noun_engine" in names else pl.lit(None, dtype=pl.String)
    found = (
        clips.filter(pl.col("noun_count").is_not_null())
        .group_by(by.alias("engine"))
        .len()
        .filter(pl.col("engine").ne_missing(engine))
        .sort("engine", nulls_last=True)
        .collect()
    )
    if found.height:
        reported = " and ".join(
            f"{rows:,} rows by {other or 'an unnamed engine'}" for other, rows in found.iter_rows()
        )
        raise ColumnError(
            f"{where}: the table has noun counts already, {reported}, and this "
            f"run counts by {engine}. One table has one "
            "engine: set noun_engine to the same one, or leave out the column noun_count."
        )


def score(noun_engine: str) -> TextScore:
    """Return the score of COLUMNS. Raises InputError as `choose` does."""
    engine = choose(noun_engine)
    counters: list[Callable[[pl.Series], pl.DataFrame]] = []

    def measure(captions: pl.Series) -> pl.DataFrame:
        if not counters:  # a table that is up to date needs no model
            counters.append(engine.load())
        without = (pl.col("noun_count") - pl.col("proper_noun_count")).alias("noun_count_without_proper")
        return counters[0](captions).with_columns(without, pl.lit(engine.name).alias("noun_engine"))

    return TextScore(
        columns=COLUMNS,
        measure=measure,
        settings={"noun_engine": engine.name},
        facts={"noun_engine": engine.name, "noun_engine_reason": engine.reason},
        check=lambda clips, where: refuse_another_engine(clips, where, engine.name),
    )
