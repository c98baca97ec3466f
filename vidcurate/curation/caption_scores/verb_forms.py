"""Verbs in -s and -ing that the noun model takes for nouns, and the reverse.

Examples: "Subject walks slowly", "The video shows a street", "a bustling street".

Video captions are full of the third person, and the treebank has little of it. A word in -s is a verb where
its neighbours leave no other reading: between a noun and a determiner or an adverb in -ly; between a noun and
a direction ("down", "through"); between the subject of a caption ("man", "camera", "video") and a
preposition; at the end of a short clause ("as the team cheers."); behind a single thing, which has no plural
("a seal barks and claps"); in a row of verbs ("ducks, jabs and hooks"). All but the first need a stem that is
known as a verb, or not known; a row needs known ones.

A row of plurals at the start of a sentence has no verb in it ("Mountains, clouds and waves in the mist"): a
form in -s there is a noun where its stem is known as one.

A word in -ing before a noun, and not behind one, is a participle where the treebank does not know the word
as a noun, unless it is listed here ("fishing boat").
"""

import re
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

RULES = "verbs-4"  # part of the engine's name: other rules count other nouns
_DETERMINERS = {
    "a", "an", "the", "his", "her", "its", "their", "this", "these", "those", "him", "them", "it",
    "itself", "himself", "herself", "themselves", "another", "each", "every", "again", "once", "twice",
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
_CLAUSE_ENDS = {".", ",", ";", "!", "and", "but", "or", "then"}
_ARTICLES = {"a", "an", "the"}
_JOINS = {",", "and", "or", "then"}
_ONE = {"a", "an", "another", "each", "every"}
_THE = {"the", "this", "his", "her", "their", "its"}
_OPENS = _SUBORDINATORS | _CLAUSE_ENDS | {"?"}
_NO_THING = re.compile(r"(?:[^su]s|(?<!build)ing)$|^(?:dozen|hundred|thousand|million|couple|few)$")
# What follows a verb beside what is listed above.
_AFTER_VERBS = {
    "about", "above", "after", "against", "alone", "among", "as", "before", "below", "beyond", "for", "hard",
    "inside", "like", "outside", "to", "together", "under", "underneath", "until", "upon", "when",
}  # fmt: skip
_SUBJECTS = {
    "man", "woman", "person", "boy", "girl", "child", "baby", "dog", "cat", "bird", "horse", "camera",
    "video", "clip", "scene", "footage", "subject", "character", "figure", "player", "shot", "image",
    "animal", "someone", "he", "she", "it", "who", "one",
}  # fmt: skip
_LIVING = (_SUBJECTS - {"camera", "video", "clip", "scene", "footage", "shot", "image"}) | {
    "actor", "artist", "athlete", "baker", "barista", "boxer", "bride", "chef", "climber", "clown",
    "cyclist", "dancer", "deer", "dolphin", "driver", "drummer", "eagle", "elephant", "farmer", "father",
    "fox", "gardener", "goat", "guitarist", "gymnast", "hiker", "kitten", "lady", "lion", "magician",
    "mechanic", "monkey", "mother", "musician", "nurse", "officer", "owl", "painter", "panda", "parrot",
    "pianist", "pitcher", "potter", "presenter", "puppy", "rabbit", "reporter", "rider", "robot", "runner",
    "seal", "singer", "skater", "snake", "soldier", "speaker", "squirrel", "surfer", "swimmer", "teacher",
    "tiger", "toddler", "tourist", "vendor", "waiter", "whale", "wolf", "worker", "wrestler",
}  # fmt: skip
# Verbs of captions that the treebank knows as nouns alone, or not at all.
_VERBS = {
    "buck", "dock", "dolly", "flick", "grade", "grease", "hurdle", "loop", "pant", "parachute", "pivot",
    "plate", "rake", "vacuum", "vault", "waltz",
}  # fmt: skip
# Verbs whose plural noun is not in captions.
_SELDOM_NOUNS = {
    "bark", "bob", "caw", "chuckle", "cluck", "coo", "douse", "froth", "giggle", "glance", "growl", "hoist",
    "honk", "hoot", "moo", "nod", "pounce", "quack", "rev", "shrug", "skitter", "slurp", "squawk", "stare",
    "wince", "whinny", "wink", "yawn", "zoom",
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
# Participles before nouns, for all that the treebank knows them as nouns ("sleeping bag" has one).
_PARTICIPLES = {"beating", "breaking", "fleeing", "matching", "passing", "sinking", "sleeping"}
_LONGEST_ROW = 5
_PARTICIPLE = r"^\P{Lu}{3,}ing$"
_FORM = r"^\P{Lu}{2,}s$"
_NO_FORM = r"(?:ss|us|is|as|[^o]os|^lens|.works)$"


def _stems(word: str) -> list[str]:
    return [
        *([word[:-3] + "y"] if word.endswith("ies") else []),
        word[:-1],
        *([word[:-2]] if word.endswith("es") else []),
    ]


def _kinds_of_verbs(
    codes: NDArray[np.int32], words: pl.Series, classes: Mapping[str, str]
) -> NDArray[np.bool_]:
    """Return, per token number in `codes`, whether it may be a verb, is known as one, and is seldom a noun.

    A form is known as what the treebank knows it or its stem as; one that it does not know may be a verb.
    """
    kinds = np.zeros((len(words) + 1, 3), dtype=bool)
    used = np.flatnonzero(np.bincount(codes[codes > 0]))
    for code, word in zip(used.tolist(), words.gather(used - 1).to_list(), strict=True):
        stems = _stems(word)
        known = next((classes[form] for form in (word, *stems) if form in classes), None)
        is_seldom = not _SELDOM_NOUNS.isdisjoint(stems)
        is_verb = is_seldom or not _VERBS.isdisjoint(stems) or "VERB" in (known or "")
        kinds[code] = is_verb or known is None, is_verb, is_seldom
    return kinds


def _places(found: pl.Series, *, mark: bool = False) -> NDArray[np.bool_]:
    """Return `found` per token number; `mark` is that of the mark between captions."""
    return np.concatenate([[mark], found.to_numpy()])


def _behind_one(
    codes: NDArray[np.int32], at: NDArray[np.int64], words: pl.Series, classes: Mapping[str, str]
) -> NDArray[np.bool_]:
    """Return which of `at`, each behind a noun, stand behind "a" and that noun alone or with an adjective.

    They are in the third person, as no plural has an "a". So they are behind "the" where a sentence begins
    with it and the noun is living.
    """
    one, living, the = (_places(words.is_in(sorted(some))) for some in (_ONE, _LIVING, _THE))
    opens = _places(words.is_in(sorted(_OPENS)), mark=True)
    found = np.zeros(len(at), dtype=bool)
    for back in (2, 3):
        first = codes[at - back]
        found |= one[first] | (the[first] & living[codes[at - 1]] & opens[codes[at - back - 1]])
    places = np.flatnonzero(found)
    of_two = (words.gather(codes[at[places] - back] - 1).to_list() for back in (2, 1))
    for place, between, last in zip(places.tolist(), *of_two, strict=True):
        is_plain = between.isalpha() and not classes.get(between, "").startswith("=")
        is_plain &= not _NO_THING.search(between)
        is_thing = last in _NOUNS or not _NO_THING.search(last)
        found[place] = is_thing and (is_plain or between in _ONE or between in _THE)
    return found


def verbs(
    codes: NDArray[np.int32], distinct: pl.Series, is_noun: NDArray[np.bool_], classes: Mapping[str, str]
) -> NDArray[np.int64]:
    """Return the positions in `codes` of nouns by the model that are verbs by their neighbours.

    `codes` are token numbers (0: a mark; n: `distinct[n - 1]`), `classes` a treebank word's parts of speech.
    """
    forms = _places(distinct.str.contains(_FORM) & ~distinct.str.contains(_NO_FORM))
    at: NDArray[np.int64] = np.flatnonzero(is_noun & forms[codes])
    at = at[(at > 0) & (at < len(codes) - 1)]
    if not len(at):
        return at
    words = distinct.str.to_lowercase()
    is_adverb = words.str.contains(r"^.{3,}ly$")
    is_adverb &= ~words.is_in([word for word in words.filter(is_adverb) if "NOUN" in classes.get(word, "")])
    determiner = _places(words.is_in(sorted(_DETERMINERS)) | is_adverb)
    direction, preposition, subordinator, clause_end, after_verb, article, subject, joins = (
        _places(words.is_in(sorted(some)))
        for some in (
            _DIRECTIONS, _PREPOSITIONS, _SUBORDINATORS, _CLAUSE_ENDS, _AFTER_VERBS, _ARTICLES,
            _SUBJECTS, _JOINS,
        )
    )  # fmt: skip
    before, after = codes[at - 1], codes[at + 1]
    may, is_known, is_seldom = _kinds_of_verbs(codes[at], words, classes)[codes[at]].T
    follows_noun = is_noun[at - 1] & (before > 0)
    is_path = direction[after]
    follows_subject = subject[before] & (is_path | preposition[after])
    # "as the team cheers.": a clause of a subordinator, an article, a noun and the form.
    is_clause = subordinator[codes[at - 3]] & article[codes[at - 2]] & follows_noun
    is_clause &= clause_end[after] | (after == 0)
    can_end = (determiner | direction | preposition | clause_end | after_verb)[after] | (after == 0)
    can_end &= may
    is_verb = follows_noun & (determiner[after] | (may & is_path))
    is_verb |= may & (follows_subject | is_clause)
    is_verb |= is_seldom & can_end & (follows_noun | joins[before])
    rest = may & follows_noun & ~is_verb & (can_end | forms[after])
    is_verb[rest] = _behind_one(codes, at[rest], words, classes)
    rest = is_known & can_end & ~is_verb & joins[before]
    if rest.any():
        is_left = is_noun.copy()
        is_left[at[is_verb]] = False
        verb = at[rest] - 2
        verb -= joins[codes[verb]]  # ", and"
        verb -= (direction | determiner)[codes[verb]]  # "turns around, stops"
        of_verb = forms[codes[verb]] & _kinds_of_verbs(codes[verb], words, classes)[codes[verb], 1]
        of_verb &= (
            is_noun[verb - 1] | (joins | determiner | subject)[codes[verb - 1]]
        )  # no "green leaves and"
        for _ in range(_LONGEST_ROW):  # a verb that is found stands before the next one
            is_verb[rest] |= of_verb & ~is_left[verb]
            is_left[at[is_verb]] = False
    found: NDArray[np.int64] = at[is_verb]
    return found


def participles(
    codes: NDArray[np.int32], distinct: pl.Series, is_noun: NDArray[np.bool_], classes: Mapping[str, str]
) -> NDArray[np.int64]:
    """Return the positions in `codes` of nouns by the model that are participles before a noun.

    The arguments are those of `verbs`.
    """
    is_form = distinct.str.contains(_PARTICIPLE) & ~distinct.is_in(sorted(_NOUNS))
    at: NDArray[np.int64] = np.flatnonzero(is_noun & _places(is_form)[codes])
    at = at[(at > 0) & (at < len(codes) - 1)]
    is_participle = np.array([
        word in _PARTICIPLES or "NOUN" not in classes.get(word, "")
        for word in distinct.gather(codes[at] - 1).to_list()
    ], dtype=bool)  # fmt: skip
    sleeping, beds = _places(distinct == "sleeping"), _places(distinct.str.contains("^(?:bag|mat|pad)s?$"))
    is_participle &= ~(sleeping[codes[at]] & beds[codes[at + 1]])
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
