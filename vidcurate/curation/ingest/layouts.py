"""Layouts of other tools: files whose rows are gathered into one table first.

`open_layout` finds what a path is: a manifest inside a folder (Hugging Face's videofolder, one per split
too; captions.json, videos2caption.json, dataset.csv, …), cosmos-curate's metas, prompts beside videos, a JSON
array or map, data-juicer. The rows are written as JSON Lines to the scratch folder and read as any table.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.ingest.adapters import cosmos, manifests
from vidcurate.curation.ingest.adapters.table import ALIASES
from vidcurate.curation.ingest.source import Source, find, json_lines, open_source
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.curation.ingest.staged_rows import json_line
from vidcurate.errors import InputError, StorageError
from vidcurate.storage.checksum import sha256_file

_MANIFESTS = tuple(
    f"{name}{suffix}"
    for name in ("metadata", "dataset", "captions", "meta", "videos2caption")
    for suffix in (".csv", ".jsonl", ".json", ".parquet")
)
_OF_SPLITS = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_FOLDERS = ("", "videos", "clips")  # where the paths of a manifest may begin, below its own folder
_LOOKED_AT = 50
_MOST_SPLITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """An opened layout: `root` is the folder that paths are relative to (None: not known), `digest` covers
    the files that were read."""

    source: Source
    reason: str
    root: Path | None
    digest: str


def open_layout(spec: IngestSpec, scratch: Path) -> Layout | None:
    """Return the layout at the metadata's path, None where there is none.

    Raises InputError for a manifest that cannot be read, or several in one folder; StorageError.
    """
    path = spec.metadata
    if path.is_file():
        rows = _rows_of_file(path, spec, scratch)
        if rows is None:
            return None
        reason, found = rows
        return _gathered(path, found, [path], reason=reason, root=None, scratch=scratch)
    if not path.is_dir() or any(path.glob("*.tar")):
        return None
    if files := cosmos.files_of(path):
        reason = f"the folder holds metas of cosmos-curate ({len(files)})"
        return _gathered(path, cosmos.rows(path, files), files, reason=reason, root=path, scratch=scratch)
    if found_manifests := _manifests(path):
        return _of_manifests(path, found_manifests, spec, scratch)
    if pair := manifests.pair_of(path):
        reason = f"the folder holds {pair[0].name} and {pair[1].name}"
        found = manifests.pair_rows(*pair, encoding=spec.encoding)
        return _gathered(path, found, list(pair), reason=reason, root=path, scratch=scratch)
    return None


def _rows_of_file(path: Path, spec: IngestSpec, scratch: Path) -> tuple[str, Iterator[dict[str, Any]]] | None:
    """Return (reason, rows) of a JSON file or data-juicer's JSON Lines, None for another table."""
    if path.suffix.lower() == ".json":
        return "a JSON file", manifests.json_rows(path, spec.encoding)
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        source = open_source(spec, scratch)
        if {"videos", "text"} <= source.dtypes.keys() and isinstance(source.dtypes["videos"], pl.List):
            return "videos and text of data-juicer", manifests.data_juicer_rows(path, spec.encoding)
    return None


def _manifests(folder: Path) -> list[Path]:
    """Return the manifest of a folder, or those of its sub-folders (splits, two deep), one each.

    Raises InputError when one folder has several.
    """
    try:
        below = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and entry.name[0] != "."]
        deeper = [sub for entry in below[:_MOST_SPLITS] for sub in sorted(entry.iterdir()) if sub.is_dir()]
    except OSError as error:
        place = error.filename or folder
        raise InputError(f"{place}: the folder cannot be read ({error.strerror}).") from error
    levels = (([folder], _MANIFESTS), (below, _OF_SPLITS), (deeper, _OF_SPLITS))
    for level, names in levels:
        found: list[Path] = []
        for place in level[:_MOST_SPLITS]:
            here = [path for name in names if (path := place / name).is_file() and not _is_side_car(path)]
            if len(here) > 1:
                raise InputError(
                    f"{place}: holds {' and '.join(path.name for path in here)}. Name the one to read: "
                    f"vidcurate ingest {here[0]} --videos {place}"
                )
            found += here
        if found:
            return found
    return []


def _is_side_car(path: Path) -> bool:
    """Return whether a file such as captions.json lies beside a video captions.mp4."""
    return any(path.with_suffix(suffix).is_file() for suffix in (".mp4", ".mov", ".mkv", ".webm"))


def _of_manifests(folder: Path, paths: list[Path], spec: IngestSpec, scratch: Path) -> Layout:
    """Open the manifests of a folder: one as it is, several (splits) as one table of paths below `folder`."""
    reason = f"the folder holds {', '.join(str(path.relative_to(folder)) for path in paths[:4])}"
    if len(paths) == 1 and paths[0].suffix != ".json":
        source = _opened(paths[0], spec, scratch)
        return Layout(
            source=source,
            reason=reason,
            root=_root_of(paths[0], _names(source)),
            digest=sha256_file(paths[0]),
        )
    opened = [
        json_lines(path, _written(manifests.json_rows(path, spec.encoding), scratch / f"{number}.jsonl"))
        if path.suffix == ".json"
        else _opened(path, spec, scratch)
        for number, path in enumerate(paths)
    ]
    if len(paths) == 1:
        root = _root_of(paths[0], _names(opened[0]))
        return Layout(source=opened[0], reason=reason, root=root, digest=sha256_file(paths[0]))
    rows = itertools.chain.from_iterable(
        _below(folder, path, source) for path, source in zip(paths, opened, strict=True)
    )
    layout = _gathered(folder, rows, paths, reason=reason, root=folder, scratch=scratch)
    is_text = all(source.is_text for source in opened)
    return replace(layout, source=replace(layout.source, is_text=is_text))


def _opened(path: Path, spec: IngestSpec, scratch: Path) -> Source:
    return open_source(spec.model_copy(update={"metadata": path}), scratch)


def _names(source: Source) -> list[str]:
    """Return the first file names of a table; [] where no column names the file."""
    column = find(source, *ALIASES["video_path"])
    if column is None:
        return []
    names = source.frame.select(pl.nth(list(source.dtypes).index(column))).head(_LOOKED_AT).collect()
    return [str(name) for name in names.to_series().drop_nulls()]


def _root_of(path: Path, names: list[str]) -> Path:
    """Return the folder that a manifest's names are relative to: its own, or `videos` or `clips` in it."""
    for start in _FOLDERS:
        if any((path.parent / start / name).is_file() for name in names):
            return path.parent / start
    return path.parent


def _below(folder: Path, path: Path, source: Source) -> Iterator[dict[str, Any]]:
    """Yield a manifest's rows with their paths below `folder`."""
    column = find(source, *ALIASES["video_path"]) or ""
    start = _root_of(path, _names(source)).relative_to(folder).as_posix()
    for row in source.frame.collect().iter_rows(named=True):
        name = row.get(column)
        yield {**row, column: f"{start}/{name}"} if name and not str(name).startswith("/") else row


def _written(rows: Iterable[dict[str, Any]], path: Path) -> Path:
    """Write rows as JSON Lines to `path` and return it. Raises StorageError."""
    try:
        with path.open("wb") as file:
            for row in rows:
                file.write(json_line(row))
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error
    return path


def _gathered(
    path: Path,
    rows: Iterable[dict[str, Any]],
    files: list[Path],
    *,
    reason: str,
    root: Path | None,
    scratch: Path,
) -> Layout:
    """Write rows as JSON Lines and open them. Raises InputError when there is none, StorageError."""
    copy = _written(rows, scratch / "layout.jsonl")
    if not copy.stat().st_size:
        raise InputError(f"{path}: {reason}, and no row; there is nothing to take in.")
    whole = hashlib.sha256()
    for one in files:
        whole.update(f"{one.name}\0{sha256_file(one)}\n".encode())
    return Layout(source=json_lines(path, copy), reason=reason, root=root, digest=whole.hexdigest())
