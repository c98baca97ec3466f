"""Table of a metadata file and a listing of files, in two passes.

A row's verdict needs every other row: a file belongs to the row that names it. So the first pass keeps every
cell but the captions, typed, with the flags of the reconciliation, in memory; the second streams the
captions into the table. Writing typed cells to a file first was measured too: reading the captions of a CSV
again costs little more than writing them twice.
"""

import polars as pl

from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.reconcile import KEYS, PROBLEMS, Ledger
from vidcurate.curation.ingest.rows import CELLS, Rows, typed
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.table_columns import columns_of, dataset_of, with_best_known, with_columns

LATER = ("camera_motion", "desirable_filtering")  # texts that nothing checks: read in the second pass


def first_pass(rows: Rows) -> pl.DataFrame:
    """First pass: the cells that the adapter fills, captions left out, KEYS, and is_several.

    A column that is the same in every row is a literal, which polars holds once.
    """
    schema = rows.frame.collect_schema()
    read = typed(rows)
    later = {"caption", *LATER}
    asked = {name: read.cells[name] for name in CELLS if name in schema and name not in later}
    same = {name: read.cells[name] for name in KEYS if name in CELLS and name not in schema}
    if "caption" in schema:
        asked["is_empty"] = captions.is_empty(schema)
        asked["is_several"] = captions.may_be_several(schema, captions.main_column(rows.labels))
    else:
        same |= {"is_empty": pl.lit(value=True), "is_several": pl.lit(value=False)}
    if "note" in schema:
        asked["note"] = pl.col("note").fill_null("")
    else:
        same["note"] = pl.lit("")
    found = read.frame.select(**asked, is_bad=read.is_bad).collect(engine="streaming")
    found = found.with_columns(**same, bad=pl.lit(""))
    at = found["is_bad"].arg_true()
    if len(at):  # one more pass, for the texts of bad rows alone
        texts = read.frame.select(bad=read.bad, is_bad=read.is_bad).filter("is_bad").select("bad")
        reported = found["bad"].scatter(at, texts.collect(engine="streaming")["bad"])
        found = found.with_columns(reported.alias("bad"))
    return found.drop("is_bad")


def _texts(rows: Rows, *, is_several: bool) -> pl.LazyFrame:
    """Return caption, captions and caption_name of every row, LATER, and the typed parts of its own columns.

    Unless `is_several`, no row has more than one caption without a name: the others are then left out.
    """
    schema = rows.frame.collect_schema()
    own = {name: pl.col(name).cast(CELLS[name]) for name in LATER if name in schema}
    own |= {cell.part: cell.value for cell in rows.own}
    if "captions" in schema or "caption" not in schema:
        present = [name for name in ("caption", "captions", "caption_name") if name in schema]
        return rows.frame.select(*present, **own)
    if not is_several:
        return rows.frame.select("caption", **own)
    said = captions.cells_of(schema, captions.main_column(rows.labels))
    return rows.frame.select(said.alias("said"), **own).unnest("said")


def second_pass(
    rows: Rows, narrow: pl.DataFrame, ledger: Ledger, schema: str, spec: IngestSpec
) -> pl.LazyFrame:
    """Second pass: captions beside the cells of the first and the verdicts; then the extra files."""
    texts = _texts(rows, is_several=bool(narrow["is_several"].any()))
    present = {*narrow.columns, *texts.collect_schema()}
    # In memory during the write, so as small as can be: a problem is a number, and no text is there twice.
    problems = pl.col("ingest_problem").cast(pl.Enum(PROBLEMS))
    verdict = ledger.frame.select(
        "clip_id", "sample_key", "file_size_bytes", problems, video_path="file_path"
    )
    problem = pl.col("ingest_problem").cast(pl.String)
    base_id = ledger.frame["base_id"]
    source_id = base_id.head(narrow.height).alias("source_id")
    if "source_id" in narrow:
        given = narrow["source_id"]
        source_id = given.zip_with(given.is_not_null(), source_id) if given.null_count() else given
    read = narrow.drop("clip_id", "video_path", "is_empty", "is_several", "bad", "note")
    read = read.with_columns(source_id)
    whole = pl.concat([texts, read.lazy(), verdict.head(ledger.num_rows).lazy()], how="horizontal")
    whole = with_best_known(whole, present, dataset_of(schema, spec), spec).with_columns(
        ingest_problem=problem
    )
    extra = (
        verdict.with_columns(source_id=base_id)
        .slice(ledger.num_rows)
        .lazy()
        .with_columns(source_dataset=pl.lit(dataset_of(schema, spec)), ingest_problem=problem)
    )
    columns = columns_of(whole, rows.own)
    parts = [whole, extra] if verdict.height > ledger.num_rows else [whole]
    return pl.concat(with_columns(part, columns) for part in parts)
