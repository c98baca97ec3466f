"""Text scores: caption length, boilerplate openings and repeated captions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

_WORK = r"(?:video|clip|footage|film|image|picture|photo|photograph|frame|scene|shot|sequence|animation)"
_SHOWS = (
    r"(?:shows?|showing|showcas(?:es?|ing)|captures?|capturing|features?|featuring|depicts?|depicting|presents?"
    r"|presenting|displays?|displaying|portrays?|portraying|illustrates?|describes?|opens with|begins with"
    r"|starts with|is about|is of|appears to be|consists of|contains)"
)
# The first match counts: longer forms precede their own prefixes.
PREFIX = (
    r"(?i)^\s*((?:in|throughout|at the (?:beginning|start) of) (?:the|this) (?:short )?(?:video )?"
    rf"{_WORK}(?: (?:we|you) (?:can )?see)?"
    rf"|(?:the|this) (?:short |brief )?(?:video )?{_WORK} {_SHOWS}"
    rf"|an? (?:short |brief )?(?:video )?{_WORK} (?:{_SHOWS}|of)"
    r"|(?:we|you) (?:can )?see|here is|there (?:is|are))\b"
).replace(" ", r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """Score of captions: one or more table columns computed from captions alone.

    `measure` takes the captions of some rows (String, null for a missing caption) and returns their columns
    in row order; a row's result does not depend on other rows. `first_pass`, if set, receives the captions of
    the whole table, slice by slice, before `measure` runs. `settings` determine the values, as plain JSON:
    when they change, the stage scores the table again. The stage copies `facts` into its summary. `check`
    receives the table before scoring and raises when this score cannot be added to it.
    """

    columns: tuple[str, ...]
    measure: Callable[[pl.Series], pl.DataFrame]
    first_pass: Callable[[pl.Series], None] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[pl.LazyFrame, str], None] | None = None


def length(captions: pl.Series) -> pl.DataFrame:
    """Return caption_num_words (split at white space) and caption_num_characters, Int32; null for null.

    A text in a script without spaces counts as one word: use its number of characters.
    """
    return (
        captions.alias("caption")
        .to_frame()
        .select(
            pl.col("caption").str.count_matches(r"\S+").cast(pl.Int32).alias("caption_num_words"),
            pl.col("caption").str.len_chars().cast(pl.Int32).alias("caption_num_characters"),
        )
    )


def length_score() -> TextScore:
    return TextScore(columns=("caption_num_words", "caption_num_characters"), measure=length)


def boilerplate(captions: pl.Series) -> pl.DataFrame:
    """Return caption_boilerplate: the matched opening in lower case, null without a match.

    Captioning models often begin with "The video shows" or "In this scene,". Open-Sora strips the commonest
    (The video shows, captures, features, depicts, presents; In the video,; The image …). This column only
    names them, for a rule or a cleaning step; the caption is unchanged.
    """
    found = captions.str.extract(PREFIX, 1).str.to_lowercase().str.replace_all(r"\s+", " ")
    return found.alias("caption_boilerplate").to_frame()


def boilerplate_score() -> TextScore:
    return TextScore(columns=("caption_boilerplate",), measure=boilerplate, settings={"boilerplate": PREFIX})


def normalised(captions: pl.Series) -> pl.Series:
    """Return the letters and digits of each caption in lower case, other runs as one space."""
    return captions.str.to_lowercase().str.replace_all(r"[^\p{L}\p{M}\p{N}]+", " ").str.strip_chars()


def repeats_score() -> TextScore:
    """Return the score of caption_repeats: the number of rows with the same letters and digits.

    One text on thousands of rows teaches nothing (LVD-2M issue 4: one caption some 4,000 times). The first
    pass keeps a 64-bit hash of each caption.
    """
    seen: list[pl.Series] = []
    counts: list[pl.DataFrame] = []

    def hashes(captions: pl.Series) -> pl.Series:
        # polars seeds this hash per process; only the counts leave the process.
        return normalised(captions).hash().set(captions.is_null(), None).alias("hash")

    def first_pass(captions: pl.Series) -> None:
        seen.append(hashes(captions).drop_nulls())

    def measure(captions: pl.Series) -> pl.DataFrame:
        if not counts:
            every = pl.concat(seen) if seen else pl.Series("hash", [], dtype=pl.UInt64)
            counts.append(
                every.to_frame().group_by("hash").agg(pl.len().cast(pl.Int32).alias("caption_repeats"))
            )
            seen.clear()
        here = hashes(captions).to_frame()
        return here.join(counts[0], on="hash", how="left", maintain_order="left").select("caption_repeats")

    return TextScore(columns=("caption_repeats",), measure=measure, first_pass=first_pass)
