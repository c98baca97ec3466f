"""Own columns and named captions: metadata of a run beyond the known columns.

`ingest` keeps every column of the metadata that it does not read as one of COLUMNS. Such a column has its own
name; a name that would clash (RESERVED, or one that polars reads as a pattern) gets PREFIX. Its type is one
of int (int64), float (float64), bool, string, or a list of these; anything else is text (JSON for structs
and nested lists, ISO 8601 for times, base64 for bytes). The words of the column in `ingest.parquet` (see
`table.column_words`) have the source's name under `source`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import COLUMNS

PREFIX = "own_"
# Names that mean something else in a table, a filter rule or the index of shards.
RESERVED = frozenset(
    {
        *COLUMNS,
        *("short_side", "aspect_ratio", "_size", "row", "order", "value"),
        *("shard", "rendition", "frame_map", "video_extension", "structure_hash", "content_hash"),
        *(f"{part}_{what}" for part in ("json", "video", "text") for what in ("offset", "size", "crc32c")),
    }
)
MAIN = "caption"  # name of the main caption where the metadata gives it none
_UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnColumn:
    """Own column: `source` is its name in the metadata ("" without one)."""

    source: str
    dtype: pl.DataType


def own_names(sources: Iterable[str]) -> dict[str, str]:
    """Return source name → column name, without two alike; a name that is free stays as it is."""
    sources = list(sources)
    names = {source: source for source in sources if _is_free(source)}
    for source in sources:
        if source not in names:
            name = PREFIX + source if source else _UNNAMED
            while name in names.values():
                name = PREFIX + name
            names[source] = name
    return {source: names[source] for source in sources}


def _is_free(name: str) -> bool:
    return bool(name) and name not in RESERVED and name != "*" and not name.startswith("^")


def words_of(source: str) -> dict[str, str]:
    """Return what `table.write` records of an own column."""
    shown = source or "without a name"
    return {"unit": "", "meaning": f"own column of the metadata: {shown}", "source": source}


def own_columns(run: Path) -> dict[str, OwnColumn]:
    """Return the run's own columns by name: those of the metadata in its order, then own scores.

    Raises TableError.
    """
    found: dict[str, OwnColumn] = {}
    for stage in ("ingest", "own_scores"):
        path = table.stage_path(run, stage)
        if not path.exists():
            continue
        words = table.column_words(path)
        for name, dtype in pl.read_parquet_schema(path).items():
            if name not in COLUMNS and "source" in words.get(name, {}):
                found[name] = OwnColumn(source=words[name]["source"], dtype=dtype)
    return found


def captions_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Return name → text of a clip's captions, the main one first; {} for a clip without a caption.

    `row` is a row of the clip table, of the index or the JSON of a shard's clip. The only caption of a clip
    has the name MAIN.
    """
    named = {caption["name"]: caption["text"] for caption in row.get("captions") or ()}
    text = row.get("caption")
    main = row.get("caption_name") or MAIN
    return {main: text, **{name: other for name, other in named.items() if name != main}} if text else named


def caption_names(run: Path, stage: str = "ingest") -> list[str]:
    """Return the names of the captions after a stage, sorted; [MAIN] when no clip has several.

    Raises StageError when there is no table of the stage, TableError for a damaged one.
    """
    captions = table.scan(run, stage).select("captions")
    names = captions.explode("captions").select(pl.col("captions").struct.field("name")).drop_nulls()
    found = names.unique().collect(engine="streaming").to_series().sort().to_list()
    return found or [MAIN]
