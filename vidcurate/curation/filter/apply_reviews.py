"""Review decisions in the filter: rule `review`, overrides, edited captions.

A clip that a reviewer rejects fails the rule `review`, which stands after the structural rules. A clip that
the reviewers keep passes every rule of the recipe, the duplicates' and the outliers' too, but not a
structural one: an ingest problem, or a file that probe or decoding found broken, is no matter of opinion. An
edited caption replaces the clip's caption before the rules are applied; the scores of captions are computed
again with the settings of `score`, and scores that another model gave the old caption become null.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vidcurate.curation.caption_scores.stage import rescore
from vidcurate.curation.clip_table import rejection_ledger, table
from vidcurate.curation.clip_table.schema import OF_OLD_CAPTION
from vidcurate.curation.filter.rules import Rule
from vidcurate.curation.review_decisions.journal import read_decisions
from vidcurate.curation.review_decisions.outcome import Outcome, merge_decisions

REVIEW = "review"
_ASKED = "not rejected by eye"
_EDITED = " (edited)"  # ends the name of a column while the table is joined with the edits


@dataclass(frozen=True, slots=True)
class Reviews:
    """Outcomes of the decisions on a run's clips, by clip_id."""

    outcomes: Mapping[str, Outcome]

    def ids(self, verdict: str) -> list[str]:
        """Return the clips with this verdict, keep or reject."""
        return [clip_id for clip_id, one in self.outcomes.items() if one.verdict == verdict]

    def captions(self) -> dict[str, str]:
        """Return clip_id → edited caption."""
        edits = {clip_id: one.edit for clip_id, one in self.outcomes.items() if one.edit is not None}
        return {clip_id: edit.caption for clip_id, edit in edits.items() if edit.caption is not None}


NO_REVIEWS = Reviews({})


def read_reviews(run: Path) -> Reviews:
    """Return the merged decisions of RUN/reviews.jsonl. Raises TableError for a forged line."""
    return Reviews(merge_decisions(read_decisions(run)))


def _text_of(texts: Mapping[str, str | None]) -> pl.Expr:
    return pl.col("clip_id").replace_strict(
        list(texts), list(texts.values()), default=None, return_dtype=pl.String
    )


def rejected_by_eye(reviews: Reviews) -> list[Rule]:
    """Return the rule `review`, or none when no clip is rejected by eye."""
    texts = {clip_id: reviews.outcomes[clip_id].text() for clip_id in reviews.ids("reject")}
    if not texts:
        return []
    return [
        Rule(
            stage="filter",
            measure=REVIEW,
            name=pl.lit(REVIEW),
            fails=pl.col("clip_id").is_in(list(texts)),
            value=_text_of(texts),
            threshold=pl.lit(_ASKED),
        )
    ]


def is_among(clip_ids: pl.Series, listed: list[str]) -> pl.Series:
    """Return which of `clip_ids` are listed (Boolean)."""
    return clip_ids.is_in(pl.Series(listed, dtype=pl.String).implode())


def review_columns(clips: pl.LazyFrame, reviews: Reviews) -> pl.LazyFrame:
    """Return review (who decided what), review_tags and caption_original, one row per clip.

    `clips` is the table before the review. caption_original is null where nobody edited the caption.
    """
    texts = {clip_id: one.text() for clip_id, one in reviews.outcomes.items()}
    tags = {clip_id: ", ".join(one.tags) or None for clip_id, one in reviews.outcomes.items()}
    caption = pl.col("caption") if "caption" in clips.collect_schema() else pl.lit(None, dtype=pl.String)
    return clips.select(
        _text_of(texts).alias("review"),
        _text_of(tags).alias("review_tags"),
        pl.when(pl.col("clip_id").is_in([*reviews.captions()])).then(caption).alias("caption_original"),
    )


def with_edited_captions(run: Path, clips: pl.LazyFrame, reviews: Reviews) -> tuple[pl.LazyFrame, list[str]]:
    """Return the table with edited captions and their scores, and the names of the changed columns.

    Without edits the table comes back as it is. Raises InputError when the noun engine, tokenizer or language
    detector of `score` is not installed.
    """
    schema = clips.collect_schema()
    if "caption" not in schema:
        return clips, []
    named = [name for name in ("captions", "caption_name") if name in schema]
    edits = reviews.captions()
    fresh = (
        clips.select("clip_id", *named)
        .filter(pl.col("clip_id").is_in([*edits]))
        .with_columns(_text_of(edits).alias("caption"))
        .collect()
    )
    if fresh.is_empty():
        return clips, []
    if named:
        several = [_with_main(*row) for row in fresh.select(*named, "caption").iter_rows()]
        fresh = fresh.drop(named).with_columns(pl.Series("captions", several, dtype=schema["captions"]))
    if "noun_count" in schema:
        fresh = pl.concat([fresh, rescore(run, fresh["caption"], schema)], how="horizontal")
    stale = [name for name in OF_OLD_CAPTION if name in schema]
    fresh = fresh.with_columns(pl.lit(None, dtype=schema[name]).alias(name) for name in stale)
    changed = [name for name in fresh.columns if name != "clip_id"]
    renamed = fresh.rename({name: f"{name}{_EDITED}" for name in changed}).with_columns(is_edited=True)
    both = clips.join(renamed.lazy(), on="clip_id", how="left", maintain_order="left")
    return both.select(
        pl.when(pl.col("is_edited")).then(pl.col(f"{name}{_EDITED}")).otherwise(pl.col(name)).alias(name)
        if name in changed
        else name
        for name in schema
    ), changed


def _with_main(
    captions: list[dict[str, str]] | None, name: str | None, caption: str
) -> list[dict[str, str]] | None:
    """Return a clip's named captions with the edited text in place of its main caption's."""
    if captions is None:
        return None
    return [{**one, "text": caption} if one["name"] == name else one for one in captions]


def summarise_reviews(run: Path, reviews: Reviews) -> dict[str, int]:
    """Count what the decisions changed in a filtered run; empty without decisions.

    rejected_by_eye, kept_against_rules, damaged_but_kept_by_eye (rejected all the same), captions_edited,
    clips_not_in_table (decisions about them do nothing).
    """
    if not reviews.outcomes:
        return {}
    checked = table.scan(run, "filter").select("clip_id", "is_kept", "caption_original")
    rows = checked.filter(pl.col("clip_id").is_in([*reviews.outcomes])).collect()
    entries = rejection_ledger.read_ledger(run)
    reported = entries.filter(pl.col("clip_id").is_in([*reviews.outcomes])).collect()
    kept = rows.filter("is_kept")["clip_id"]
    by_eye = is_among(rows["clip_id"], reviews.ids("keep"))
    verdicts = reported.filter(is_among(reported["clip_id"], [*kept]) & ~reported["is_verdict"])
    return {
        "rejected_by_eye": int((reported["is_verdict"] & (reported["rule"] == REVIEW)).sum()),
        "kept_against_rules": verdicts["clip_id"].n_unique(),
        "damaged_but_kept_by_eye": int((by_eye & ~rows["is_kept"]).sum()),
        "captions_edited": int(rows["caption_original"].is_not_null().sum()),
        "clips_not_in_table": len(reviews.outcomes) - len(rows),
    }
