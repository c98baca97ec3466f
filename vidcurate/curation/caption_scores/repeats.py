"""How many rows share the caption? One text that stands thousands of times teaches nothing (LVD-2M issue 4:
one caption some 4,000 times).

Captions are compared by their letters and digits in lower case. The whole table is seen once before the first
row is measured; only a 64-bit hash of each caption is kept.
"""

import polars as pl

from vidcurate.curation.caption_scores.text_score import TextScore


def plain(captions: pl.Series) -> pl.Series:
    """Return the letters and digits of each caption in lower case, with one space for what lies between."""
    return captions.str.to_lowercase().str.replace_all(r"[^\p{L}\p{M}\p{N}]+", " ").str.strip_chars()


def score() -> TextScore:
    seen: list[pl.Series] = []
    counts: list[pl.DataFrame] = []

    def hashes(captions: pl.Series) -> pl.Series:
        # The hash is of this process alone: it never leaves it, and the counts do not depend on it.
        return plain(captions).hash().set(captions.is_null(), None).alias("hash")

    def see(captions: pl.Series) -> None:
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

    return TextScore(columns=("caption_repeats",), measure=measure, see=see)
