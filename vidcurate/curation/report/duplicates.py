"""Duplicate clusters for the report: preferred clip, reason, and outcome per copy."""

from typing import Any

import polars as pl

CLUSTERS = 8
CLIPS = 5  # of a cluster, the preferred one among them

_READ = (
    "clip_id", "duplicate_cluster", "duplicate_rank", "duplicate_of", "duplicate_kind",
    "duplicate_distance", "duplicate_orientation", "duplicate_kept_because", "is_kept", "reject_rule",
)  # fmt: skip


def clusters(checked: pl.LazyFrame) -> dict[str, Any] | None:
    """Return the number of clusters and copies, and the largest clusters with their clips by preference.

    None when dedup has not run.
    """
    if "duplicate_cluster" not in checked.collect_schema():
        return None
    rows = checked.select(_READ).filter(pl.col("duplicate_cluster").is_not_null()).collect()
    sizes = (
        rows.group_by("duplicate_cluster").len().sort(["len", "duplicate_cluster"], descending=[True, False])
    )
    shown = []
    for name, size in sizes.head(CLUSTERS).iter_rows():
        clips = rows.filter(pl.col("duplicate_cluster") == name).sort("duplicate_rank").head(CLIPS)
        kept = rows.filter((pl.col("duplicate_cluster") == name) & pl.col("is_kept"))["clip_id"].to_list()
        shown.append(
            {
                "clips": [{**clip, "words": _as_text(clip)} for clip in clips.to_dicts()],
                "size": size,
                "more": size - len(clips),
                "kept": kept[0] if len(kept) == 1 else None,
                "kept_count": len(kept),
            }
        )
    return {
        "clusters": len(sizes),
        "copies": int(rows["duplicate_of"].is_not_null().sum()),
        "shown": shown,
    }


def _as_text(clip: dict[str, Any]) -> str:
    """Return why a clip is a duplicate, as text."""
    if clip["duplicate_of"] is None:
        return "preferred"
    turned = clip["duplicate_orientation"]
    how = {
        "exact": "the same bytes",
        "packets": "the same coded pictures",
        "perceptual": f"looks the same ({clip['duplicate_distance']:g} of 63 bits apart)",
        "caption": f"the same words (distance {clip['duplicate_distance']:.2f})",
        "semantic": f"means the same (distance {clip['duplicate_distance']:.3f})",
    }[clip["duplicate_kind"]]
    return how + (f", the other {turned}" if turned and turned != "same" else "")
