"""Columns of the ingest table, computed from an adapter's typed cells."""

from collections.abc import Collection, Iterable

import polars as pl

from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.ingest.detect import TABLES
from vidcurate.curation.ingest.rows import CELLS, MEASURES, OwnCell, best_known
from vidcurate.curation.ingest.spec import IngestSpec


def dataset_of(schema: str, spec: IngestSpec) -> str:
    """Return the name of the dataset of rows that do not say theirs."""
    return spec.dataset or (TABLES[schema].dataset if schema in TABLES else schema)


def with_best_known(
    frame: pl.LazyFrame, present: Collection[str], dataset: str, spec: IngestSpec
) -> pl.LazyFrame:
    """Add source_dataset, the measures as the metadata tells them, and the best known ones.

    `present` are the columns of CELLS that `frame` has; the others are null.
    """
    cells = {
        name: pl.col(name) if name in present else pl.lit(None, dtype=dtype) for name, dtype in CELLS.items()
    }
    reported = {f"{name}_from_metadata": cells[name] for name in MEASURES}
    named = pl.lit(dataset) if spec.dataset else pl.coalesce(cells["source_dataset"], pl.lit(dataset))
    return frame.with_columns(**reported, **best_known(cells), source_dataset=named)


def columns_of(frame: pl.LazyFrame, own: Iterable[OwnCell]) -> dict[str, tuple[str, pl.DataType]]:
    """Return the table's columns in order: name → (column of `frame`, dtype)."""
    there = frame.collect_schema()
    known = {name: (name, column.dtype) for name, column in COLUMNS.items() if column.stage == "ingest"}
    return known | {cell.name: (cell.part, there[cell.part]) for cell in own}


def with_columns(frame: pl.LazyFrame, columns: dict[str, tuple[str, pl.DataType]]) -> pl.LazyFrame:
    """Return {name: (column, dtype)} in order; those that `frame` does not have are null."""
    there = frame.collect_schema()
    return frame.select(
        (pl.col(column) if column in there else pl.lit(None, dtype=dtype)).alias(name)
        for name, (column, dtype) in columns.items()
    )
