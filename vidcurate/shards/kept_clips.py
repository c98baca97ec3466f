"""Kept clips: the rows of the clip table that go into shards.

A clip that probe never looked at may be cut, empty or no video: the build refuses such a clip unless the
caller allows them (`--unprobed`).
"""

from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table import schema, table
from vidcurate.errors import InputError, StageError


def read_clips(run: Path, stage: str) -> tuple[pl.DataFrame, int]:
    """Return the kept rows of `stage` with fold and level, and how many rows the table has.

    Without a split every clip is in fold train, level 0; without a filter every clip that passed ingest and
    probe counts as kept. A number that is not finite is null, as JSON has none. Raises StageError when no
    clip is kept, InputError when an id occurs twice.
    """
    lazy = table.scan(run, stage)
    names = lazy.collect_schema().names()
    conditions = [pl.col("is_kept")] if "is_kept" in names else []
    if not conditions and "ingest_problem" in names:
        conditions.append(pl.col("ingest_problem").is_null())
    if "is_kept" not in names and "probe_status" in names:
        conditions.append(pl.col("probe_status") == "ok")
    if "fold" in names:
        conditions.append(pl.col("fold").is_not_null())
    else:
        lazy = lazy.with_columns(fold=pl.lit("train"), level=pl.lit(0, dtype=pl.Int32))
    rows_in = int(lazy.select(pl.len()).collect().item())
    numbers = pl.col(pl.Float32, pl.Float64)
    clips = (
        lazy.filter(*conditions)
        .with_columns(
            pl.col("level").fill_null(0),
            pl.when(numbers.is_finite()).then(numbers).name.keep(),
            pl.col(pl.List(pl.Float64)).list.eval(pl.when(pl.element().is_finite()).then(pl.element())),
        )
        .collect()
    )
    where = table.stage_path(run, stage)
    if clips.height == 0:
        raise StageError(f"{where}: none of its {rows_in} clips is kept, so there is nothing to write.")
    if "sample_key" not in names:
        clips = clips.with_columns(sample_key=pl.Series(schema.sample_keys(clips["clip_id"])))
    for name in ("clip_id", "sample_key"):
        twice = clips.filter(pl.col(name).is_duplicated())[name]
        if len(twice):
            raise InputError(
                f"{where}: {name} {twice.min()!r} occurs more than once; shards need unique ids."
            )
    return clips, rows_in


def _is_unprobed() -> pl.Expr:
    return pl.col("probe_status").fill_null("not_probed") == "not_probed"


def integrity_levels(clips: pl.DataFrame, is_encoded: list[bool]) -> dict[str, int]:
    """Return how many written clips were checked up to which level of integrity; "none": never probed.

    `is_encoded`: whether the build encoded the clip of each row anew. Such a clip is another file than the
    one that probe decoded: its level is "index", as the writer has read all its packets and decoded none.
    Copied packets keep the level of their source.
    """
    seen = pl.lit("none")
    if "probe_status" in clips.columns:
        level = pl.col("integrity_level") if "integrity_level" in clips.columns else pl.lit("header")
        seen = pl.when(_is_unprobed()).then(seen).otherwise(level.fill_null("header"))
    seen = pl.when(pl.Series(is_encoded, dtype=pl.Boolean)).then(pl.lit("index")).otherwise(seen)
    counts = clips.group_by(seen.alias("level")).len().sort("level")
    return {str(name): int(count) for name, count in counts.iter_rows()}


def check_probed(clips: pl.DataFrame, where: Path) -> None:
    """Raise StageError where a kept clip was never probed: it may be empty, cut, or no video at all."""
    unprobed = clips if "probe_status" not in clips.columns else clips.filter(_is_unprobed())
    if unprobed.height:
        raise StageError(
            f"{where}: {unprobed.height} of {clips.height} kept clips were never probed (first: "
            f"{unprobed['clip_id'][0]!r}): they may be cut, empty or no videos. Run `vidcurate probe` and "
            "filter again, or build with --unprobed."
        )
