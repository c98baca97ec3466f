"""Runs of clips with given hashes, and the copies that dedup found among them."""

from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import table
from vidcurate.curation.clip_table.schema import COLUMNS
from vidcurate.curation.clip_table.table import Provenance

EMPTY: dict[str, Any] = {
    "source_id": None,
    "video_path": None,
    "file_size_bytes": None,
    "start_seconds": None,
    "end_seconds": None,
    "caption": "a dog",
    "ingest_problem": None,
}


def make_run(folder: Path, rows: list[dict[str, Any]], stage: str = "frames") -> Path:
    """Write the tables of a run whose clips are `rows`; columns that no row has are those of EMPTY."""
    folder.mkdir(exist_ok=True)
    clips = [{**EMPTY, **row} for row in rows]
    names = list(dict.fromkeys(name for row in [{"clip_id": ""} | EMPTY, *clips] for name in row))
    data = {name: [row.get(name) for row in clips] for name in names}
    frame = pl.DataFrame({name: pl.Series(name, data[name], dtype=COLUMNS[name].dtype) for name in names})
    table.write(frame, table.stage_path(folder, "ingest"), Provenance(stage="ingest", settings={}, inputs={}))
    return folder


def found_in(run: Path) -> dict[str, dict[str, Any]]:
    return {row["clip_id"]: row for row in table.scan(run, "dedup").collect().to_dicts()}


def copies(run: Path) -> dict[str, str]:
    """Return copy → the clip that is kept for it."""
    return {name: row["duplicate_of"] for name, row in found_in(run).items() if row["duplicate_of"]}


LOOK = [
    0x1234_5678_9ABC_DEF0, 0x0F1E_2D3C_4B5A_6978, 0x8877_6655_4433_2210, 0xA5A5_5A5A_C3C3_3C3C,
    0x7E57_AB1E_0DD5_EED5,
]  # fmt: skip


def looks(*changed_bits: int) -> list[int]:
    """Return LOOK with this many bits of each frame turned over."""
    return [look ^ ((1 << bits) - 1) << 20 for look, bits in zip(LOOK, changed_bits, strict=True)]
