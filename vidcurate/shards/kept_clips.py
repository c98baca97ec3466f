"""Kept clips: the rows of the clip table that go into shards.

A clip that probe never looked at may be cut, empty or no video: the build refuses such a clip unless the
caller allows them (`--unprobed`).
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table import schema, table
from vidcurate.curation.clip_table.video_files import paths_to_read
from vidcurate.errors import InputError, StageError, TableError
from vidcurate.storage import download


def read_clips(run: Path, stage: str) -> tuple[pl.DataFrame, int]:
    """Return the kept rows of `stage` with fold and level, and how many rows the table has.

    Without a split every clip is in fold train, level 0; without a filter every clip that passed ingest and
    probe counts as kept. A number that is not finite is null, as JSON has none. Raises StageError when no
    clip is kept, InputError when an id occurs twice, TableError for a key that is none.
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
    is_safe = clips["sample_key"].str.contains(schema.SAFE_KEY).fill_null(value=False)
    if not is_safe.all():
        raise TableError(
            f"{where}: the sample key {clips['sample_key'].filter(~is_safe)[0]!r} is none that ingest "
            "writes: the table was edited. Run `vidcurate ingest` again."
        )
    for name in ("clip_id", "sample_key"):
        twice = clips.filter(pl.col(name).is_duplicated())[name]
        if len(twice):
            raise InputError(
                f"{where}: {name} {twice.min()!r} occurs more than once; shards need unique ids."
            )
    return clips, rows_in


def _is_unprobed() -> pl.Expr:
    return pl.col("probe_status").fill_null("not_probed") == "not_probed"


def is_as_probed(run: Path, videos: Path) -> bool:
    """Return whether the files in `videos` are those that probe read: folder, names, sizes and times.

    True for a run without a table of probe, whose clips count as never probed.
    """
    path = table.stage_path(run, "probe")
    if not path.exists():
        return True
    inputs = table.provenance(path).inputs
    source = next((table.stage_path(run, name) for name in inputs if name in schema.STAGES), None)
    if source is None or "videos" not in inputs:
        return False
    paths = paths_to_read(pl.read_parquet(source, columns=["video_path", "ingest_problem"]))
    return download.digest(videos, paths) == inputs["videos"]


def integrity_levels(clips: pl.DataFrame, written: Sequence[str | None]) -> dict[str, int]:
    """Return how many written clips were checked up to which level of integrity; "none": never probed.

    `written`: for each row the level that the writer knows, None where it is the level of probe.
    """
    seen = pl.lit("none")
    if "probe_status" in clips.columns:
        level = pl.col("integrity_level") if "integrity_level" in clips.columns else pl.lit("header")
        seen = pl.when(_is_unprobed()).then(seen).otherwise(level.fill_null("header"))
    known = pl.lit(pl.Series(written, dtype=pl.String))
    counts = clips.group_by(pl.coalesce(known, seen).alias("level")).len().sort("level")
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
