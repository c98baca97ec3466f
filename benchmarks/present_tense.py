"""Sentences of a treebank in the present tense of captions: "I drank coffee" to "he drinks coffee".

Video captions are full of third-person verbs ("opens the door, sits down and drinks coffee"), and letters,
reviews and news have few of them: the noun model took every third one for a plural noun. The rewriting keeps
the gold parts of speech and changes forms alone. Finite verbs in the past or present tense and imperatives
get the third person; the subjects "I", "you", "we" and "they" become "he" or "she", a plural noun becomes
singular.
"""

from collections.abc import Iterator

_FORM, _LEMMA, _PART, _TAG, _HEAD, _RELATION, _MISC = 1, 2, 3, 4, 6, 7, 9
_IRREGULAR = {"be": "is", "have": "has", "do": "does"}
_THIRD = ("he", "she")
_FOLLOWERS = {
    "my": ("his", "her"), "our": ("his", "her"), "your": ("his", "her"), "their": ("his", "her"),
    "myself": ("himself", "herself"), "yourself": ("himself", "herself"),
    "ourselves": ("himself", "herself"), "themselves": ("himself", "herself"),
}  # fmt: skip


def third_person(lemma: str) -> str:
    """Return the third person singular of a verb, which is spelled as a noun's plural is."""
    if lemma in _IRREGULAR:
        return _IRREGULAR[lemma]
    if lemma.endswith("y") and lemma[-2:-1] not in ("a", "e", "i", "o", "u"):
        return lemma[:-1] + "ies"
    return lemma + ("es" if lemma.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")


def _spelled(form: str, like: str) -> str:
    return form.upper() if like.isupper() and len(like) > 1 else form.title() if like.istitle() else form


def _subjects(words: list[list[str]], verb: int) -> list[int]:
    """Return the places of the subjects of the verb, or of the verb that it stands beside."""
    while True:
        number = words[verb][0]
        head = words[verb][_HEAD] if words[verb][_RELATION] in ("aux", "aux:pass", "cop") else number
        found = [
            at
            for at, word in enumerate(words)
            if word[_HEAD] == head and word[_RELATION] in ("nsubj", "nsubj:pass")
        ]
        above = next((at for at, word in enumerate(words) if word[0] == words[verb][_HEAD]), None)
        if found or words[verb][_RELATION] != "conj" or above is None:
            return found
        verb = above


def _rewrite(words: list[list[str]], fused: set[str], gender: int) -> bool:
    """Put the verbs of a sentence into the third person, in place. Returns whether a verb has changed."""
    changed = False
    for at, word in enumerate(words):
        lemma = word[_LEMMA].lower()
        is_imperative = word[_TAG] == "VB" and "Mood=Imp" in word[5]
        if not (word[_TAG] in ("VBD", "VBP", "VBZ") or is_imperative) or word[0] in fused:
            continue
        if not lemma.isalpha() or word[_PART] not in ("VERB", "AUX"):
            continue
        subjects = _subjects(words, at)
        is_plural = False
        for place in subjects:
            subject = words[place]
            if subject[0] in fused:
                is_plural = True
            elif subject[_TAG] == "PRP" and subject[_FORM].lower() in ("i", "you", "we", "they"):
                subject[_FORM] = _spelled(_THIRD[gender], subject[_FORM] if place == 0 else "x")
            elif subject[_TAG] == "NNS" and subject[_LEMMA].isalpha():
                counted = any(
                    other[_HEAD] == subject[0]
                    and (other[_RELATION] in ("nummod", "conj") or other[_FORM].lower() in ("these", "those"))
                    for other in words
                )
                if counted:
                    is_plural = True
                else:
                    subject[_FORM] = _spelled(subject[_LEMMA].lower(), subject[_FORM])
        form = (lemma if lemma != "be" else "are") if is_plural else third_person(lemma)
        changed |= word[_FORM].lower() != form
        word[_FORM] = _spelled(form, word[_FORM])
    for word in words:
        if changed and word[0] not in fused and word[_FORM].lower() in _FOLLOWERS:
            word[_FORM] = _spelled(_FOLLOWERS[word[_FORM].lower()][gender], word[_FORM])
    return changed


def in_present_tense(lines: list[str]) -> Iterator[str]:
    """Yield the lines of the CoNLL-U sentences that have another form in the present tense of captions."""
    rows: list[list[str]] = []
    number = 0
    for line in lines:
        if line and not line.startswith("#"):
            rows.append(line.split("\t"))
        elif not line and rows:
            words = [row for row in rows if row[0].isdigit()]
            fused = {
                str(part)
                for row in rows
                if "-" in row[0]
                for part in range(int(row[0].split("-")[0]), int(row[0].split("-")[1]) + 1)
            }
            number += 1
            if _rewrite(words, fused, number % 2):
                text = "".join(
                    row[_FORM] + ("" if "SpaceAfter=No" in row[_MISC] else " ")
                    for row in rows
                    if "-" in row[0] or (row[0].isdigit() and row[0] not in fused)
                )
                yield "# text = " + text.rstrip()
                yield from ("\t".join(row) for row in rows)
                yield ""
            rows = []
