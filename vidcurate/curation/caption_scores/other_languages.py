"""Non-English captions: language, and no noun count (the engines know English).

A caption is not English when most of its letters are of another script than the Latin one, when its words
are not English, or, where the languages have been detected, when a language other than English is likely.

Words are English when the built-in noun counter knows them, and speak for another language when they are
among its function words (_FUNCTION_WORDS), or unknown and not capitalised: names say nothing. A caption with
too few of them to decide stays English. docs/nouns.md has what this finds and misses.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.caption_scores import language, nouns, nouns_builtin
from vidcurate.curation.caption_scores.text_scores import TextScore

RULES = "words-1"  # a new name when the same captions are decided otherwise
SETTING = "caption_language"  # in a table's provenance: what named the languages

# None of 8,000 English captions (4,000 dense, 4,000 short) is called anything else with 0.8.
_LEAST_CONFIDENCE = 0.8
_NUMBERS = tuple(name for name in nouns.COLUMNS if name != "noun_engine")
# One of these in each _BYTES of a caption: English, and the words need not be looked up (19 in 20 captions of
# 74 words).
_ENGLISH = r" (?:the|and|of|with) "
_BYTES = 120

# Frequent function words of languages in the Latin script that are no frequent words of English captions.
_FREQUENT = """
der die das den dem des ein eine einen einem einer und ist im zu auf mit von für sich nicht bei sind wird
während zwei über vor aus
la le les un une de du et est dans sur avec pour que qui au aux en par sont se ses son sa il elle deux
una el los las del al es con su sus está están mientras dos como más
di lo gli è della delle dei nel nella sul sulla che si sono mentre due da alla
os um uma das na nos nas em com ao à é são enquanto seu sua pelo pela
het een van op met zijn naar voor bij aan uit wordt dat terwijl twee te
và là một của trên trong đang có người những các với cho không vào khi ở bên hai
jest nie po za od przez przy nad pod dwa oraz
ve bir bu ile için üzerinde olan gibi iki çok
yang dan dengan ke dari ini itu untuk pada dalam adalah sebuah seorang seekor dua ada oleh
och ett som av det är til den till för att og er på af med ei ja je
az és egy hogy nem și din cu pe în este sa si por para se
"""
_FUNCTION_WORDS = _FREQUENT.split()


def score() -> TextScore:
    """Return the score of the columns of `language` by the words, which is cheap.

    `en` without a confidence, null without a letter, or what py3langid finds in a caption that is not
    English. That is `und` (ISO 639: undetermined) when py3langid is not installed or finds English.
    """
    detector = language.score() if language.is_installed() else None
    settings = {SETTING: "+".join([RULES, *(detector.settings.values() if detector else ())])}

    def measure(captions: pl.Series) -> pl.DataFrame:
        has_letter = captions.str.contains(r"\p{L}")
        found = has_letter.to_frame("letter").select(
            caption_language=pl.when("letter").then(pl.lit("en")),
            caption_language_confidence=pl.lit(None, dtype=pl.Float64),
        )
        at = is_not_english(captions, pl.DataFrame()).arg_true()
        if len(at):
            others = detector.measure(captions[at]) if detector else found[at]
            is_unknown = others["caption_language"].fill_null("en") == "en"
            for name, unknown in zip(language.COLUMNS, ("und", None), strict=True):
                found = found.with_columns(found[name].scatter(at, others[name].set(is_unknown, unknown)))
        return found

    return TextScore(columns=language.COLUMNS, measure=measure, settings=settings)


def is_not_english(captions: pl.Series, scores: pl.DataFrame) -> pl.Series:
    """Return which captions are not English; `scores` may have the columns of `language`. False for null."""
    found = captions.str.contains(r"[\p{L}&&\P{Latin}]").fill_null(value=False)
    at = found.arg_true()
    if len(at):  # counting letters costs more than looking for one of another script
        letters, latin = (captions[at].str.count_matches(one) for one in (r"\p{L}", r"\p{Latin}"))
        found = found.scatter(at, 2 * latin.cast(pl.Int64) < letters.cast(pl.Int64))
    is_unclear = captions.str.count_matches(_ENGLISH) * _BYTES < captions.str.len_bytes()
    at = (is_unclear & ~found).arg_true()
    found = found.scatter(at, has_other_words(captions[at]) if len(at) else [])
    if set(language.COLUMNS) <= set(scores.columns):
        name, share = (scores[column] for column in language.COLUMNS)
        found |= ((name != "en") & (share >= _LEAST_CONFIDENCE)).fill_null(value=False)
    return found


def has_other_words(captions: pl.Series) -> NDArray[np.bool_]:
    """Return which captions (String, no nulls) have words of another language and few English ones.

    Raises TableError when the installed noun tables cannot be read.
    """
    return np.concatenate([_decide(piece) for piece in nouns_builtin.pieces(captions)])


def _decide(captions: pl.Series) -> NDArray[np.bool_]:
    tokens = nouns_builtin.tokenise(captions)
    kinds = _kinds(tokens.distinct)

    def count(kind: str) -> NDArray[np.int64]:
        is_kind = np.concatenate([[False], kinds[kind].to_numpy()])  # token 0 is the mark between captions
        before = np.concatenate([[0], np.cumsum(is_kind[tokens.codes], dtype=np.int64)])
        return np.diff(before[tokens.ends])

    known, function, unknown = count("known"), count("function"), count("unknown")
    is_marked = function + count("accented") > 0
    is_marked &= (unknown > 0) | (function > 2)
    found: NDArray[np.bool_] = is_marked & (function + unknown >= known + 2) | (unknown > 2) & (known == 0)
    return found


def _kinds(tokens: pl.Series) -> pl.DataFrame:
    """Return whether each token is a known English word, a function word of another language, or unknown.

    `accented` are those unknown ones that have a letter beyond a to z. Capitalised unknown words are names.
    """
    token, word = pl.col("token"), pl.col("token").str.to_lowercase()
    is_word = token.str.contains(r"^[\p{L}\p{M}]+(?:['’-][\p{L}\p{M}]+)*$")
    is_letter = word.str.len_chars() == 1
    english = nouns_builtin.load_tables().singles["word"]["key"]
    kinds = tokens.rename("token").to_frame().select("token", word=word, is_word=is_word, is_letter=is_letter)
    kinds = kinds.with_columns(function=pl.col("is_word") & pl.col("word").is_in(_FUNCTION_WORDS))
    is_left = pl.col("is_word") & ~pl.col("function")
    is_known = (
        pl.when("is_letter")
        .then(pl.col("word").is_in(["a", "i"]))
        .otherwise(pl.col("word").is_in(english.implode()))
    )
    kinds = kinds.with_columns(known=is_left & is_known)
    is_name = token.str.contains(r"^\p{Lu}")
    kinds = kinds.with_columns(unknown=is_left & ~pl.col("known") & ~pl.col("is_letter") & ~is_name)
    is_accented = ~token.str.contains(r"^[\x00-\x7F]*$")
    return kinds.select("known", "function", "unknown", accented=pl.col("unknown") & is_accented)


def without_their_nouns(scores: pl.DataFrame, is_other: pl.Series) -> pl.DataFrame:
    """Return the scores with null for the noun counts of captions that are not English."""
    return scores.with_columns(scores[name].set(is_other, None) for name in _NUMBERS)
