"""Manifest of a latent folder: what was encoded, with what, and each file.

A manifest may be edited, cut or forged: what other modules read of it is checked.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from vidcurate.errors import ShardError
from vidcurate.storage import json_shape, regular_file
from vidcurate.storage.json_shape import Count, FileName

FORMAT = "vidcurate-latents-1"
MANIFEST_NAME = "manifest.json"


@dataclass
class _Shard:
    name: FileName
    table: str
    digest: str
    bytes: Count


@dataclass
class _Table:
    bytes: Count


@dataclass
class _Shape:
    num_frames: PositiveInt
    height: PositiveInt
    width: PositiveInt
    frame_stride: PositiveInt


@dataclass
class _Clips:
    structure_fingerprint: str
    content_fingerprint: str


@dataclass
class _Kept:
    variance: bool


@dataclass
class Request:
    """What is encoded, with what: in a manifest, and in the plan of a folder under construction."""

    clips: _Clips
    encoders: dict[str, Any]
    captions: list[str]
    kept: _Kept
    weights: dict[str, Any]


@dataclass
class _Manifest(Request):
    shapes: list[_Shape]
    totals: dict[str, Any]
    tables: dict[FileName, _Table]
    shards: list[_Shard]
    empty_shards: dict[FileName, str]


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Return the folder's manifest, None without one.

    Raises ShardError for another file, and for one that was edited or cut.
    """
    file = path / MANIFEST_NAME
    try:
        data = regular_file.read_bytes(file)
        manifest = json.loads(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ShardError(f"{file}: cannot be read as JSON ({error}).") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        kind = manifest.get("format") if isinstance(manifest, dict) else None
        hint = " It is the manifest of clips: give it as data.shards." if "shards" in str(kind) else ""
        raise ShardError(f"{file}: its format is {kind!r}, this version reads {FORMAT!r}.{hint}")
    try:
        json_shape.parse(data, _Manifest)
    except ValueError as error:
        raise ShardError(
            f"{file}: {error}: the file was edited or cut. Copy it again from where the latents were made."
        ) from error
    return manifest
