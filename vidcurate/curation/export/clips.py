"""Planned clips of an export: which kept clips, under which key, size and rate."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl

from vidcurate.curation.clip_table import own_columns, table
from vidcurate.curation.clip_table.schema import require
from vidcurate.curation.model_fit.fit_clip import exact_rate, fit_clip
from vidcurate.curation.model_fit.models import check_choice, model_named
from vidcurate.curation.model_fit.summary import FACTS
from vidcurate.errors import InputError, StageError
from vidcurate.media import transcode
from vidcurate.shards import kept_clips
from vidcurate.storage.checksum import file_state

FOLDS = ("train", "validation")
# Names that trainers look for in a folder of clips: a clip of such a name gets another key.
_RESERVED = {"caption", "captions", "prompt", "prompts", "video", "videos", "metadata", "meta", "dataset"}
_OPTIONAL = (
    *("start_seconds", "end_seconds", "is_variable_fps", "captions", "caption_name"),
    *("file_size_bytes", "file_sha256"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSpec:
    """Settings of an export. Without `model` every clip keeps its size, rate and frames.

    `size` and `frames` choose a size class and a frame count of the model, as for `vidcurate fit`. `caption`
    names the caption that trainers of one caption read; None: the main one.
    """

    model: str | None = None
    size: str | None = None
    frames: int | None = None
    caption: str | None = None

    def check(self) -> None:
        """Raise InputError for an unknown model, and for what the model does not take."""
        if self.model is not None:
            check_choice([model_named(self.model)], size=self.size, frames=self.frames)
        elif self.size is not None or self.frames is not None:
            raise InputError("--size and --frames choose among what a model takes. Add --fit MODEL.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size (px), frame count and frame rate (frames/s, as a fraction) that a clip is written with."""

    width: int
    height: int
    num_frames: int
    rate: tuple[int, int]

    @property
    def fps(self) -> Fraction:
        return Fraction(*self.rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClip:
    """Clip to write. `shape` None: as the file is. `source_state`: size and time of the file.

    The file is `video_path` in the folder `videos`. Probe found the size `probed_bytes` and the SHA-256
    `probed_sha256`: None where it did not, the latter also where all sizes and times are those of then.
    `captions` are (name, text), the one that trainers of one caption read first; `own` the own columns.
    """

    key: str
    clip_id: str
    fold: str
    captions: tuple[tuple[str, str], ...]
    own: dict[str, Any]
    videos: str
    video_path: str
    source_state: tuple[int, int] | None
    probed_bytes: int | None
    probed_sha256: str | None
    start_seconds: float | None
    end_seconds: float | None
    is_variable_fps: bool
    shape: Shape | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Clips to write in the order of their keys; `left_out` counts the others by reason.

    `own_dtypes`: polars' name of the type of each own column.
    """

    stage: str
    spec: ExportSpec
    clips: tuple[PlannedClip, ...]
    left_out: dict[str, int]
    own_dtypes: dict[str, str]
    digest: str


def captions_of(row: dict[str, Any], wanted: str | None) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of a row's captions that are not blank, the main one or `wanted` first.

    Empty when that one is missing or blank.
    """
    named = own_columns.captions_of(row)
    first = wanted if wanted is not None else next(iter(named), None)
    if first is None or not (named.get(first) or "").strip():
        return ()
    others = [(name, text) for name, text in named.items() if name != first and text.strip()]
    return (first, named[first]), *others


def _key(sample_key: str) -> str:
    if sample_key.lower() not in _RESERVED:
        return sample_key
    return f"{sample_key}-{hashlib.sha256(sample_key.encode()).hexdigest()[:8]}"


def _shape(row: dict[str, Any], spec: ExportSpec) -> tuple[Shape | None, str | None]:
    """Return (shape, reason against) of one row; the shape is None without a model."""
    if spec.model is None:
        return None, "still_image" if row["num_frames"] == 1 else None
    facts = {name: row[name] for name in FACTS}
    fit = fit_clip(model_named(spec.model), **facts, size=spec.size, frames=spec.frames)
    if fit.reason is not None:
        return None, fit.reason
    rate = exact_rate(fit.fps)
    return Shape(
        width=fit.width,
        height=fit.height,
        num_frames=fit.num_frames,
        rate=(rate.numerator, rate.denominator),
    ), None


def _planned(
    row: dict[str, Any],
    videos: Path,
    shape: Shape | None,
    spec: ExportSpec,
    own: Iterable[str],
    *,
    is_as_probed: bool,
) -> PlannedClip:
    return PlannedClip(
        key=_key(row["sample_key"]),
        clip_id=row["clip_id"],
        fold=row["fold"],
        captions=captions_of(row, spec.caption),
        own={name: row[name] for name in own if row[name] is not None},
        videos=str(videos),
        video_path=row["video_path"],
        source_state=file_state(videos / row["video_path"]),
        probed_bytes=row.get("file_size_bytes"),
        probed_sha256=None if is_as_probed else row.get("file_sha256"),
        start_seconds=row.get("start_seconds"),
        end_seconds=row.get("end_seconds"),
        is_variable_fps=bool(row.get("is_variable_fps")),
        shape=shape,
        seconds=row["duration_seconds"] or 0.0,
    )


def plan(run: Path, spec: ExportSpec, videos: Path) -> Plan:
    """Plan the export of a run's kept clips; read the table and each file's size, decode nothing.

    Raises InputError for settings or a folder that cannot be used, StageError when no clip is left or some
    were never probed, ColumnError.
    """
    spec.check()
    if not videos.is_dir():
        raise InputError(f"{videos}: no such video folder. Set it with --videos FOLDER.")
    videos = videos.resolve()  # however it is spelled, it is the same folder
    as_probed = kept_clips.is_as_probed(run, videos)
    stage = table.newest_stage(run)
    where = table.stage_path(run, stage)
    clips, _ = kept_clips.read_clips(run, stage)
    require(clips.columns, ("clip_id", "video_path", "caption", *FACTS), str(where), "Run `vidcurate probe`.")
    kept_clips.check_probed(clips, where)
    _check_caption(run, spec)
    own = {name: str(column.dtype) for name, column in own_columns.own_columns(run).items()}
    left_out: Counter[str] = Counter()
    found: dict[str, PlannedClip] = {}
    for row in _rows(clips, own):
        shape, reason = _shape(row, spec)
        if reason is None and not captions_of(row, spec.caption):
            reason = "no_caption"
        if reason is None and not row["video_path"]:
            reason = "no_file"
        if reason is not None:
            left_out[reason] += 1
            continue
        if row["fold"] not in FOLDS:
            raise InputError(
                f"{where}: fold {row['fold']!r} of {row['clip_id']!r}; folds: {', '.join(FOLDS)}."
            )
        one = _planned(row, videos, shape, spec, own, is_as_probed=as_probed)
        found[one.key] = one
    if not any(clip.fold == "train" for clip in found.values()):
        counts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(left_out.items()))
        raise StageError(
            f"{where}: none of its {clips.height:,} kept clips can be exported into the fold train "
            f"(left out: {counts or 'none'}). `vidcurate fit` shows why, model by model."
        )
    chosen = tuple(found[key] for key in sorted(found))
    return Plan(
        stage=stage,
        spec=spec,
        clips=chosen,
        left_out=dict(sorted(left_out.items())),
        own_dtypes=own,
        digest=_digest(chosen, spec),
    )


def _check_caption(run: Path, spec: ExportSpec) -> None:
    """Raise InputError for the name of a caption that no clip has."""
    if spec.caption is None:
        return
    names = own_columns.caption_names(run, table.newest_stage(run))
    if spec.caption not in names:
        raise InputError(f"--caption {spec.caption}: no clip has such a caption. Names: {', '.join(names)}.")


def _rows(clips: pl.DataFrame, own: Iterable[str]) -> list[dict[str, Any]]:
    wanted = ("clip_id", "sample_key", "video_path", "caption", "fold", *FACTS, *_OPTIONAL, *own)
    return clips.select(name for name in dict.fromkeys(wanted) if name in clips.columns).to_dicts()


def _digest(clips: tuple[PlannedClip, ...], spec: ExportSpec) -> str:
    """Return a digest of everything that the written files depend on."""
    whole = hashlib.sha256(f"{transcode.ffmpeg_version()}{json.dumps(asdict(spec))}".encode())
    for clip in clips:
        whole.update(json.dumps(asdict(clip), sort_keys=True).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()
