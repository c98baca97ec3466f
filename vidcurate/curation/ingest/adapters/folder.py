"""Folder adapter: videos with captions next to them, `clip.txt` or `clip.json`.

A `.json` may hold any of the columns; a `.txt` is the caption. Where both are there, the caption is that of
the `.json` and, when it has none, the text.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import polars as pl

from vidcurate.curation.ingest.adapters.table import json_cells
from vidcurate.curation.ingest.files import Listing
from vidcurate.curation.ingest.rows import Rows, stage
from vidcurate.curation.ingest.spec import IngestSpec

SIDE_CARS = (".json", ".txt")


def _stems(listing: Listing) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the videos, and {path without extension: {.json or .txt: path}} of what lies beside them."""
    paths: list[str] = listing.files.filter(~pl.col("leaves"))["path"].to_list()
    beside: dict[str, dict[str, str]] = {}
    for path in paths:
        pure = PurePosixPath(path)
        if pure.suffix.lower() in SIDE_CARS:
            beside.setdefault(str(pure.with_suffix("")), {})[pure.suffix.lower()] = path
    videos: list[str] = listing.files.filter("is_video")["path"].to_list()
    return videos, beside


def side_cars(listing: Listing) -> tuple[str, list[str]]:
    """Return (digest of the contents of all side-cars, the side-cars that no video stands beside)."""
    videos, beside = _stems(listing)
    stems = {str(PurePosixPath(video).with_suffix("")) for video in videos}
    whole = hashlib.sha256()
    alone: list[str] = []
    for stem in sorted(beside):
        for path in beside[stem].values():
            whole.update(f"{path}\0".encode() + (listing.root / path).read_bytes())
        if stem not in stems:
            alone.extend(beside[stem].values())
    return whole.hexdigest(), alone


def _row(
    video: str, beside: dict[str, str], root: Path, spec: IngestSpec, unknown: set[str]
) -> dict[str, str | None]:
    row: dict[str, str | None] = {}
    bad = None
    words: dict[str, str] = {}
    for suffix, path in sorted(beside.items()):
        try:
            words[suffix] = (root / path).read_text(encoding=spec.encoding).removeprefix("\ufeff").strip()
        except (OSError, UnicodeError) as error:
            bad = f"{path}={type(error).__name__}"
    if ".json" in words:
        try:
            cells, others = json_cells(words[".json"], spec.caption_column)
            row.update(cells)
            unknown |= others
        except ValueError:
            bad = f"{beside['.json']}=not a JSON object"
    row["caption"] = row.get("caption") or words.get(".txt")
    return {**row, "video_path": video, "bad": bad}


def read_rows(listing: Listing, spec: IngestSpec, scratch: Path) -> tuple[Rows, set[str]]:
    """Return one row per video of the folder, staged in `scratch`, and the JSON keys that were not taken."""
    videos, beside = _stems(listing)
    unknown: set[str] = set()

    def rows() -> Iterator[dict[str, str | None]]:
        for video in videos:
            stem = str(PurePosixPath(video).with_suffix(""))
            yield _row(video, beside.get(stem, {}), listing.root, spec, unknown)

    staged = scratch / "clips.parquet"
    stage(rows(), staged)
    return Rows(frame=pl.scan_parquet(staged), used=()), unknown
