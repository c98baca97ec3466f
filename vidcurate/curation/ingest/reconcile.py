"""Reconciliation of rows with files: duplicates, missing files, ingest problems.

Works on the narrow columns (ids, paths, flags), which are in memory; captions never are. A row has one
`ingest_problem`, the first of PROBLEMS that applies; reconcile.json lists all of them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import stage_json
from vidcurate.curation.clip_table.reconciliation import Reconciliation
from vidcurate.curation.clip_table.schema import SAFE_KEY, sample_key, sample_keys
from vidcurate.curation.ingest.files import Listing, match, near_names, relative
from vidcurate.curation.ingest.rows import BETWEEN_BAD
from vidcurate.errors import TableError
from vidcurate.storage import atomic_file, regular_file

PROBLEMS = (
    "path_outside_root",
    "extra_file",
    "duplicate_id",
    "missing_file",
    "bad_value",
    "empty_caption",
)
KEYS = ("clip_id", "video_path", "is_empty", "bad", "note")  # columns that decide a row's problem
_OF_A_ROW = (("bad_value", "is_bad"), ("empty_caption", "is_empty"))  # problems that need no other row
MAX_LISTED = 10_000  # entries of a list in reconcile.json; the table has every row


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Reconciled rows: first `num_rows` from the metadata, in order, then the extra files by path.

    `frame` has row (from 1; null for an extra file), clip_id, sample_key, base_id (before a `#2`), file_path,
    written_path (as in the metadata), file_size_bytes, ingest_problem, and a flag per kind of finding.
    """

    frame: pl.DataFrame
    num_rows: int
    num_absolute_paths: int


def _identify(keys: pl.DataFrame, root: Path | None, extension: str) -> pl.DataFrame:
    """Add path, leaves and base_id to rows that have clip_id and video_path, either of which may be null."""
    written = pl.coalesce("video_path", pl.col("clip_id") + extension)
    keys = keys.with_row_index("row", offset=1).with_columns(written_path=written)
    where = relative(keys["written_path"], root)
    keys = keys.with_columns(where["path"], where["leaves"].fill_null(False))
    keys = keys.with_columns(base_id=pl.coalesce("clip_id", pl.col("path").str.strip_suffix(extension)))
    if not keys["base_id"].null_count():
        return keys
    nameless = pl.col("base_id").is_null()
    bad = pl.concat_str("bad", pl.lit(f"{BETWEEN_BAD}clip_id=")).str.strip_chars(BETWEEN_BAD)
    return keys.with_columns(
        base_id=pl.coalesce("base_id", pl.concat_str(pl.lit("row-"), pl.col("row").cast(pl.String))),
        bad=pl.when(nameless).then(bad).otherwise("bad"),
    )


def _are_again(ids: pl.Series) -> pl.Series:
    """Return which ids are equal to an earlier one. Numbers are compared first: a fifth of the time."""
    if ids.hash().n_unique() == len(ids):
        return pl.Series([False]).new_from_index(0, len(ids))
    return ~ids.is_first_distinct()


def _with_unique_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Add clip_id and is_duplicate: the second row of an id becomes `id#2`, the next `id#3`."""
    ids = frame["base_id"]
    is_duplicate = _are_again(ids)
    at = is_duplicate.arg_true()
    if not len(at):
        return frame.with_columns(clip_id="base_id", is_duplicate=is_duplicate)
    taken = set(ids.filter(ids.str.contains("#", literal=True)))
    turns: dict[str, int] = {}
    named = []
    for base in ids.gather(at):
        number = turns[base] = turns.get(base, 1) + 1
        while f"{base}#{number}" in taken:  # an id of the metadata looks like one of ours
            number += 1
        named.append(f"{base}#{number}")
        taken.add(named[-1])
    clip_ids = ids.clone().scatter(at, pl.Series(named, dtype=pl.String))
    return frame.with_columns(clip_ids.alias("clip_id"), is_duplicate=is_duplicate)


def safe_keys(ids: pl.Series) -> pl.Series:
    """Return the sample key of each id; null for null. An id that is a safe key is its own."""
    safe = ids.str.contains(SAFE_KEY)
    at = (~safe).arg_true()
    if not len(at):
        return ids
    hashed = pl.Series([sample_key(one) for one in ids.gather(at)], dtype=pl.String)
    return ids.clone().scatter(at, hashed)


def _with_keys(frame: pl.DataFrame) -> pl.DataFrame:
    """Add sample_key. Raises InputError when two ids would share one."""
    ids = frame["clip_id"]
    keys = safe_keys(ids)
    # Safe ids alone are as unlike as the ids.
    if keys is not ids and keys.n_unique() < frame.height:
        sample_keys(ids)  # names the two
    return frame.with_columns(keys.alias("sample_key"))


def reconcile(
    keys: pl.DataFrame,
    listing: Listing | None,
    extension: str,
    *,
    with_extra_files: bool,
    finds_by_name: bool,
) -> Ledger:
    """Return the verdict on each row, and a row for each video file that no row means.

    `keys` has clip_id, video_path (text or null), is_empty (no caption), bad and note (text, "" for none).
    Without a listing nothing is said about files. Raises InputError when two ids would share a sample key.
    """
    num_rows = keys.height
    frame = _identify(keys, listing.root if listing else None, extension)
    absolute = frame["written_path"].str.contains(r"^/").sum()
    nothing = {"file_size_bytes": pl.lit(None, dtype=pl.Int64), "is_missing": pl.lit(False)}
    if listing is None:
        frame = frame.with_columns(**nothing, by_name=pl.lit(False), is_ambiguous=pl.lit(False))
    else:
        found = match(frame.select("path", "leaves"), listing, finds_by_name=finds_by_name)
        frame = frame.with_columns(
            found["path"],
            found["leaves"],
            found["by_name"],
            found["is_ambiguous"],
            found["size_bytes"].alias("file_size_bytes"),
            is_missing=~(found["is_there"] | found["leaves"]),
        )
        if with_extra_files:
            extra = _extra_rows(frame, listing, extension)
            frame = pl.concat([_with_near_names(frame, extra), extra], how="diagonal")
    frame = frame.with_columns(is_extra=pl.col("row").is_null())
    frame = _with_keys(_with_unique_ids(frame))
    size = pl.when(~pl.col("leaves")).then("file_size_bytes")
    frame = frame.with_columns(file_size_bytes=size, is_bad=pl.col("bad") != "")
    problem = pl.coalesce(
        pl.when(pl.col("leaves") & ~pl.col("is_extra")).then(pl.lit("path_outside_root")),
        pl.when("is_extra").then(pl.lit("extra_file")),
        pl.when("is_duplicate").then(pl.lit("duplicate_id")),
        pl.when("is_missing").then(pl.lit("missing_file")),
        pl.when("is_bad").then(pl.lit("bad_value")),
        pl.when("is_empty").then(pl.lit("empty_caption")),
    )
    return Ledger(
        frame=frame.with_columns(ingest_problem=problem).rename({"path": "file_path"}),
        num_rows=num_rows,
        num_absolute_paths=int(absolute or 0),
    )


def evaluate_ids(ids: pl.Series, problems: pl.Series, bad: pl.DataFrame, *, are_safe: bool) -> Ledger:
    """Return the verdicts of a table that was read without files, from what each row alone says.

    `ids` as they are in the metadata, `problems` null, bad_value or empty_caption; `bad` has the columns bad
    and is_empty of each row with a bad value, in order. `are_safe`: the ids are known to differ, each its own
    sample key; else they are compared here. Raises InputError when two ids would share a sample key.
    """
    frame = pl.DataFrame({"base_id": ids, "problem": problems}).with_row_index("row", offset=1)
    is_bad, is_empty = (problems.eq_missing(word).rename(name) for word, name in _OF_A_ROW)
    at = is_bad.arg_true()
    frame = frame.with_columns(
        is_bad,
        is_empty.scatter(at, bad["is_empty"]),
        pl.Series("bad", [""]).new_from_index(0, len(ids)).scatter(at, bad["bad"]),
        *(pl.lit(value=False).alias(name) for name in ("leaves", "is_missing", "is_extra")),
        *(pl.lit(value=False).alias(name) for name in ("by_name", "is_ambiguous")),
        *(pl.lit(None, dtype=pl.String).alias(name) for name in ("file_path", "written_path")),
        note=pl.lit(""),
    )
    if are_safe:
        same = pl.col("base_id")
        frame = frame.with_columns(clip_id=same, sample_key=same, is_duplicate=pl.lit(value=False))
    else:
        frame = _with_keys(_with_unique_ids(frame))
    problem = pl.when("is_duplicate").then(pl.lit("duplicate_id")).otherwise("problem")
    return Ledger(
        frame=frame.with_columns(ingest_problem=problem).drop("problem"),
        num_rows=len(ids),
        num_absolute_paths=0,
    )


def _extra_rows(frame: pl.DataFrame, listing: Listing, extension: str) -> pl.DataFrame:
    extra = listing.files.filter("is_video").join(frame.select("path"), on="path", how="anti")
    return extra.sort("path").select(
        "path",
        "leaves",
        pl.col("path").alias("written_path"),
        pl.col("path").str.strip_suffix(extension).alias("base_id"),
        pl.col("size_bytes").alias("file_size_bytes"),
        pl.lit(False).alias("is_missing"),
        pl.lit(False).alias("is_empty"),
        pl.lit(False).alias("by_name"),
        pl.lit(False).alias("is_ambiguous"),
        pl.lit("").alias("bad"),
        pl.lit("").alias("note"),
    )


def _with_near_names(frame: pl.DataFrame, extra: pl.DataFrame) -> pl.DataFrame:
    """Add a note to each row whose file is missing while an extra file has nearly its name."""
    at = frame["is_missing"].arg_true()
    if not len(at) or extra.is_empty():
        return frame
    near = near_names(frame.select("path", "written_path")[at], extra["path"])
    notes = pl.DataFrame({"note": frame["note"].gather(at), "near": near})
    both = pl.concat_str(
        pl.when(pl.col("note") != "").then("note"), "near", separator=BETWEEN_BAD, ignore_nulls=True
    )
    return frame.with_columns(frame["note"].scatter(at, notes.select(both).to_series()))


def _entries(frame: pl.DataFrame, flag: pl.Expr, **columns: str) -> dict[str, Any]:
    """Return {count, listed} of the flagged rows; `columns` maps a key to a column."""
    at = frame.with_columns(flag.alias("is_listed"))["is_listed"].arg_true()
    listed = frame.select(pl.col(column).alias(key) for key, column in columns.items())[at.head(MAX_LISTED)]
    return {"count": len(at), "listed": listed.to_dicts()}


def _reported(frame: pl.DataFrame, column: str, *, split: bool) -> Iterator[dict[str, Any]]:
    for row, clip_id, cells in frame.select("row", "clip_id", column).iter_rows():
        for cell in cells.split(BETWEEN_BAD):
            if split:
                name, _, value = cell.partition("=")
                yield {"row": row, "clip_id": clip_id, "column": name, "value": value}
            else:
                yield {"row": row, "clip_id": clip_id, "what": cell}


def lists(ledger: Ledger) -> dict[str, Any]:
    """Return the findings as plain JSON values: a count and a list each, rows counted from 1."""
    frame = ledger.frame
    rows = frame.head(ledger.num_rows)
    row = {"row": "row", "clip_id": "clip_id", "path": "written_path"}
    bad, notes = rows.filter("is_bad"), rows.filter(pl.col("note") != "")
    again = rows.filter("is_duplicate")
    first = rows.select("base_id", "is_duplicate", first_row="row").filter(
        ~pl.col("is_duplicate") & pl.col("base_id").is_in(again["base_id"].implode())
    )
    again = again.join(first.drop("is_duplicate"), on="base_id", how="left", maintain_order="left")
    return {
        "missing_files": _entries(rows, pl.col("is_missing"), **row),
        "extra_files": _entries(frame, pl.col("is_extra"), clip_id="clip_id", path="file_path"),
        "duplicate_ids": _entries(
            again, pl.lit(True), row="row", clip_id="clip_id", id="base_id", first_row="first_row"
        ),
        "empty_captions": _entries(rows, pl.col("is_empty"), row="row", clip_id="clip_id"),
        "bad_values": {
            "count": bad.height,
            "listed": list(_reported(bad.head(MAX_LISTED), "bad", split=True)),
        },
        "paths_outside_root": _entries(rows, pl.col("leaves"), **row),
        "found_by_name": _entries(rows, pl.col("by_name"), **row, found="file_path"),
        "ambiguous_names": _entries(rows, pl.col("is_ambiguous"), **row),
        "disagreements": {
            "count": notes.height,
            "listed": list(_reported(notes.head(MAX_LISTED), "note", split=False)),
        },
    }


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write `report` as JSON, whole or not at all. Raises StorageError."""
    atomic_file.write_json(path, report)


def read_report(path: Path) -> dict[str, Any] | None:
    """Return the report at `path`, or None when there is none that can be read."""
    try:
        if stage_json.read(path, Reconciliation) is None:
            return None
    except TableError:
        return None
    report: dict[str, Any] = json.loads(regular_file.read_bytes(path))
    return report if {"problems", "own_columns", "captions"} <= report.keys() else None
