"""Several captions of a clip: named columns, lists in a cell, the main caption.

A column such as `caption_short` or `short_caption` holds the caption `short`; only the names of NAMES and
numbers count, as `caption_model` is no caption. A cell may hold a list of texts, as a list of Parquet or
JSON, or as text that is a JSON array or Python list: the captions are then `1`, `2`, … (`short_1`, … in a
column of its own name). A clip whose only caption has no name has no list.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from vidcurate.curation.clip_table.own_columns import MAIN
from vidcurate.curation.clip_table.schema import CAPTIONS
from vidcurate.curation.ingest.source import ABSENT, Source, demand, find, listed, normal
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.errors import ColumnError

NAMES = (
    *("short", "long", "dense", "brief", "medium", "detailed", "structured", "summary", "original"),
    *("main_object", "subject", "background", "scene", "style", "camera", "motion", "action", "human"),
)
PART = f"{MAIN}:"  # caption:short is the column of rows that holds the caption `short`
_EVERY, _MAIN_NAME = "\0every", "\0main"  # parts that hold all captions, and the name of the main one
_FIRST = ("dense", "detailed", "long")  # the main caption where none is plainly the caption
_WORDS = r"(?:captions?|prompts?)"
_COLUMN = re.compile(rf"^(?:{_WORDS}_?(\d+|[a-z_]+)|([a-z_]+)_{_WORDS})$")
_FOUND = pl.Struct({"caption": pl.String(), "captions": CAPTIONS, "caption_name": pl.String()})


def name_of(column: str) -> str:
    """Return the name of a column's captions: `short` for short_caption, `caption` without a known name."""
    match = _COLUMN.match(normal(column))
    name = (match[1] or match[2]).strip("_") if match else ""
    return name if name in NAMES or name.isdecimal() else MAIN


def columns(source: Source, spec: IngestSpec, *names: str, hint: str = "") -> dict[str, str]:
    """Return the source's caption columns: `caption` → the main one, `caption:NAME` → the others.

    The main one is the spec's choice (a column, or the name of a caption), else the first of `names`, else
    that of the richest name. Raises ColumnError.
    """
    named: dict[str, str] = {}
    for column in source.dtypes:
        if (name := name_of(column)) != MAIN:
            named.setdefault(name, column)
    wanted = spec.caption_column
    if wanted is not None:
        main = find(source, wanted) or named.get(wanted) or demand(source, wanted, "asked for as the caption")
    else:
        best = [named[name] for name in (*_FIRST, *named) if name in named]
        found = find(source, *names) or next(iter(best), None)
        if found is None:
            raise ColumnError(
                f"{source.path}: no caption column ({' or '.join(names)}); it has {listed(source.dtypes)}."
                f"{hint or ' Name one as the caption column.'}"
            )
        main = found
    if main != "captions" and {"captions", "caption_name"} <= source.dtypes.keys():
        named |= {_EVERY: "captions", _MAIN_NAME: "caption_name"}  # of a table that a run was exported to
    return {"caption": main, **{PART + name: column for name, column in named.items() if column != main}}


def texts(cell: Any) -> list[str]:
    """Return the texts of a cell that is a text or a list of texts, trimmed, without ABSENT ones."""
    entries = [cell] if isinstance(cell, str) else cell or []
    stripped = [entry.strip() for entry in entries if isinstance(entry, str)]
    return [text for text in stripped if text not in ABSENT]


def _parts(name: str, cell: Any) -> list[tuple[str, str]]:
    """Return (name, text) of the captions in a cell, which may be text that is a list or a map of texts."""
    if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):
        cell = _written_out(cell)
    if isinstance(cell, list) and cell and all(_is_named(one) for one in cell):
        return [(one["name"], text) for one in cell for text in texts(one["text"])]
    if isinstance(cell, dict):
        best = sorted(cell, key=lambda key: (key not in _FIRST, _FIRST.index(key) if key in _FIRST else 0))
        return [part for key in best for part in _parts(str(key), cell[key])]
    found = texts(cell)
    if len(found) < 2:
        return [(name, text) for text in found]
    return [(str(n) if name == MAIN else f"{name}_{n}", text) for n, text in enumerate(found, start=1)]


def _written_out(text: str) -> Any:
    """Return the list or map of texts that `text` writes out (JSON or Python), else `text`."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no text
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        one_by_one: list[Any] = []
        if isinstance(value, dict):
            one_by_one = list(value.values())
        elif isinstance(value, list):
            one_by_one = [entry["text"] if _is_named(entry) else entry for entry in value]
        if one_by_one and all(isinstance(entry, str) for entry in one_by_one) and texts(one_by_one):
            return value
    return text


def named(cells: Mapping[str, Any], main: str) -> dict[str, Any]:
    """Return caption, captions and caption_name of a clip from its cells {name: text, list or map}.

    `main` is the name of the main cell, which comes first; its first text is the caption.
    """
    captions: dict[str, str] = {}
    first: dict[str, str] = {}
    for name in sorted(cells, key=lambda name: name != main):
        for full, text in _parts(name, cells[name]):
            while full in captions:
                full += "_"
            captions[full] = text
            first.setdefault(name, full)
    is_plain = set(captions) <= {MAIN}
    return {
        "caption": captions[first[main]] if main in first else None,
        "captions": None if is_plain else [{"name": n, "text": text} for n, text in captions.items()],
        "caption_name": None if is_plain else first.get(main),
    }


def of_facts(
    facts: Mapping[str, Any], wanted: str | None, plain: Iterable[str]
) -> tuple[dict[str, Any], set[str]]:
    """Return (`named` of a clip's JSON, the keys it was read from).

    Read are `captions` (a list of {name, text} as in our shards, a list of texts, or name → text), named
    keys such as `short_caption`, and the first of the keys `plain`. `wanted` is the key or the name of the
    main caption.
    """
    cells: dict[str, Any] = {}
    taken: set[str] = set()

    def take(name: str, key: str, value: Any) -> None:
        is_text = isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        )
        if is_text and texts(value):
            while name in cells:  # two captions of one name
                name += "_"
            cells[name] = value
            taken.add(key)

    several = facts.get("captions")
    if isinstance(several, dict):
        for name, text in several.items():
            take(name, "captions", text)
    elif isinstance(several, list) and several and all(_is_named(one) for one in several):
        for one in several:
            take(one["name"], "captions", one["text"])
    key = next((key for key in plain if key in facts), None)
    main = facts.get("caption_name")
    if isinstance(main, str) and main in cells:
        taken |= {"caption_name", "caption"}
    else:
        main = None
        if key is not None:
            take(MAIN, key, facts[key])
            taken |= {key} if facts[key] == "" else set()
        elif isinstance(several, list):
            take(MAIN, "captions", several)
    for other, value in facts.items():
        if (name := name_of(other)) != MAIN and other not in taken:
            take(name, other, value)
    if wanted is not None and wanted in facts:
        main = name_of(wanted)
        if main == MAIN:
            cells.pop(MAIN, None)
            take(MAIN, wanted, facts[wanted])
    elif wanted is not None:
        main = wanted
    if main is None:
        main = next((name for name in (MAIN, *_FIRST, *cells) if name in cells), MAIN)
    return named(cells, main), taken


def _is_named(value: Any) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("text"), str)
    )


def _parts_of(schema: pl.Schema) -> list[str]:
    return [MAIN, *(part for part in schema if part.startswith(PART))]


def main_column(labels: Mapping[str, str]) -> str:
    """Return the source's name of the main caption, by the labels of an adapter's rows."""
    return labels.get(MAIN, MAIN)


def is_plain(schema: pl.Schema, main_column: str) -> bool:
    """Return whether the rows have one column of captions, as text and without a name."""
    if _parts_of(schema) != [MAIN] or {"captions", "caption_name"} & schema.keys():
        return False
    return name_of(main_column) == MAIN and schema.get(MAIN) == pl.String()


def may_be_several(schema: pl.Schema, main_column: str) -> pl.Expr:
    """Return whether a row may have more than one caption without a name: only then `cells_of` is needed."""
    if _parts_of(schema) != [MAIN] or name_of(main_column) != MAIN or schema[MAIN] != pl.String():
        return pl.lit(value=True)
    caption = pl.col(MAIN)
    # Begins with [ or with {: a comparison looks at the first four bytes of a text, beside its length.
    is_list = ((caption >= "[") & (caption < "\\")) | ((caption >= "{") & (caption < "|"))
    return is_list.fill_null(value=False)


def cells_of(schema: pl.Schema, main_column: str) -> pl.Expr:
    """Return caption, captions and caption_name as one struct, for rows with the columns of `schema`.

    `main_column` is the source's name of the main caption, which comes first.
    """
    main = name_of(main_column)
    parts = _parts_of(schema)
    names = {part: main if part == MAIN else part.removeprefix(PART) for part in parts}

    def read(rows: pl.Series) -> pl.Series:
        frame = rows.struct.unnest()
        if not frame.select(may_be_several(schema, main_column).any()).item():
            empty = {"captions": pl.lit(None, dtype=CAPTIONS), "caption_name": pl.lit(None, dtype=pl.String)}
            return frame.select(MAIN, **empty).to_struct(rows.name)
        found = [_of_row({names[part]: cell for part, cell in row.items()}, main) for row in frame.to_dicts()]
        return pl.Series(rows.name, found, dtype=_FOUND)

    return pl.struct(parts).map_batches(read, return_dtype=_FOUND, is_elementwise=True)


def _of_row(cells: dict[str, Any], main: str) -> dict[str, Any]:
    every, main_name = cells.pop(_EVERY, None), cells.pop(_MAIN_NAME, None)
    listed = dict(_parts(MAIN, every)) if every else {}
    if main_name and listed.get(main_name) == cells.get(MAIN):
        return named({**{name: text for name, text in cells.items() if name != MAIN}, **listed}, main_name)
    return named(cells, main)


def is_empty(schema: pl.Schema) -> pl.Expr:
    """Return whether a row has no main caption."""
    if schema[MAIN] == pl.String():
        return pl.col(MAIN).is_null()
    entry, inner = pl.element(), getattr(schema[MAIN], "inner", None)
    words = (entry.struct.field("text") if isinstance(inner, pl.Struct) else entry).cast(pl.String)
    words = words.str.strip_chars()
    is_text = words.is_not_null() & ~words.is_in(ABSENT)
    return ~pl.col(MAIN).list.eval(is_text).list.any().fill_null(value=False)
