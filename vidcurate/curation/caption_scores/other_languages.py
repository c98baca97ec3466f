"""Non-English captions: no noun count, as the noun engines know English alone.

A caption is not English when most of its letters are of another script than the Latin one, or, where the
languages have been detected, when a language other than English is likely.
"""

import polars as pl

from vidcurate.curation.caption_scores import language, nouns

# None of 8,000 English captions (4,000 dense, 4,000 short) is called anything else with 0.8.
_LEAST_CONFIDENCE = 0.8
_NUMBERS = tuple(name for name in nouns.COLUMNS if name != "noun_engine")


def is_not_english(captions: pl.Series, scores: pl.DataFrame) -> pl.Series:
    """Return which captions are not English; `scores` may have the columns of `language`. False for null."""
    found = captions.str.contains(r"[\p{L}&&\P{Latin}]").fill_null(value=False)
    at = found.arg_true()
    if len(at):  # counting letters costs more than looking for one of another script
        letters, latin = (captions[at].str.count_matches(one) for one in (r"\p{L}", r"\p{Latin}"))
        found = found.scatter(at, 2 * latin.cast(pl.Int64) < letters.cast(pl.Int64))
    if set(language.COLUMNS) <= set(scores.columns):
        name, share = (scores[column] for column in language.COLUMNS)
        found |= ((name != "en") & (share >= _LEAST_CONFIDENCE)).fill_null(value=False)
    return found


def without_their_nouns(captions: pl.Series, scores: pl.DataFrame) -> pl.DataFrame:
    """Return the scores with null for the noun counts of captions that are not English."""
    if "noun_count" not in scores.columns:
        return scores
    is_other = is_not_english(captions, scores)
    return scores.with_columns(scores[name].set(is_other, None) for name in _NUMBERS)
