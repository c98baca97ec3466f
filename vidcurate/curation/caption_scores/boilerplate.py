"""Does the caption begin with words that say nothing of the clip? "The video shows", "In this scene,".

Captioning models write them by the million; Open-Sora strips the commonest (The video shows, captures,
features, depicts, presents; In the video,; The image …). Here they are named, so that a rule or a cleaning
step may act on them; the caption stays as it is.
"""

import polars as pl

from vidcurate.curation.caption_scores.text_score import TextScore

_WORK = r"(?:video|clip|footage|film|image|picture|photo|photograph|frame|scene|shot|sequence|animation)"
_SHOWS = (
    r"(?:shows?|showing|showcas(?:es?|ing)|captures?|capturing|features?|featuring|depicts?|depicting|presents?"
    r"|presenting|displays?|displaying|portrays?|portraying|illustrates?|describes?|opens with|begins with"
    r"|starts with|is about|is of|appears to be|consists of|contains)"
)
# The first match counts. Longer forms stand before those that they begin with.
PREFIX = (
    r"(?i)^\s*((?:in|throughout|at the (?:beginning|start) of) (?:the|this) (?:short )?(?:video )?"
    rf"{_WORK}(?: (?:we|you) (?:can )?see)?"
    rf"|(?:the|this) (?:short |brief )?(?:video )?{_WORK} {_SHOWS}"
    rf"|an? (?:short |brief )?(?:video )?{_WORK} (?:{_SHOWS}|of)"
    r"|(?:we|you) (?:can )?see|here is|there (?:is|are))\b"
).replace(" ", r"\s+")


def measure(captions: pl.Series) -> pl.DataFrame:
    """Return caption_boilerplate: the beginning that matched, in lower case; null where none does."""
    found = captions.str.extract(PREFIX, 1).str.to_lowercase().str.replace_all(r"\s+", " ")
    return found.alias("caption_boilerplate").to_frame()


def score() -> TextScore:
    return TextScore(columns=("caption_boilerplate",), measure=measure, settings={"boilerplate": PREFIX})
