"""Verbs in -s and -ing that the noun model takes for nouns, and the reverse.

Examples: "Subject walks slowly", "The video shows a street", "a bustling street".

Video captions are full of the third person, and the treebank has little of it. A word in -s is a verb where
its neighbours leave no other reading: between a noun and a determiner or an adverb in -ly; between a noun and
a direction ("down", "through"); between the subject of a caption ("man", "camera", "video") and a
preposition; at the end of a short clause ("as the team cheers."). The last three need a stem that is known
as a verb, or not known.

A row of plurals at the start of a sentence has no verb in it ("Mountains, clouds and waves in the mist"): a
form in -s there is a noun where its stem is known as one.

A word in -ing before a noun, and not behind one, is a participle where the treebank does not know the word
as a noun, unless it is listed here ("fishing boat").
"""

from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

RULES = "verbs-3"  # part of the engine's name: other rules count other nouns
_DETERMINERS = {
    "a", "an", "the", "his", "her", "its", "their", "this", "these", "those", "him", "them", "it",
    "itself", "himself", "herself", "themselves", "another", "each", "every",
}  # fmt: skip
_DIRECTIONS = {
    "towards", "toward", "into", "along", "across", "through", "around", "down", "up", "past", "away",
    "off", "out", "back", "forward", "forwards", "backwards", "upwards", "downwards", "onto", "over",
    "beneath",
}  # fmt: skip
_PREPOSITIONS = {
    "in", "on", "at", "with", "by", "from", "near", "beside", "behind", "between", "while",
}  # fmt: skip
_SUBORDINATORS = {"as", "while", "when", "until", "where", "before"}
_CLAUSE_ENDS = {".", ",", ";", "!", "and", "but", "or"}
_SUBJECTS = {
    "man", "woman", "person", "boy", "girl", "child", "baby", "dog", "cat", "bird", "horse", "camera",
    "video", "clip", "scene", "footage", "subject", "character", "figure", "player", "shot", "image",
    "animal", "someone", "he", "she", "it", "who", "one",
}  # fmt: skip
# Nouns in -ing, above all activities and what serves them ("fishing boat", "frying pan").
_NOUNS = {
    "acting", "angling", "awning", "baking", "banking", "bathing", "batting", "beekeeping", "bling",
    "boating", "bookkeeping", "bowling", "boxing", "brewing", "broadcasting", "camping", "canoeing",
    "catering", "ceiling", "cheerleading", "chopping", "climbing", "clothing", "coding", "cooking",
    "cycling", "dancing", "diving", "drawing", "dressing", "duckling", "dumpling", "earring", "editing",
    "engraving", "etching", "farming", "fencing", "filming", "firefighting", "fishing", "fledgling",
    "frosting", "frying", "gaming", "gardening", "gosling", "greeting", "grilling", "grooming",
    "harvesting", "hatchling", "herring", "hiking", "hunting", "icing", "ironing", "jogging", "juggling",
    "kayaking", "kicking", "kiteboarding", "kitesurfing", "knitting", "landscaping", "lettering",
    "lightening", "lightning", "lining", "loading", "lodging", "manufacturing", "marching", "microblading",
    "milking", "mining", "mixing", "modeling", "mountaineering", "netting", "networking", "offspring",
    "padding", "paddling", "painting", "parachuting", "paragliding", "parenting", "plumbing", "pudding",
    "punching", "racing", "racking", "rafting", "railing", "recordkeeping", "recycling", "refereeing",
    "retaining", "rocking", "roofing", "rowing", "sailing", "sapling", "scaffolding", "scrapbooking",
    "sculpting", "seating", "seedling", "sewing", "shelving", "shipping", "shredding", "sibling",
    "sightseeing", "skateboarding", "skating", "skiing", "skydiving", "sledding", "sling", "snorkeling",
    "snowboarding", "snowmobiling", "sparring", "spring", "stapling", "steering", "sting", "stocking",
    "streaming", "string", "surfing", "swimming", "swing", "tailoring", "topping", "tutoring", "vending",
    "viewing", "vlogging", "washing", "watering", "weaving", "wedding", "weightlifting", "welding",
    "windsurfing", "woodworking", "wrapping", "wrestling",
}  # fmt: skip
_LONGEST_ROW = 5
_PARTICIPLE = r"^\P{Lu}{3,}ing$"
_FORM = r"^\P{Lu}{2,}s$"
_NO_FORM = r"(?:ss|us|is)$"


def _stems(word: str) -> list[str]:
    return [
        *([word[:-3] + "y"] if word.endswith("ies") else []),
        word[:-1],
        *([word[:-2]] if word.endswith("es") else []),
    ]


def _may_be_verb(word: str, classes: Mapping[str, str]) -> bool:
    """Return whether the treebank knows the word or its stem as a verb, or knows neither."""
    known = next((classes[form] for form in (word, *_stems(word)) if form in classes), None)
    return known is None or "VERB" in known


def verbs(
    codes: NDArray[np.int32], distinct: pl.Series, is_noun: NDArray[np.bool_], classes: Mapping[str, str]
) -> NDArray[np.int64]:
    """Return the positions in `codes` of nouns by the model that are verbs by their neighbours.

    `codes` are token numbers (0: a mark; n: `distinct[n - 1]`), `classes` a treebank word's parts of speech.
    """
    is_form = distinct.str.contains(_FORM) & ~distinct.str.contains(_NO_FORM)
    forms = np.concatenate([[False], is_form.fill_null(value=False).to_numpy()])
    at: NDArray[np.int64] = np.flatnonzero(is_noun & forms[codes])
    at = at[(at > 0) & (at < len(codes) - 1)]
    if not len(at):
        return at
    words = distinct.str.to_lowercase()
    is_adverb = words.str.contains(r"^.{3,}ly$") & ~words.is_in(
        [word for word, known in classes.items() if word.endswith("ly") and "NOUN" in known]
    )
    listed = {
        name: np.concatenate([[False], found.to_numpy()])
        for name, found in (
            ("determiner", words.is_in(sorted(_DETERMINERS)) | is_adverb),
            ("direction", words.is_in(sorted(_DIRECTIONS))),
            ("preposition", words.is_in(sorted(_PREPOSITIONS))),
            ("subordinator", words.is_in(sorted(_SUBORDINATORS))),
            ("clause end", words.is_in(sorted(_CLAUSE_ENDS))),
            ("article", words.is_in(["a", "an", "the"])),
            ("subject", words.is_in(sorted(_SUBJECTS))),
        )
    }
    before, after = codes[at - 1], codes[at + 1]
    may = {code: _may_be_verb(words[code - 1], classes) for code in np.unique(codes[at]).tolist()}
    can = np.array([may[code] for code in codes[at].tolist()])
    follows_noun = is_noun[at - 1] & (before > 0)
    is_path = listed["direction"][after]
    follows_subject = listed["subject"][before] & (is_path | listed["preposition"][after])
    # "as the team cheers.": a clause of a subordinator, an article, a noun and the form.
    is_clause = listed["subordinator"][codes[at - 3]] & listed["article"][codes[at - 2]] & follows_noun
    is_clause &= listed["clause end"][after] | (after == 0)
    is_verb = (follows_noun & listed["determiner"][after]) | (
        can & ((follows_noun & is_path) | follows_subject | is_clause)
    )
    found: NDArray[np.int64] = at[is_verb]
    return found


def participles(
    codes: NDArray[np.int32], distinct: pl.Series, is_noun: NDArray[np.bool_], classes: Mapping[str, str]
) -> NDArray[np.int64]:
    """Return the positions in `codes` of nouns by the model that are participles before a noun.

    The arguments are those of `verbs`.
    """
    is_form = distinct.str.contains(_PARTICIPLE) & ~distinct.is_in(sorted(_NOUNS))
    forms = np.concatenate([[False], is_form.fill_null(value=False).to_numpy()])
    at: NDArray[np.int64] = np.flatnonzero(is_noun & forms[codes])
    at = at[(at > 0) & (at < len(codes) - 1)]
    can = {code: "NOUN" not in classes.get(distinct[code - 1], "") for code in np.unique(codes[at]).tolist()}
    is_participle = np.array([can[code] for code in codes[at].tolist()], dtype=bool)
    is_participle &= is_noun[at + 1] & (codes[at + 1] > 0)
    is_participle &= ~(is_noun[at - 1] & (codes[at - 1] > 0))
    found: NDArray[np.int64] = at[is_participle]
    return found


def plurals(
    codes: NDArray[np.int32], distinct: pl.Series, is_noun: NDArray[np.bool_], classes: Mapping[str, str]
) -> NDArray[np.int64]:
    """Return the positions in `codes` of verbs by the model that are nouns in a row that begins a sentence.

    The arguments are those of `verbs`.
    """
    words = distinct.str.to_lowercase()
    in_s, joins, ends = (
        np.concatenate([[mark], found.to_numpy()])
        for mark, found in (
            (False, words.str.contains(r"^\p{L}{2,}s$")),
            (False, words.is_in([",", "and", "or"])),
            (True, words.is_in([".", "!", "?"])),
        )
    )
    # A row begins at a plural noun after a mark; each next plural stands behind a comma, "and" or "or".
    last: NDArray[np.int64] = np.flatnonzero(ends[codes[:-1]]) + 1
    last = last[in_s[codes[last]] & is_noun[last]]
    row = [last[:0]]
    for _ in range(_LONGEST_ROW - 1):
        last = last[last + 2 < len(codes)] + 2
        last = last[joins[codes[last - 1]] & in_s[codes[last]]]
        known = ["NOUN" in classes.get(words[code - 1], "") for code in codes[last].tolist()]
        last = last[is_noun[last] | np.array(known, dtype=bool)]
        row.append(last)
    return np.concatenate(row)
