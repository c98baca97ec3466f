"""Verbs of video captions by hand: actions, gestures, sounds, motion, camera and scene.

The treebank has few of them. `VERBS` are hardly ever nouns in captions; `VERBS_AND_NOUNS` are both.
`caption_verbs.txt` lists base forms: `word_classes.py` adds the third person and the form in -ing.
"""

from treebank import read_sections

_SECTIONS = read_sections("caption_verbs.txt")
VERBS = frozenset(" ".join(_SECTIONS["verbs"]).split())
VERBS_AND_NOUNS = frozenset(" ".join(_SECTIONS["verbs and nouns"]).split())
