"""Panda-70M adapter: one row per source video, a Python list in each cell.

The cells are read with `ast.literal_eval`, which runs nothing, or taken as lists from Parquet. Lists of
unequal length would pair captions with the wrong clips: such a source keeps one row, named, that says so.
A clip is `<videoID>_<place in the list, five digits>`. Every clip of a source has the source's own columns.
"""

import ast
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.own_cells import own_cells
from vidcurate.curation.ingest.rows import BETWEEN_BAD, Rows, bad_cell, seconds
from vidcurate.curation.ingest.source import OWN, Source, pick
from vidcurate.curation.ingest.spec import IngestSpec

COLUMNS: dict[str, tuple[str, ...]] = {
    "source_id": ("videoID",),
    "timestamp": ("timestamp",),
    "matching_score": ("matching_score",),
    "desirable_filtering": ("desirable_filtering",),
}
_CLIP = pl.Struct(
    {
        name: pl.String()
        for name in (
            "source_id",
            "clip_id",
            "caption",
            "start_seconds",
            "end_seconds",
            "matching_score",
            "desirable_filtering",
            "bad",
        )
    }
)
_Clip = dict[str, str | None]


def _entries(cell: Any) -> list[Any] | None:
    """Return the list in a cell, or None when there is none to be had."""
    if isinstance(cell, str):
        try:
            cell = ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
    return list(cell) if isinstance(cell, list | tuple) else None


def _word(value: Any) -> str | None:
    return None if value is None else str(value).strip() or None


def _words(entries: list[Any] | None) -> list[str | None] | None:
    """Return the entries as text, None when one has none (a lone surrogate, an integer too long to print)."""
    if entries is None:
        return None
    try:
        words = [_word(entry) for entry in entries]
        "".join(word for word in words if word).encode()
    except (ValueError, RecursionError):
        return None
    return words


def _start_of(value: Any) -> str:
    try:
        return str(value)[:80].encode("utf-8", "replace").decode()
    except (ValueError, RecursionError):
        return "a value without text"


def _unusable(video: str | None, label: str, cell: Any) -> list[_Clip]:
    return [{"source_id": video, "clip_id": video, "bad": f"{label}={str(cell)[:80]}"}]


def _clips(row: dict[str, Any], labels: dict[str, str]) -> list[_Clip]:
    """Return the clips of one source video, or its one row that says which cell cannot be used."""
    video = _word(row["source_id"])
    lists: dict[str, list[Any]] = {}
    for name, cell in row.items():
        if name == "source_id":
            continue
        found = _entries(cell)
        entries = found if name == "timestamp" else _words(found)
        if not entries:
            return _unusable(video, labels[name], cell)
        lists[name] = entries
    length = len(lists["timestamp"])
    uneven = [f"{labels[name]} {len(entries)}" for name, entries in lists.items() if len(entries) != length]
    if uneven:
        reported = f"lists of unequal length ({length}, but {', '.join(uneven)})"
        return _unusable(video, labels["timestamp"], reported)
    clips: list[_Clip] = []
    for place, entry in enumerate(lists["timestamp"]):
        span = _words(_entries(entry)) or []
        bad = None if len(span) == 2 else f"{labels['timestamp']}={_start_of(entry)}"
        clip: _Clip = {
            "source_id": video,
            "clip_id": f"{video}_{place:05d}" if video else None,
            "start_seconds": span[0] if bad is None else None,
            "end_seconds": span[1] if bad is None else None,
            "bad": bad,
        }
        for name in lists:
            if name != "timestamp":
                clip[name] = lists[name][place]
        clips.append(clip)
    return clips


def read_rows(source: Source, spec: IngestSpec, scratch: Path) -> Rows:
    """Return one row per clip, staged in `scratch`. Raises ColumnError."""
    found = pick(source, COLUMNS, required=("source_id", "timestamp"))
    found["caption"] = captions.columns(source, spec, "caption")["caption"]

    def explode(cells: pl.Series) -> pl.Series:
        clips = [_clips(row, found) for row in cells.to_list()]
        return pl.Series(cells.name, clips, dtype=pl.List(_CLIP))

    staged = scratch / "clips.parquet"
    row = pl.struct(pl.col(column).alias(ours) for ours, column in found.items())
    own = own_cells(source, found.values())
    source.frame.select(
        row.map_batches(explode, return_dtype=pl.List(_CLIP), is_elementwise=True).alias("clip"),
        *(pl.nth(int(cell.part.removeprefix(OWN))).alias(cell.part) for cell in own),
    ).explode("clip").unnest("clip").sink_parquet(staged, maintain_order=True)
    labels = {**found, "start_seconds": found["timestamp"], "end_seconds": found["timestamp"]}
    frame = pl.scan_parquet(staged)
    if spec.files == "clips":
        start, end = (seconds(pl.col(name)) for name in ("start_seconds", "end_seconds"))
        bad = [
            pl.col("bad"),
            bad_cell(
                pl.col("start_seconds").is_not_null() & start.is_null(), "timestamp", pl.col("start_seconds")
            ),
            bad_cell(pl.col("end_seconds").is_not_null() & end.is_null(), "timestamp", pl.col("end_seconds")),
        ]
        frame = frame.with_columns(
            pl.concat_str(bad, separator=BETWEEN_BAD, ignore_nulls=True).alias("bad"),
            (end - start).alias("duration_seconds"),
        ).drop("start_seconds", "end_seconds")
    else:
        frame = frame.with_columns(video_path=pl.col("source_id") + spec.extension)
    return Rows(frame=frame, own=own, labels=labels)
