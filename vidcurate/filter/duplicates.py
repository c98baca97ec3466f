"""The rule that keeps one of several copies: the best of those that passed every rule so far.

What `dedup` prefers may be too long, too large or of the wrong language; then the next best is kept, and no
content is lost because its best copy was rejected.
"""

import polars as pl

from vidcurate.filter.rules import Rule

COLUMNS = ("clip_id", "duplicate_cluster", "duplicate_rank")


def duplicate(passed: pl.DataFrame) -> Rule:
    """Find the best of each cluster among the rows that passed so far, and return the rule that it makes.

    Needs COLUMNS. A clip fails when its cluster has a best and that is another one.
    """
    best = (
        passed.filter(pl.col("duplicate_cluster").is_not_null())
        .sort("duplicate_rank")
        .group_by("duplicate_cluster", maintain_order=True)
        .agg(pl.col("clip_id").first())
    )
    kept = pl.col("duplicate_cluster").replace_strict(
        best["duplicate_cluster"], best["clip_id"], default=None, return_dtype=pl.String
    )
    return Rule(
        stage="dedup",
        measure="duplicate_cluster",
        name=pl.lit("duplicate"),
        fails=kept.is_not_null() & (pl.col("clip_id") != kept),
        value=pl.format("copy of {}", kept),
        threshold=pl.lit("the best of its copies"),
    )
