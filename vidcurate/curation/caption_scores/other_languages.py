"""Non-English captions: language, and no noun count (the engines know English).

A caption is not English when most of its letters are of another script than the Latin one, when its words
are not English, or, where the languages have been detected, when a language other than English is likely.

Words are English when the built-in noun counter knows them, and speak for another language when they are
among its function words (_FUNCTION_WORDS), or unknown and not capitalised: names say nothing. Fewer of these
are enough where no function word is English. A caption with too few of them to decide stays English.
docs/nouns.md has what this finds and misses.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vidcurate.curation.caption_scores import language, nouns, nouns_builtin
from vidcurate.curation.caption_scores.text_scores import TextScore

RULES = "words-2"  # a new name when the same captions are decided otherwise
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
# Those within names and dishes.
_PARTICLES = "al alla da de del della der di do du el en la las le los van von"
# Frequent English function words; words that English has from others with their endings and accents.
_OWN = """
a an the of with and is are was his her its their this that at by for from into on in it he she they who
to up as while through over out off down behind under
"""
_LOANS = """
café cafés crème brûlée crêpe crêpes décor façade fiancé fiancée jalapeño jalapeños mâché naïve piñata pâté
purée puréed résumé saké sauté sautéed soufflé touché entrée entrées flambé rosé cliché matinée déjà
papier-mâché piano soprano cello banjo tuba viola karate judo yoga samurai ninja sumo kimono origami emoji
karaoke anime manga sushi ramen tempura tofu pasta spaghetti ravioli carbonara vodka salsa guacamole taco
burrito mojito latte espresso cappuccino mango papaya kiwi avocado banana broccoli zucchini chia paella
panda koala gorilla zebra puma flamingo buffalo rhino hippo iguana cobra koi graffiti confetti tornado
volcano tsunami lava hula scuba rumba samba tango flamenco disco techno gazebo patio pagoda igloo
gondola plaza villa sauna veranda camera sofa selfie gopro
"""


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

    def is_kind(kind: str) -> NDArray[np.bool_]:
        return np.concatenate([[False], kinds[kind].to_numpy()])  # token 0 is the mark between captions

    def count(kind: str) -> NDArray[np.int64]:
        before = np.concatenate([[0], np.cumsum(is_kind(kind)[tokens.codes], dtype=np.int64)])
        return np.diff(before[tokens.ends])

    known, function, unknown = count("known"), count("function"), count("unknown")
    is_marked = function + count("accented") > 0
    is_marked &= (unknown > 0) | (function > 2)
    is_bare = count("english") == 0
    # Without English function words less speaks for another language: a mark that is no part of a name ...
    begins = is_kind("function")[tokens.codes[tokens.ends[:-1] + 2]]
    is_less = is_bare & (begins | (count("accented") > 0) | (count("particle") < function))
    found: NDArray[np.bool_] = is_marked & (function + unknown >= np.maximum(known + 2 - is_less, 2))
    # ... or more unknown words than known ones, some with an ending that English seldom has.
    found |= is_bare & (unknown > np.maximum(known, 1)) & (unknown + count("name") > 2) & (count("odd") > 0)
    found |= (unknown > 2) & (known == 0)
    return found


def _kinds(tokens: pl.Series) -> pl.DataFrame:
    """Return whether each token is a known English word, a function word of another language, or unknown.

    Unknown words with a capital are names. `english` are function words, `accented` unknown words with a
    letter beyond a to z, `odd` these and those with an ending that few English words have.
    """
    token, word = pl.col("token"), pl.col("token").str.to_lowercase()
    is_word = token.str.contains(r"^[\p{L}\p{M}]+(?:['’-][\p{L}\p{M}]+)*$")
    is_letter = word.str.len_chars() == 1
    english = pl.concat(
        [nouns_builtin.load_tables().singles["word"]["key"], pl.Series("key", _LOANS.split())]
    )
    kinds = tokens.rename("token").to_frame().select("token", word=word, is_word=is_word, is_letter=is_letter)
    kinds = kinds.with_columns(function=pl.col("is_word") & pl.col("word").is_in(_FUNCTION_WORDS))
    is_left = pl.col("is_word") & ~pl.col("function")
    is_known = (
        pl.when("is_letter")
        .then(pl.col("word").is_in(["a", "i"]))
        .otherwise(pl.col("word").is_in(english.implode()))
    )
    kinds = kinds.with_columns(known=is_left & is_known)
    is_strange = is_left & ~pl.col("known") & ~pl.col("is_letter")
    is_name = token.str.contains(r"^\p{Lu}")
    kinds = kinds.with_columns(unknown=is_strange & ~is_name, name=is_strange & is_name)
    is_accented = ~token.str.contains(r"^[\x00-\x7F]*$")
    return kinds.select(
        *("known", "function", "unknown", "name"),
        english=pl.col("known") & word.is_in(_OWN.split()),
        particle=pl.col("function") & word.is_in(_PARTICLES.split()),
        accented=pl.col("unknown") & is_accented,
        odd=pl.col("unknown") & (is_accented | token.str.contains("[aiou]$")),
    )


def without_their_nouns(scores: pl.DataFrame, is_other: pl.Series) -> pl.DataFrame:
    """Return the scores with null for the noun counts of captions that are not English."""
    return scores.with_columns(scores[name].set(is_other, None) for name in _NUMBERS)
