"""Layout of shards: which clip goes into which shard, decided before writing.

The plan is a pure function of the filtered table and the specification: `make_plan` reads no video (and asks
the disk only for file sizes that the table lacks), so neither the number of workers nor a killed run can
change the plan. Within a fold and level, a keyed hash of the clip ids decides the order, so every shard is a
random sample of its group and a sequential reader sees mixed sources.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidcurate.curation.clip_table import schema, table
from vidcurate.curation.clip_table.own_columns import OwnColumn, own_columns
from vidcurate.errors import InputError
from vidcurate.media.transcode import TranscodeSpec, ffmpeg_version
from vidcurate.recipe.recipe import Recipe
from vidcurate.shards import tar_write
from vidcurate.shards.kept_clips import check_probed, read_clips
from vidcurate.storage.atomic_file import size_of

LAYOUT = "vidcurate-shards-3"  # change this whenever the same plan gives other bytes

_VERDICT = {
    "sample_key", "is_kept", "reject_stage", "reject_rule", "reject_value", "reject_threshold", "review",
    "own_scores_status", "own_scores_problem",
    "ingest_problem", "probe_status", "probe_problem", "missing_bytes", "file_size_bytes",
    "caption_status", "caption_problem",
    # the integrity level changes no shard
    "integrity_level", "probe_findings", "num_damaged_packets", "num_corrupt_frames",
    "num_corrupt_audio_packets", "num_timestamp_gaps", "file_sha256",
}  # fmt: skip
_FILE_FACTS = {
    "container", "codec", "pixel_format", "coded_width", "coded_height", "rotation_degrees",
    "sample_aspect_ratio", "is_variable_fps", "bit_rate", "has_audio", "audio_codec",
}  # fmt: skip
_UNRECONCILED = re.compile(r"_from_(metadata|header|index|decode)$")
ENCODED = ("transcode", "proxy")  # modes that re-encode every clip
WHOLE = ("remux", "copy")  # modes that write whole files
PROXY = {"crf": 20, "gop_frames": 8, "short_side_px": 256}  # defaults of `transcode` with mode: proxy
_PROXY_BYTES_PER_PIXEL = 0.05  # estimate for the plan: upper range of H.264 at these settings
_EXTENSION = re.compile(r"[a-z0-9]{1,8}")
_ROWS_AT_ONCE = 65_536


class ShardSpec(Recipe):
    """Settings of `build-shards`: shard sizes, mode and encoding."""

    max_clips: int = Field(default=1000, ge=1, description="most clips of a shard")
    max_bytes: int = Field(
        default=1_073_741_824,
        ge=1,
        description="most bytes of a shard; a larger clip gets a shard of its own",
    )
    mode: Literal["remux", "copy", "trim", "transcode", "proxy"] = Field(
        default="remux",
        description="remux: the files' own bytes, moved into MP4 where MP4 carries them; copy: the files as "
        "they are; trim: rows with an interval are cut at key frames; "
        "transcode: every clip is encoded anew, exact to the frame; proxy: the same, small, many key frames",
    )
    seed: int = Field(default=0, ge=0, description="another seed is another order of the clips")
    transcode: TranscodeSpec = Field(
        default=TranscodeSpec(),
        description="how mode: transcode and mode: proxy encode; the defaults of mode: proxy are crf 20, "
        "gop_frames 8 and short_side_px 256",
    )

    @model_validator(mode="before")
    @classmethod
    def _proxy_defaults(cls, values: Any) -> Any:
        """Fill in what a recipe with mode: proxy leaves out: small clips, many key frames for fast seeks."""
        if not isinstance(values, dict) or values.get("mode") != "proxy":
            return values
        given = values.get("transcode", {})
        given = given.model_dump(exclude_unset=True) if isinstance(given, TranscodeSpec) else given
        return {**values, "transcode": {**PROXY, **given} if isinstance(given, dict) else given}

    def lasting(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of the shards, as plain JSON values."""
        plain = self.model_dump(mode="json", exclude={"transcode"})
        return plain | ({self.mode: self.transcode.model_dump(mode="json")} if self.mode in ENCODED else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """One planned shard: `rows` are row numbers of the plan's clips in writing order.

    `num_bytes` is the size of the tar: exact for copies, estimated for cut clips from their share of the
    file. `digest` is the hash of all inputs of the shard.
    """

    name: str
    fold: str
    level: int
    rows: NDArray[np.int64]
    num_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """Plan of all shards.

    `clips` are the kept rows of the table of `stage`, `own` their own columns, `columns` those of the JSON.
    """

    clips: pl.DataFrame
    own: dict[str, OwnColumn]
    columns: dict[str, bool]
    shards: tuple[PlannedShard, ...]
    stage: str
    rows_in: int
    digest: str


def shard_name(fold: str, level: int, number: int) -> str:
    """Return a shard's file name; level 0 (no split was run) is left out."""
    return f"{fold}-level{level}-{number:06d}.tar" if level else f"{fold}-{number:06d}.tar"


def extension_of(video_path: str) -> str:
    """Return the lower-case extension of a video's member in the tar; `bin` when the file has none."""
    extension = PurePosixPath(video_path).suffix[1:].lower()
    usable = _EXTENSION.fullmatch(extension) and extension not in ("json", "txt")
    return extension if usable else "bin"


def is_cut(row: Mapping[str, Any], mode: str) -> bool:
    """Return whether `mode` cuts the clip of `row` out of its file, rather than copies the file."""
    return mode in ENCODED or bool(row.get("start_seconds")) or row.get("end_seconds") is not None


def is_remuxed(row: Mapping[str, Any], mode: str) -> bool:
    """Return whether `mode` moves the clip of `row` into an MP4, if MP4 carries what its file holds."""
    return mode == "remux" and extension_of(row["video_path"] or "") != "mp4"


def fact_columns(clips: pl.DataFrame, mode: str) -> dict[str, bool]:
    """Return the columns that every clip's JSON has; True: 64-bit hashes, which the JSON has as hex digits.

    A column that some clip has a value for. Leaves out filter results and values that another column
    reconciles, and facts of the file where `mode` encodes every clip. Every clip has the same keys, as
    Arrow's readers want.
    """
    without = _VERDICT | (_FILE_FACTS if mode in ENCODED else set())
    return {
        name: dtype in (pl.UInt64(), pl.List(pl.UInt64))
        for name, dtype in clips.schema.items()
        if name not in without
        and not (name in schema.COLUMNS and _UNRECONCILED.search(name))
        and clips[name].null_count() < clips.height
    }


def clip_facts(row: Mapping[str, Any], columns: Mapping[str, bool], mode: str) -> dict[str, Any]:
    """Return the contents of a clip's JSON: every known fact that is true of the bytes in the shard.

    `columns` are those of `fact_columns`. Facts of the file (codec, sound, rotation) are null for cut clips.
    """
    without = _FILE_FACTS if is_cut(row, mode) else set()
    return {
        name: None if name in without else _hex(row[name]) if is_hash else row[name]
        for name, is_hash in columns.items()
    }


def _hex(value: Any) -> Any:
    """Return 64-bit hashes as 16 hex digits each: Arrow reads numbers of JSON as signed."""
    if isinstance(value, list):
        return [_hex(one) for one in value]
    return None if value is None else f"{value:016x}"


def to_json(facts: Mapping[str, Any]) -> bytes:
    """Return the bytes of a clip's JSON: sorted keys, UTF-8."""
    return json.dumps(facts, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str).encode()


def _sizes(clips: pl.DataFrame, videos: Path) -> list[int]:
    """Return the size of each clip's file in bytes: from the table, else from the disk, else 0."""
    known = (
        clips["file_size_bytes"].to_list() if "file_size_bytes" in clips.columns else [None] * clips.height
    )
    # 0: writing this clip will fail and report its name
    return [
        (size_of(videos / (name or "")) or 0) if size is None else size
        for size, name in zip(known, clips["video_path"], strict=True)
    ]


def _share(row: Mapping[str, Any], mode: str) -> float:
    """Return the clip's share of the file's duration; 1 when unknown."""
    whole = row.get("duration_seconds_from_header") or row.get("duration_seconds_from_index")
    if not is_cut(row, mode) or not whole:
        return 1.0
    end = row.get("end_seconds")
    wanted = (whole if end is None else end) - (row.get("start_seconds") or 0.0)
    return float(min(1.0, max(0.0, wanted / whole)))


def _proxy_pixels(row: Mapping[str, Any], spec: TranscodeSpec) -> float:
    """Return the number of pixels of a clip's proxy; infinity when its size or length is unknown."""
    height, width, frames = row.get("height"), row.get("width"), row.get("num_frames")
    if not height or not width or not frames:
        return float("inf")
    scale = min(1.0, (spec.short_side_px or min(height, width)) / min(height, width))
    return float(frames * height * width * scale * scale)


def _measure(
    clips: pl.DataFrame, columns: Mapping[str, bool], spec: ShardSpec
) -> Iterator[tuple[int, bytes]]:
    """Yield for each clip its size in a tar in bytes and the digest of its inputs."""
    tool = ffmpeg_version().encode() if spec.mode != "copy" else b""
    for part in clips.iter_slices(_ROWS_AT_ONCE):
        for row in part.iter_rows(named=True):
            if spec.mode in WHOLE and is_cut(row, spec.mode):
                start, end = row.get("start_seconds") or 0.0, row.get("end_seconds")
                until = "its end" if end is None else f"{end:g} s"
                raise InputError(
                    f"clip {row['clip_id']!r} is an interval of its file ({start:g} s to {until}) and "
                    f"mode: {spec.mode} writes whole files. "
                    "Set mode: trim (key frames) or mode: transcode (exact)."
                )
            size = row.pop("_size")
            payload = to_json(clip_facts(row, columns, spec.mode))
            caption = (row.get("caption") or "").encode()
            video = size * _share(row, spec.mode)
            if spec.mode == "proxy":
                video = min(video, _proxy_pixels(row, spec.transcode) * _PROXY_BYTES_PER_PIXEL)
            parts = (len(payload), round(video), len(caption))
            text = payload + f" {size} {row['sample_key']} ".encode()
            is_written_anew = is_cut(row, spec.mode) or is_remuxed(row, spec.mode)
            digest = hashlib.blake2b(text + (tool if is_written_anew else b""), digest_size=16).digest()
            yield sum(tar_write.member_size(part) for part in parts), digest


def mixed_order(
    clip_ids: Sequence[str], folds: Sequence[str], levels: Sequence[int], seed: int
) -> NDArray[np.int64]:
    """Return the row numbers sorted by fold, level and a hash of (seed, clip id)."""
    key = seed.to_bytes(16, "little")
    hashes = b"".join(
        hashlib.blake2b(clip_id.encode(), key=key, digest_size=16).digest() for clip_id in clip_ids
    )
    words = np.frombuffer(hashes, dtype=">u8").reshape(-1, 2)
    place = {fold: number for number, fold in enumerate(sorted(set(folds)))}
    fold_numbers = np.array([place[fold] for fold in folds], dtype=np.int64)
    order = np.lexsort((words[:, 1], words[:, 0], np.asarray(levels, dtype=np.int64), fold_numbers))
    return order.astype(np.int64)


def cut(
    groups: Sequence[tuple[str, int]], sizes: Sequence[int], spec: ShardSpec
) -> Iterator[tuple[str, tuple[str, int], int, int]]:
    """Yield (name, group, first, end) of each shard, for clips in order with their groups and sizes.

    A shard takes clips of one group until the next would pass `max_clips` or `max_bytes`; no shard is empty.
    Raises InputError when a group would need more than a million shards.
    """
    first, total, number = 0, tar_write.END_BYTES, 0
    for row in range(len(groups) + 1):
        ends = row == len(groups) or groups[row] != groups[first]
        if row > first and (ends or row - first == spec.max_clips or total + sizes[row] > spec.max_bytes):
            if number > 999_999:
                raise InputError(
                    f"fold {groups[first][0]}, level {groups[first][1]} needs more than 1,000,000 shards; "
                    "raise max_clips or max_bytes."
                )
            yield shard_name(*groups[first], number), groups[first], first, row
            first, total, number = row, tar_write.END_BYTES, 0 if ends else number + 1
        if row < len(groups):
            total += sizes[row]


def make_plan(
    run: Path, stage: str, spec: ShardSpec, *, videos: Path, is_unprobed_allowed: bool = False
) -> ShardPlan:
    """Return the plan for the kept clips of `stage`.

    Raises StageError when no clip is kept or one was never probed, InputError when an id occurs twice or a
    clip is an interval of its file while `mode` is copy.
    """
    clips, rows_in = read_clips(run, stage)
    if not is_unprobed_allowed:
        check_probed(clips, table.stage_path(run, stage))
    sizes = _sizes(clips, videos)
    columns = fact_columns(clips, spec.mode)
    clips = clips.with_columns(_size=pl.Series(sizes, dtype=pl.Int64))
    measured = list(_measure(clips, columns, spec))
    order = mixed_order(
        clips["clip_id"].to_list(), clips["fold"].to_list(), clips["level"].to_list(), spec.seed
    )
    every = list(zip(clips["fold"].to_list(), clips["level"].to_list(), strict=True))
    groups = [every[row] for row in order]
    in_order = [measured[row] for row in order]
    settings = json.dumps(spec.lasting(), sort_keys=True)
    whole = hashlib.sha256(f"{LAYOUT} {settings}".encode())
    shards: list[PlannedShard] = []
    for name, (fold, level), first, end in cut(groups, [size for size, _ in in_order], spec):
        content = hashlib.sha256(f"{LAYOUT} {spec.mode} {settings if spec.mode in ENCODED else ''}".encode())
        for _, clip_digest in in_order[first:end]:
            content.update(clip_digest)
        whole.update(name.encode() + content.digest())
        shards.append(
            PlannedShard(
                name=name,
                fold=fold,
                level=level,
                rows=order[first:end],
                num_bytes=tar_write.END_BYTES + sum(size for size, _ in in_order[first:end]),
                digest=content.hexdigest(),
            )
        )
    return ShardPlan(
        clips=clips,
        own=own_columns(run),
        columns=columns,
        shards=tuple(shards),
        stage=stage,
        rows_in=rows_in,
        digest=whole.hexdigest(),
    )
