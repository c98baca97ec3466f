"""Classes of words for the noun model: what a word is in the treebank, or what its stem may be.

A plural noun and a verb in the third person look alike ("drinks"), and the treebank has most of either form
never: their class comes from the stem, and from the verbs of captions (`caption_verbs`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

import polars as pl
from caption_verbs import VERBS, VERBS_AND_NOUNS
from present_tense import third_person
from treebank import NOUNS, Text

_VOWELS = "aeiou"
_USES_OF_CAPTION_VERBS = 3  # added for each part of speech that the list gives a verb
_LEAST_USES = 3  # of a word with a class
_LEAST_USES_OF_STEM = 2
_SHARE = 0.1  # of a word's uses that a part of speech needs


def lemma_uses(lines: Iterable[str]) -> dict[str, Counter[str]]:
    """Return lemma -> its uses as NOUN and as VERB in CoNLL-U lines, the verbs of captions added."""
    uses: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        if line[:1].isdigit():
            lemma, part = line.split("\t")[2:4]
            if part in ("NOUN", "VERB") and lemma.isalpha() and lemma.islower():
                uses[lemma][part] += 1
    for lemma in VERBS:
        uses[lemma]["VERB"] += _USES_OF_CAPTION_VERBS
    for lemma in VERBS_AND_NOUNS:
        uses[lemma].update({"NOUN": _USES_OF_CAPTION_VERBS, "VERB": _USES_OF_CAPTION_VERBS})
    return uses


def participles(verb: str) -> list[str]:
    """Return the possible forms of a verb in -ing, the likeliest first."""
    if verb.endswith("ie"):
        return [verb[:-2] + "ying"]
    if verb.endswith("e") and not verb.endswith(("ee", "ye", "oe")):
        return [verb[:-1] + "ing"]
    doubles = (
        len(verb) >= 3
        and verb[-1] not in _VOWELS + "wxy"
        and verb[-2] in _VOWELS
        and verb[-3] not in _VOWELS
        and sum(letter in _VOWELS for letter in verb) == 1
    )
    both = [verb + verb[-1] + "ing", verb + "ing"]
    return both if doubles else both[::-1]


def _plurals(noun: str) -> list[str]:
    irregular = noun.endswith(("lf", "af", "fe", "oof", "arf", "ief"))
    return [third_person(noun), *([noun.removesuffix("e").removesuffix("f") + "ves"] if irregular else [])]


def _shares(parts: Counter[str]) -> set[str]:
    return {part for part, uses in parts.items() if uses >= _SHARE * parts.total()}


def word_classes(texts: list[Text], lemmas: dict[str, Counter[str]]) -> pl.DataFrame:
    """Return word, class: what a word is in `texts` and as a form of `lemmas` (`lemma_uses`).

    A frequent function word is a class of its own ("=the"). A form in -s of a noun or verb has the parts of
    speech of its stem ("NOUN/VERB+s"), a verb's form in -ing VERB ("NOUN/VERB+ing" where it is a noun too).
    Any other word seen three times or more has those that make up a tenth of its uses ("NOUN/VERB").
    """
    uses: dict[str, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for start, stop, part in text.tokens:
            uses[text.text[start:stop].lower()][part] += 1
    in_s: dict[str, set[str]] = defaultdict(set)
    in_ing = set()
    for lemma, parts in lemmas.items():
        if parts.total() < _LEAST_USES_OF_STEM:
            continue
        for form in _plurals(lemma) if parts["NOUN"] else [third_person(lemma)]:
            in_s[form] |= _shares(parts)
        if parts["VERB"] and len(lemma) > 2:
            forms = participles(lemma)
            in_ing.update(forms[:1], (form for form in forms if form in uses))
    classes = {}
    for word in sorted({*uses, *in_s, *in_ing}):
        parts = uses.get(word, Counter())
        main = max(sorted(parts), key=parts.__getitem__) if parts else ""
        own = _shares(parts) if parts.total() >= _LEAST_USES else set()
        if parts.total() >= 20 and main not in (*NOUNS, "ADJ", "VERB", "ADV", "NUM"):
            classes[word] = f"={word}"
        elif word in in_s:
            classes[word] = "/".join(sorted(own | in_s[word])) + "+s"
        elif word in in_ing:
            classes[word] = "/".join(sorted(own | {"VERB"})) + "+ing"
        elif own:
            classes[word] = "/".join(sorted(own))
    return pl.DataFrame({"word": list(classes), "class": list(classes.values())})
