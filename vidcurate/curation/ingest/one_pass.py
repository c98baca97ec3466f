"""Table of a metadata file without files, in one pass over the metadata.

Without a listing a row's verdict depends on other rows by one thing only: whether its id was there before. So
the pass writes the table as if no id were there twice (the draft), and hashes the ids on the way. Only where
two hashes are equal, the ids are compared afterwards. Where one is there twice, the table is written again
from the draft, with other verdicts. A row that the pass cannot decide is marked, and the metadata is then
read in two passes (`two_passes`).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.own_columns import words_of
from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.files import relative
from vidcurate.curation.ingest.reconcile import Ledger, evaluate_ids, safe_keys
from vidcurate.curation.ingest.rows import CELLS, Rows, Typed, typed
from vidcurate.curation.ingest.source import no_rows
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.table_columns import columns_of, dataset_of, with_best_known, with_columns
from vidcurate.storage import atomic_file

_ROWS_TRIED = 100  # lists of captions and paths out of the root mostly begin with the first row
_UNDECIDED = "unjudged"  # in place of a problem: the row needs more than itself
_NAMED = pl.Struct(
    {"clip_id": pl.String, "sample_key": pl.String, "video_path": pl.String, "leaves": pl.Boolean}
)


def write_table(
    rows: Rows,
    schema: str,
    spec: IngestSpec,
    target: Path,
    scratch: Path,
    origin: Callable[[], table.Provenance],
) -> Ledger | None:
    """Write the ingest table to `target` and return its ledger; None, and no table, if two passes are needed.

    `origin` is asked for when all rows have been read. `scratch` is a folder of the same file system. Raises
    InputError for a table without rows and for two ids that would share a sample key, StorageError.
    """
    there = rows.frame.collect_schema()
    if not captions.is_plain(there, captions.main_column(rows.labels)) or "note" in there:
        return None
    read = typed(rows)
    seen = _Seen()
    dataset = dataset_of(schema, spec)
    first = _draft(rows, read, dataset, spec, _Seen()).head(_ROWS_TRIED).select("ingest_problem").collect()
    if (first["ingest_problem"] == _UNDECIDED).any():
        return None
    drafted = _draft(rows, read, dataset, spec, seen)
    words = {cell.name: words_of(cell.source) for cell in rows.own}
    left = scratch / "draft.parquet"
    with (
        atomic_file.storage_errors(target),
        atomic_file.atomic_path(target) as file,
        ThreadPoolExecutor(max_workers=1) as beside,
    ):
        table.sink(drafted, file, origin, words)
        flushed = beside.submit(atomic_file.flush, file)
        keys = pl.read_parquet(file, columns=["clip_id", "ingest_problem"])
        if keys.is_empty():
            raise no_rows(spec.metadata)
        problems = keys["ingest_problem"]
        if (problems == _UNDECIDED).any():
            flushed.result()
            file.unlink()
            return None
        bad = _bad_rows(rows, read, problems)
        ledger = evaluate_ids(keys["clip_id"], problems, bad, are_safe=seen.are_safe(len(keys)))
        flushed.result()
        if ledger.frame["is_duplicate"].any():
            file.replace(left)
    if left.exists():
        whole = pl.scan_parquet(left)
        verdict = ledger.frame.select("clip_id", "sample_key", "ingest_problem")
        names = whole.collect_schema().names()
        parts = [whole.drop(verdict.columns), verdict.lazy()]
        table.write(pl.concat(parts, how="horizontal").select(names), target, origin(), words=words)
    return ledger


class _Seen:
    """Hashes of the ids of a pass, in any order, and whether each id is its own sample key."""

    def __init__(self) -> None:
        self._hashes: list[pl.Series] = []
        self._has_other_keys = False

    def add(self, ids: pl.Series, keys: pl.Series) -> None:
        """Add the ids of some rows and their sample keys; the same series where they are the same."""
        self._hashes.append(ids.hash())
        self._has_other_keys |= keys is not ids

    def are_safe(self, num_rows: int) -> bool:
        """Return whether the ids of `num_rows` were seen once each, all unlike, each its own sample key."""
        hashes = pl.concat(self._hashes) if self._hashes else pl.Series(dtype=pl.UInt64)
        return not self._has_other_keys and len(hashes) == num_rows == hashes.n_unique()


def _draft(rows: Rows, read: Typed, dataset: str, spec: IngestSpec, seen: _Seen) -> pl.LazyFrame:
    """Return the table as each row alone tells it; ingest_problem is `unjudged` where that is not enough."""
    there = rows.frame.collect_schema()
    present = [name for name in CELLS if name in there]
    frame = read.frame.select(
        **{name: read.cells[name] for name in present},
        **{cell.part: cell.value for cell in rows.own},
        is_bad=read.is_bad,
        is_empty=captions.is_empty(there),
        is_several=captions.may_be_several(there, captions.main_column(rows.labels)),
    )
    nothing = pl.lit(None, dtype=pl.String)
    given, path = (pl.col(name) if name in there else nothing for name in ("clip_id", "video_path"))
    names = pl.struct(given.alias("clip_id"), path.alias("video_path"))
    named = names.map_batches(partial(_named, spec.extension, seen), return_dtype=_NAMED, is_elementwise=True)
    frame = frame.with_columns(named=named).drop("clip_id", "video_path", strict=False).unnest("named")
    unjudged = pl.col("is_several") | pl.col("leaves") | pl.col("clip_id").is_null()
    source = pl.coalesce("source_id", "clip_id") if "source_id" in there else pl.col("clip_id")
    frame = with_best_known(frame, present, dataset, spec).with_columns(
        source_id=source,
        ingest_problem=pl.when(unjudged)
        .then(pl.lit(_UNDECIDED))
        .when("is_bad")
        .then(pl.lit("bad_value"))
        .when("is_empty")
        .then(pl.lit("empty_caption")),
    )
    return with_columns(frame, columns_of(frame, rows.own))


def _named(extension: str, seen: _Seen, cells: pl.Series) -> pl.Series:
    """Return the columns of _NAMED of rows that have clip_id and video_path, either of which may be null.

    Adds the ids to `seen`.
    """
    frame = cells.struct.unnest()
    given, path = frame["clip_id"], frame["video_path"]
    ids = path.str.strip_suffix(extension)
    if given.null_count() == len(given) and not ids.null_count() and safe_keys(ids) is ids:
        # A path without its extension that is a safe key is a bare name.
        seen.add(ids, ids)
        found = pl.DataFrame({"clip_id": ids, "sample_key": ids, "video_path": path})
        return found.with_columns(leaves=pl.lit(value=False)).to_struct(cells.name)
    where = relative(frame.select(pl.coalesce(path, given + extension)).to_series(), None)
    ids = frame.select(pl.coalesce(given, where["path"].str.strip_suffix(extension))).to_series()
    keys = safe_keys(ids)
    seen.add(ids, keys)
    found = pl.DataFrame({"clip_id": ids, "sample_key": keys, "video_path": where["path"]})
    leaves = where["leaves"].fill_null(value=False).rename("leaves")
    return found.with_columns(leaves).to_struct(cells.name)


def _bad_rows(rows: Rows, read: Typed, problems: pl.Series) -> pl.DataFrame:
    """Return bad (the cells that do not parse) and is_empty of the rows with a bad value, in order."""
    is_empty = captions.is_empty(rows.frame.collect_schema())
    wanted = read.frame.select(bad=read.bad, is_bad=read.is_bad, is_empty=is_empty)
    if not (problems == "bad_value").any():
        wanted = wanted.head(0)
    return wanted.filter("is_bad").select("bad", "is_empty").collect(engine="streaming")
