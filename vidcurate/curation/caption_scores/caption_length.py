"""How long is the caption? Words between white space, and Unicode characters.

A text in a script without spaces is one word: there the characters are the length.
"""

import polars as pl

from vidcurate.curation.caption_scores.text_score import TextScore


def measure(captions: pl.Series) -> pl.DataFrame:
    """Return caption_num_words and caption_num_characters, Int32; null for a null."""
    return (
        captions.alias("caption")
        .to_frame()
        .select(
            pl.col("caption").str.count_matches(r"\S+").cast(pl.Int32).alias("caption_num_words"),
            pl.col("caption").str.len_chars().cast(pl.Int32).alias("caption_num_characters"),
        )
    )


def score() -> TextScore:
    return TextScore(columns=("caption_num_words", "caption_num_characters"), measure=measure)
