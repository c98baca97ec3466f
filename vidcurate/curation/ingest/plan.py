"""Ingest plan: recognised schema, opened table or listing, digests of small files."""

from dataclasses import dataclass
from pathlib import Path

from vidcurate.curation.clip_table import table
from vidcurate.curation.ingest.adapters import folder, webdataset
from vidcurate.curation.ingest.detect import TABLES, is_table, recognise_path, recognise_table
from vidcurate.curation.ingest.files import Listing, list_folder
from vidcurate.curation.ingest.layouts import open_layout
from vidcurate.curation.ingest.source import Source, open_source
from vidcurate.curation.ingest.spec import IngestSpec
from vidcurate.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What is to be read: the schema and why, the opened source or listing, the digests of what is small."""

    schema: str
    reason: str
    inputs: dict[str, str]
    source: Source | None
    listing: Listing | None
    shards: dict[Path, str]
    alone: list[str]


def files_of(schema: str) -> str:
    return TABLES[schema].files if schema in TABLES else "clips"


def plan_of(spec: IngestSpec, scratch: Path) -> IngestPlan:
    """Recognise the metadata and digest what will be read."""
    source: Source | None
    layout = open_layout(spec, scratch) if spec.schema_name not in ("folder", "webdataset") else None
    if layout is not None:
        source = layout.source
        schema, reason = recognised_table(source, spec)
        reason = f"{layout.reason}; {reason}"
    else:
        schema, reason, source = _recognised(spec, scratch)
    _check_settings(spec, schema)
    if schema == "webdataset":
        if spec.videos is not None:
            raise InputError(f"videos {spec.videos}: shards bring their own videos; leave the setting out.")
        shards = {path: table.digest(path) for path in webdataset.shard_paths(spec.metadata)}
        if not shards:
            raise InputError(f"{spec.metadata}: no .tar file in this folder.")
        inputs = {path.name: digest for path, digest in shards.items()}
        return IngestPlan(
            schema=schema, reason=reason, inputs=inputs, source=None, listing=None, shards=shards, alone=[]
        )
    alone: list[str] = []
    inputs = {}
    if schema == "folder":
        if spec.videos is not None and spec.videos.resolve() != spec.metadata.resolve():
            raise InputError(f"videos {spec.videos}: schema folder reads the videos in {spec.metadata}.")
        videos = list_folder(spec.metadata)
        inputs["captions"], alone = folder.side_cars(videos)
        listing: Listing | None = videos
    else:
        root = spec.videos or (layout.root if layout is not None else None)
        listing = list_folder(root) if root is not None else None
        inputs |= {"metadata": layout.digest} if layout is not None else {}
    inputs["videos"] = listing.digest if listing else "none"
    return IngestPlan(
        schema=schema, reason=reason, inputs=inputs, source=source, listing=listing, shards={}, alone=alone
    )


def _recognised(spec: IngestSpec, scratch: Path) -> tuple[str, str, Source | None]:
    """Return (schema, reason, the opened table or None for a folder or shards)."""
    if spec.schema_name in ("folder", "webdataset"):
        if is_table(spec.metadata):
            raise InputError(
                f"{spec.metadata}: is a table; schema {spec.schema_name} needs a folder or a tar."
            )
        return spec.schema_name, "asked for", None
    if not is_table(spec.metadata):
        if spec.schema_name != "auto":
            raise InputError(f"{spec.metadata}: is no table, and schema {spec.schema_name} needs one.")
        return *recognise_path(spec.metadata), None
    source = open_source(spec, scratch)
    return *recognised_table(source, spec), source


def recognised_table(source: Source, spec: IngestSpec) -> tuple[str, str]:
    """Return (schema, reason) of a table, as asked for or detected. Raises InputError."""
    return (spec.schema_name, "asked for") if spec.schema_name != "auto" else recognise_table(source, spec)


def _check_settings(spec: IngestSpec, schema: str) -> None:
    if spec.map and schema != "table":
        raise InputError(f"map: only schema table takes a column map, not {schema}.")
    if spec.files is not None and schema not in ("miradata-v0", "miradata-v1", "panda70m", "koala36m"):
        raise InputError(
            f"files: {spec.files} can be set for miradata, panda70m and koala36m, not for {schema}."
        )
