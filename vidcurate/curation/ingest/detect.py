"""Schema detection: find the metadata schema from a table's columns."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vidcurate.curation.ingest.adapters import (
    koala36m,
    miradata,
    opensora,
    openvid,
    panda70m,
    table,
    webdataset,
)
from vidcurate.curation.ingest.files import holds_captioned_images, holds_videos
from vidcurate.curation.ingest.rows import Rows
from vidcurate.curation.ingest.source import Source, find, listed
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """Metadata schema: each entry of `signature` is a set of column names, one of which is required."""

    summary: str
    dataset: str
    signature: tuple[tuple[str, ...], ...]
    files: str
    read: Callable[[Source, IngestSpec, Path], Rows]
    has_bare_names: bool = False
    """whether the metadata lacks the folders in which people have the files (the zips of OpenVid-1M)"""


TABLES: dict[str, TableSchema] = {
    "openvid": TableSchema(
        summary="OpenVid-1M: one row per cut clip",
        dataset="openvid",
        signature=(
            ("video",),
            ("caption",),
            ("aesthetic score",),
            ("motion score",),
            ("temporal consistency score",),
        ),
        files="clips",
        read=openvid.read_rows,
        has_bare_names=True,
    ),
    "miradata-v0": TableSchema(
        summary="MiraData v0: six captions, a place in the source by frames",
        dataset="miradata",
        signature=(("index",), ("video_id",), ("start_frame",), ("end_frame",), ("dense_caption",)),
        files="clips",
        read=miradata.read_v0,
    ),
    "miradata-v1": TableSchema(
        summary="MiraData v1: six captions, clip ids such as 12.10",
        dataset="miradata",
        signature=(("clip_id",), ("timestamp", "file_path"), ("short_caption",), ("dense_caption",)),
        files="clips",
        read=miradata.read_v1,
    ),
    "panda70m": TableSchema(
        summary="Panda-70M: one row per source video, a Python list in each cell",
        dataset="panda70m",
        signature=(("videoID",), ("timestamp",), ("caption",), ("matching_score",)),
        files="sources",
        read=panda70m.read_rows,
    ),
    "koala36m": TableSchema(
        summary="Koala-36M: one row per clip, columns by alias",
        dataset="koala36m",
        signature=(
            koala36m.COLUMNS["clip_id"],
            koala36m.COLUMNS["timestamp"],
            koala36m.CAPTION,
            koala36m.COLUMNS["suitability_score"],
        ),
        files="clips",
        read=koala36m.read_rows,
    ),
    "opensora": TableSchema(
        summary="Open-Sora's training table: path, text, num_frames, height, width",
        dataset="opensora",
        signature=(("path",), ("text",), ("num_frames",), ("height",), ("width",)),
        files="clips",
        read=opensora.read_rows,
    ),
    "table": TableSchema(
        summary="any CSV, TSV, Parquet, JSON or JSON Lines, by a column map; manifests of trainers",
        dataset="table",
        signature=((*table.ALIASES["video_path"], *table.ALIASES["clip_id"]), table.CAPTION),
        files="clips",
        read=table.read_rows,
    ),
}
# What --schema takes, and what each reads.
SCHEMAS: dict[str, str] = {
    "auto": "detected from the columns",
    **{name: schema.summary for name, schema in TABLES.items()},
    "folder": "a folder of videos with clip.txt or clip.json beside each",
    "webdataset": "finished WebDataset shards: a tar or a folder of tars",
}


def is_table(path: Path) -> bool:
    """Return whether `path` is a table file. Raises InputError when it does not exist."""
    if not path.exists():
        raise InputError(f"{path}: no such metadata file or folder.")
    if not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: is neither a regular file nor a folder; copy what it gives into a file.")
    return path.is_file() and path.suffix.lower() != ".tar"


def recognise_path(path: Path) -> tuple[str, str]:
    """Return (schema, reason) for a folder or a tar. Raises InputError when neither fits, or both."""
    if path.is_file():
        return "webdataset", "the metadata is a .tar file"
    tars = len(webdataset.shard_paths(path))
    videos = holds_videos(path)
    if tars and videos:
        raise InputError(f"{path}: contains both tars and videos. Set schema to webdataset or folder.")
    if tars:
        return "webdataset", f"the folder holds .tar files ({tars})"
    if videos:
        return "folder", "the folder holds video files"
    if holds_captioned_images(path):
        return "folder", "the folder holds images with captions"
    raise InputError(
        f"{path}: a folder with neither videos nor .tar files nor captioned images. Name a metadata file."
    )


def recognise_table(source: Source, spec: IngestSpec) -> tuple[str, str]:
    """Return (schema, reason) of a table. Raises InputError when none fits, or more than one."""
    if spec.map:
        return "table", "a column map was given"
    fits: dict[str, list[str]] = {}
    for name, schema in TABLES.items():
        columns_found = [find(source, *names) for names in schema.signature]
        if name != "table" and all(columns_found):
            fits[name] = [column for column in columns_found if column]
    if len(fits) > 1:
        raise InputError(
            f"{source.path}: the columns fit {' and '.join(fits)}; say which schema it is. It has "
            f"{listed(source.dtypes)}."
        )
    if fits:
        name, found = next(iter(fits.items()))
        return name, f"the columns {', '.join(found)} are there"
    clip, caption = (find(source, *names) for names in TABLES["table"].signature)
    if clip and caption:
        return "table", f"{clip} names the clip and {caption} is a caption"
    known = ", ".join(SCHEMAS)
    raise InputError(
        f"{source.path}: no known schema has these columns ({listed(source.dtypes)}). Known: {known}. "
        f"Name the columns of video and caption: {_command(spec, clip, caption)}"
    )


def _command(spec: IngestSpec, clip: str | None, caption: str | None) -> str:
    """Return the command that reads a table of unknown columns; COLUMN where no column is known."""
    videos = f" --videos {shlex.quote(str(spec.videos))}" if spec.videos else ""
    named = {"video": clip or "COLUMN", "caption": caption or "COLUMN"}
    maps = "".join(f" --map {name}={shlex.quote(column)}" for name, column in named.items())
    return f"vidcurate ingest {shlex.quote(str(spec.metadata))}{videos} --out RUN{maps}"
