"""Rejection ledger of a run: every rule that a clip fails, in replayable form.

`RUN/ledger.parquet` has one row per clip and failed rule: clip_id, order (the rule's), stage, rule, measure
(the measured quantity), value, threshold, is_verdict (true for the first rule that the clip fails), settings
(digest of the stage's settings) and version. The verdict follows from value and threshold alone: a replay
needs no video and no other table.

    threshold                   a clip is rejected when its value
    >= a, <= b, >= a and <= b   is outside the range
    one of ["en"], none of […]  is not, or is, in the list
    ok or truncated             (the rule names a status) is none of these
    any other text              differs from this text
    any of them                 is `unknown`

`build-shards` adds a verdict for each kept clip that the last build could not write; the clip's row in the
table stays kept, because the table is the build's input.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate import __version__
from vidcurate.curation.clip_table import table
from vidcurate.errors import FailureLimitError, StageError, TableError

LEDGER = "ledger.parquet"
UNKNOWN = "unknown"
BUILD = "build-shards"
_WRITTEN = "written to a shard"
ORDER = (
    "clip_id", "order", "stage", "rule", "measure", "value", "threshold", "is_verdict", "settings", "version",
)  # fmt: skip

_SCHEMA = dict.fromkeys(ORDER, pl.String) | {"order": pl.Int32, "is_verdict": pl.Boolean}

_NUMBER = r"(-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf))"


def digest_of(settings: str) -> str:
    """Return the digest by which a ledger names a stage's settings (JSON text)."""
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def signed(entries: pl.DataFrame, settings: str) -> pl.DataFrame:
    """Add settings digest and version to entries (clip_id, order, stage, rule, measure, value, …)."""
    return entries.with_columns(
        pl.lit(digest_of(settings)).alias("settings"), pl.lit(__version__).alias("version")
    )


def replay_ledger(entries: pl.DataFrame) -> pl.Series:
    """Return, for each entry of a ledger, whether its value fails its threshold (Boolean).

    Needs the columns rule, value and threshold. Every row of a correct ledger gives true.
    """
    threshold, value = pl.col("threshold"), pl.col("value")
    number = value.cast(pl.Float64, strict=False)
    low = threshold.str.extract(rf"^>= {_NUMBER}", 1).cast(pl.Float64)
    high = threshold.str.extract(rf"<= {_NUMBER}$", 1).cast(pl.Float64)
    is_range = threshold.str.contains(rf"^(?:>= {_NUMBER})?(?: and )?(?:<= {_NUMBER})?$") & (threshold != "")
    beyond = (number < low).fill_null(value=False) | (number > high).fill_null(value=False)
    states = threshold.str.split(" or ")
    is_status = states.list.first() == "ok"
    plain = entries.select(
        pl.when(value == UNKNOWN)
        .then(pl.lit(value=True))
        .when(is_range)
        .then(beyond)
        .when(is_status)
        .then(~states.list.contains(pl.col("rule")))
        .otherwise(value != threshold)
        .alias("fails"),
        threshold.str.contains(r"^(?:one|none) of \[").alias("is_words"),
    )
    fails = plain["fails"]
    if not plain["is_words"].any():
        return fails
    at = plain["is_words"].arg_true()
    checked = [
        found == UNKNOWN or ((found in json.loads(asked.partition(" of ")[2])) == asked.startswith("none"))
        for found, asked in entries.select("value", "threshold")[at].iter_rows()
    ]
    return fails.scatter(at, pl.Series(checked, dtype=pl.Boolean))


def read_ledger(run: Path) -> pl.LazyFrame:
    """Return RUN/ledger.parquet, lazily.

    Raises StageError when no filter has been run, or when one was killed between the ledger and its table,
    TableError for a damaged file.
    """
    path = run / LEDGER
    if not path.exists():
        raise StageError(f"{path}: no ledger. Run `vidcurate filter {run}` first.")
    origin = table.provenance(path)
    if origin.stage == "filter" and not table.is_up_to_date(table.stage_path(run, "filter"), origin):
        raise StageError(
            f"{path}: is not of the command that wrote filter.parquet. Run `vidcurate filter {run}` again."
        )
    return pl.scan_parquet(path)


def unwritten(run: Path) -> pl.DataFrame:
    """Return the clips that the last build of shards could not write: clip_id, rule, value, threshold."""
    columns = ("clip_id", "rule", "value", "threshold")
    if not (run / LEDGER).exists():
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    return read_ledger(run).filter(pl.col("stage") == BUILD).select(columns).collect()


def record_unwritten(run: Path, failed: Sequence[Mapping[str, Any]], settings: str) -> None:
    """Replace the ledger's rows of stage `build-shards` by one for each of `failed` (clip_id, kind, reason).

    Rewrites RUN/ledger.parquet only when they change; `settings` is the build's specification as JSON text.
    Raises StorageError.
    """
    path = run / LEDGER
    rows = [(clip["clip_id"], clip["kind"], clip["reason"], _WRITTEN) for clip in failed]
    if unwritten(run).rows() == rows:
        return
    earlier = pl.DataFrame(schema=_SCHEMA)
    origin = table.Provenance(stage=BUILD, settings={}, inputs={})
    if path.exists():
        earlier = read_ledger(run).filter(pl.col("stage") != BUILD).select(ORDER).collect()
        origin = table.provenance(path)
    last = earlier["order"].max()
    found = pl.DataFrame(rows, schema=["clip_id", "rule", "value", "threshold"], orient="row").select(
        pl.col("clip_id").cast(pl.String),
        pl.lit(last + 1 if isinstance(last, int) else 0, dtype=pl.Int32).alias("order"),
        pl.lit(BUILD).alias("stage"),
        pl.col("rule").cast(pl.String),
        pl.lit("file").alias("measure"),
        pl.col("value", "threshold").cast(pl.String),
        pl.lit(value=True).alias("is_verdict"),
    )
    table.write(pl.concat([earlier, signed(found, settings).select(ORDER)]), path, origin)


def rejected(run: Path) -> pl.LazyFrame:
    """Return one row for each rejected clip, in the table's order: its verdict and other rules that fail.

    Columns: source_dataset, source_id, video_path where the table has them, those of the ledger but order
    and is_verdict, and `also` (the other rules, in order, joined by a comma; null for none). Raises
    StageError.
    """
    entries = read_ledger(run)
    clips = table.scan(run, table.newest_stage(run))
    named = [name for name in ("source_dataset", "source_id", "video_path") if name in clips.collect_schema()]
    also = (
        entries.filter(~pl.col("is_verdict"))
        .sort("order", maintain_order=True)
        .group_by("clip_id", maintain_order=True)
        .agg(pl.col("rule").str.join(",").alias("also"))
    )
    verdicts = entries.filter("is_verdict").drop("order", "is_verdict")
    return (
        clips.select("clip_id", *named)
        .join(verdicts, on="clip_id", how="inner", maintain_order="left")
        .join(also, on="clip_id", how="left", maintain_order="left")
    )


def overview(run: Path) -> dict[str, Any]:
    """Count, per rule, the clips that it rejected and those that fail it, as plain values.

    Raises StageError.
    """
    entries = read_ledger(run)
    rules = (
        entries.group_by("stage", "rule", "measure")
        .agg(
            pl.col("is_verdict").sum().alias("rejected"),
            pl.len().alias("failing"),
            pl.col("order").min(),
            pl.col("threshold").min(),
        )
        .sort("order", "rule")
        .drop("order")
        .collect()
    )
    by_stage: dict[str, int] = {}
    for stage, count in rules.select("stage", "rejected").iter_rows():
        by_stage[stage] = by_stage.get(stage, 0) + count
    return {
        "rows_rejected": sum(by_stage.values()),
        "by_stage": by_stage,
        "settings": dict(entries.group_by("settings").len().sort("settings").collect().iter_rows()),
        "rules": rules.to_dicts(),
    }


def check_ledger(run: Path) -> dict[str, int]:
    """Replay every entry of the ledger, compare the verdicts with the table, and return counts.

    Raises TableError when an entry does not follow from its value and threshold, when a rejected clip does
    not have exactly one verdict, or when a kept clip has one that is not of `build-shards`; StageError.
    """
    entries = read_ledger(run).collect()
    newest = table.newest_stage(run)
    scanned = table.scan(run, newest)
    has_verdicts = "is_kept" in scanned.collect_schema()  # without a filter only `build-shards` rejects
    kept = pl.col("is_kept") if has_verdicts else pl.lit(value=True).alias("is_kept")
    checked = scanned.select("clip_id", kept).collect()
    wrong = entries.filter(~replay_ledger(entries))
    if len(wrong):
        clip_id, rule, value, threshold = wrong.select("clip_id", "rule", "value", "threshold").row(0)
        many = f"{len(wrong):,} entries do not follow from their values"
        which = "1 entry does not follow from its value" if len(wrong) == 1 else many
        raise TableError(
            f"{run / LEDGER}: {which}; the first is {clip_id}: {rule}, {value} against "
            f"{threshold}. Run `vidcurate filter {run}` again."
        )
    reported = entries.filter("is_verdict")["clip_id"]
    is_rejected = ~pl.col("is_kept") | pl.col("clip_id").is_in(unwritten(run)["clip_id"].implode())
    rejected_ids = checked.filter(is_rejected)["clip_id"]
    if reported.n_unique() != len(reported) or not reported.sort().equals(
        rejected_ids.sort(), check_names=False
    ):
        odd = sorted({*reported} ^ {*rejected_ids} or set(reported.filter(reported.is_duplicated())))
        raise TableError(
            f"{run / LEDGER}: verdicts differ from {newest}.parquet, first at {odd[0]}. "
            f"Run `vidcurate {table.command_of(newest)} {run}` again."
        )
    return {"rows_in": len(checked), "rows_rejected": len(reported), "entries_replayed": len(entries)}


def check_share(count: int, total: int, limit: float | None, *, what: str, key: str, see: str) -> None:
    """Raise FailureLimitError when `count` of `total` is a larger share than `limit` (None: no limit).

    `what` is the verb phrase of the message, `key` the setting, `see` says where the rows are listed.
    """
    if limit is not None and total and count / total > limit:
        raise FailureLimitError(
            f"{count:,} of {total:,} rows ({100 * count / total:.3g} %) {what}; {key} allows "
            f"{100 * limit:.3g} %. {see}"
        )
