"""Folder adapter: videos with captions next to them, `clip.txt` or `clip.json`.

A `.json` may hold any of the columns, and own ones; each line of a `.txt` is a caption. Where both are there,
the caption is that of the `.json` and, when it has none, the text. Images with a caption are clips too.
"""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from vidcurate.curation.clip_table.own_columns import MAIN, captions_of
from vidcurate.curation.ingest import captions
from vidcurate.curation.ingest.adapters.table import json_row
from vidcurate.curation.ingest.files import IMAGE_SUFFIXES, Listing
from vidcurate.curation.ingest.rows import Rows
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.staged_rows import stage

SIDE_CARS = (".json", ".txt")


def _stems(listing: Listing) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the videos, and {path without extension: {.json or .txt: path}} of what lies beside them.

    An image with a caption beside it counts as a video of one frame, unless a video has the same name.
    """
    readable = ~pl.col("leaves") & pl.col("size_bytes").is_not_null()
    paths: list[str] = listing.files.filter(readable)["path"].to_list()
    beside: dict[str, dict[str, str]] = {}
    for path in paths:
        pure = PurePosixPath(path)
        if pure.suffix.lower() in SIDE_CARS:
            beside.setdefault(str(pure.with_suffix("")), {})[pure.suffix.lower()] = path
    videos: list[str] = listing.files.filter("is_video")["path"].to_list()
    stems = {str(PurePosixPath(video).with_suffix("")) for video in videos}
    for path in paths:
        stem = str(PurePosixPath(path).with_suffix(""))
        if path.lower().endswith(IMAGE_SUFFIXES) and stem in beside and stem not in stems:
            videos.append(path)
            stems.add(stem)
    return sorted(videos), beside


def side_cars(listing: Listing) -> tuple[str, list[str]]:
    """Return (digest of the contents of all side-cars, the side-cars that no video stands beside)."""
    videos, beside = _stems(listing)
    stems = {str(PurePosixPath(video).with_suffix("")) for video in videos}
    whole = hashlib.sha256()
    alone: list[str] = []
    for stem in sorted(beside):
        for path in beside[stem].values():
            try:
                content = (listing.root / path).read_bytes()
            except OSError as error:  # `read_rows` names it beside its video
                content = type(error).__name__.encode()
            whole.update(f"{path}\0".encode() + content)
        if stem not in stems:
            alone.extend(beside[stem].values())
    return whole.hexdigest(), alone


def text_captions(text: str, *, by_line: bool) -> dict[str, Any]:
    """Return caption, captions and caption_name of a text: each of its lines is a caption, or the whole."""
    lines = [line.strip() for line in io.StringIO(text, newline=None) if line.strip()]
    return captions.named({MAIN: lines if by_line and len(lines) > 1 else text}, MAIN)


def described(document: str | None, text: str | None, spec: IngestSpec) -> dict[str, Any]:
    """Return the row of a clip's JSON and text: the caption of the JSON goes before that of the text.

    A text that is none of the JSON's captions is one more, named `text`. Raises ValueError for JSON that is
    no object.
    """
    row = json_row(document, spec.caption_column) if document is not None else {}
    if not text:
        return row
    if not row.get("caption"):
        return {**row, **text_captions(text, by_line=spec.caption_lines)}
    known = captions_of(row)
    if text in known.values():
        return row
    main = row.get("caption_name") or MAIN
    return {**row, **captions.named({**known, "text": text}, main)}


def _row(video: str, beside: dict[str, str], root: Path, spec: IngestSpec) -> dict[str, Any]:
    bad = None
    words: dict[str, str] = {}
    for suffix, path in sorted(beside.items()):
        try:
            words[suffix] = (root / path).read_text(encoding=spec.encoding).removeprefix("\ufeff").strip()
        except (OSError, UnicodeError) as error:
            bad = f"{path}={type(error).__name__}"
    try:
        row = described(words.get(".json"), words.get(".txt"), spec)
    except ValueError:
        bad = f"{beside['.json']}=not a JSON object"
        row = described(None, words.get(".txt"), spec)
    return {**row, "video_path": video, "bad": bad}


def read_rows(listing: Listing, spec: IngestSpec, scratch: Path) -> Rows:
    """Return one row per video of the folder, and per image with a caption, staged in `scratch`."""
    videos, beside = _stems(listing)

    def rows() -> Iterator[dict[str, Any]]:
        for video in videos:
            stem = str(PurePosixPath(video).with_suffix(""))
            yield _row(video, beside.get(stem, {}), listing.root, spec)

    return stage(rows(), scratch)
