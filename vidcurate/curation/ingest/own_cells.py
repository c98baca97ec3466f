"""Own columns of the metadata as typed cells: what becomes no column of ours.

CSV cells are text; a column is int, float or bool where every cell of it is, and text otherwise. Text stays
as it is written, blanks too. Numbers with leading zeros are no numbers, and a column whose name says that it
names something (`…_id`, `key`, `code`, `version`, `hash`) stays text: 12.10 is not 12.1. JSON and Parquet say
their types. docs/shards.md has the table of types.
"""

import re
from collections.abc import Iterable, Mapping

import polars as pl

from vidcurate.curation.clip_table.own_columns import own_names
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.ingest.rows import OwnCell, Rows
from vidcurate.curation.ingest.source import ABSENT, OWN, Source, normal, taken_by

_INT = r"^(?:0|-?[1-9][0-9]{0,18})$"
_FLOAT = r"^[+-]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?[eE][+-]?[0-9]+)$"
_NUMBER = r"^-?[0-9]"  # of JSON, whose floats polars writes out as 60 and 0.00…05
_LARGEST = 2**63 - 1
_EXACT = 2**53
_NAMES_SOMETHING = re.compile(r"(?:^|_)(?:id|ids|uuid|key|code|version|hash|md5|sha256)$")
_UNNAMED = re.compile(r"(?:_duplicated_\d+)?")  # polars' name of the second column without one
_OF_EXPORTED = {"clip_id", "sample_key", "ingest_problem"}
_TEXT = (pl.String(), pl.Null())
_MOST_DAYS = 95_000_000  # since 1970, either way: polars panics beyond the year 262142; the number stays then
_PER_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def rows_of(source: Source, frame: pl.LazyFrame, found: Mapping[str, str]) -> Rows:
    """Return the rows of a table, with its own columns, from what `source.text` made of `found`."""
    return Rows(frame=frame, own=own_cells(source, taken_by(found)), labels=found)


def own_cells(source: Source, taken: Iterable[str]) -> tuple[OwnCell, ...]:
    """Return the own columns of a table: those that are not `taken`, typed. Reads the table once.

    A column without a name and without a value is left out, and so are our columns of a table that a run was
    exported to: the stages write them again.
    """
    columns, used = list(source.dtypes), set(taken)
    if source.dtypes.keys() >= _OF_EXPORTED:
        used |= COLUMNS.keys()
    places = {column: place for place, column in enumerate(columns) if column not in used}
    facts = _facts(source, places)
    left = [column for column in places if not _UNNAMED.fullmatch(column) or facts[column]["any"]]
    names = own_names(left)
    return tuple(
        OwnCell(
            part=f"{OWN}{places[column]}",
            name=names[column],
            source=column,
            value=_typed(source, column, pl.col(f"{OWN}{places[column]}"), facts[column]),
        )
        for column in left
    )


def _facts(source: Source, places: Mapping[str, int]) -> dict[str, dict[str, bool]]:
    """Return what the cells of each column are: any, int, float, bool, large (beyond int64)."""
    wanted = []
    held = list(source.frame.collect_schema().values())
    for column, place in places.items():
        cell = pl.nth(place)
        found = {"any": cell.is_not_null().any()}
        if (held[place] == pl.String() and source.dtypes[column] not in _TEXT) or source.is_text:
            text = cell.str.strip_chars()
            nothing = cell.is_null() | text.is_in(ABSENT)
            whole = text.cast(pl.Int64, strict=False)
            is_int = text.str.contains(_INT) & whole.is_not_null()
            is_written = _NUMBER if source.dtypes[column].is_float() else _FLOAT
            is_float = (text.str.contains(is_written) & text.cast(pl.Float64, strict=False).is_finite()) | (
                is_int & (whole.abs() <= _EXACT)
            )
            is_bool = text.str.to_lowercase().is_in(["true", "false"])
            found |= {
                "any": (~nothing).any(),
                **{
                    kind: (nothing | good).all()
                    for kind, good in (("int", is_int), ("float", is_float), ("bool", is_bool))
                },
            }
        elif held[place] == pl.UInt64():
            found["large"] = (cell > _LARGEST).any()
        wanted += [value.fill_null(value=False).alias(f"{place} {kind}") for kind, value in found.items()]
    row = source.frame.select(wanted).collect(engine="streaming").row(0, named=True) if wanted else {}
    facts: dict[str, dict[str, bool]] = {column: {} for column in places}
    columns = list(source.dtypes)
    for key, value in row.items():
        number, _, kind = key.partition(" ")
        facts[columns[int(number)]][kind] = bool(value)
    return facts


def _typed(source: Source, column: str, cell: pl.Expr, facts: Mapping[str, bool]) -> pl.Expr:
    dtype = source.dtypes[column]
    if "int" not in facts:
        return _plain(cell, dtype, is_large=facts.get("large", False))
    if source.is_text and (not facts["any"] or _NAMES_SOMETHING.search(normal(column))):
        return pl.when(cell != "").then(cell)
    text = cell.str.strip_chars()
    known = pl.when(~text.is_in(ABSENT))
    if facts["bool"]:
        return known.then(text.str.to_lowercase() == "true")
    if facts["int"] and not dtype.is_float():
        return known.then(text.cast(pl.Int64, strict=False))
    if facts["float"]:
        return known.then(text.cast(pl.Float64, strict=False))
    return pl.when(cell != "").then(cell) if source.is_text else cell


def _plain(cell: pl.Expr, dtype: pl.DataType, *, is_large: bool = False) -> pl.Expr:
    """Return a typed column as int, float, bool, text, or a list of these."""
    if isinstance(dtype, pl.List | pl.Array):
        values = cell.arr.to_list() if isinstance(dtype, pl.Array) else cell
        inner = dtype.inner
        if isinstance(inner, pl.DataType) and not inner.is_nested() and inner != pl.UInt64():
            return values.list.eval(_plain(pl.element(), inner))
    if dtype.is_nested() or isinstance(dtype, pl.List | pl.Array):
        text = pl.struct(cell.alias("x")).struct.json_encode().str.strip_prefix('{"x":').str.strip_suffix("}")
        return pl.when(cell.is_not_null()).then(text)
    if dtype == pl.Boolean():
        return cell
    if dtype.is_float():
        return cell.cast(pl.Float64)
    if dtype.is_integer() and not is_large and dtype.base_type() is not pl.Int128:
        return cell.cast(pl.Int64)
    if dtype == pl.Binary():
        return cell.bin.encode("base64")
    if isinstance(dtype, pl.Date | pl.Datetime):
        number = cell.to_physical()
        per_day = _PER_DAY[dtype.time_unit] if isinstance(dtype, pl.Datetime) else 1
        most = min(_MOST_DAYS * per_day, _LARGEST)
        shown = pl.when(number.is_between(-most, most)).then(cell).dt.to_string("iso")
        return pl.coalesce(shown, number.cast(pl.String))
    if dtype.is_temporal():
        return cell.dt.to_string("iso")
    return cell.cast(pl.String)
