"""Stage `export`: one folder of clips, with a manifest for each trainer.

The folder appears whole: clips and manifests are written into a hidden folder beside it, `.NAME.exporting`,
which a stopped export resumes clip by clip, and which is renamed at the end. EXPORT.json (written last)
records the clips, so that another trainer only adds its manifests, without transcoding again.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from vidcurate.curation.export.clips import FOLDS, ExportSpec, Plan, PlannedClip, plan
from vidcurate.curation.export.record import RECORD, check_same, made_record, read_record
from vidcurate.curation.export.trainers.exported import Exported, ExportedClip, Files, Link
from vidcurate.curation.export.trainers.registry import TRAINERS, warnings
from vidcurate.curation.export.write_clip import failed, write_clip
from vidcurate.curation.model_fit.models import model_named
from vidcurate.errors import InputError, StageError
from vidcurate.executor.map_clips import Progress, map_clips_in_parts, no_progress
from vidcurate.executor.parts_folder import ExecutorSpec, PartSummary
from vidcurate.executor.worker_processes import Loss
from vidcurate.storage import atomic_file, lock

_PARTS = ".clips"
_SECONDS_PER_CLIP = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """Counts of an export. `clips_kept`: written by an earlier export into the same folder.

    `by_how` counts linked, remuxed and transcoded clips; `left_out` the kept clips of the run that are not
    exported, by reason; `failed` those that could not be written, by kind. `next_commands`: trainer → script.
    `warnings`: what a trainer would do to the clips without a word.
    """

    out: str
    trainers: list[str]
    clips: int
    clips_kept: int
    hours: float
    size_bytes: int
    by_how: dict[str, int]
    by_fold: dict[str, int]
    left_out: dict[str, int]
    failed: dict[str, int]
    warnings: list[str]
    next_commands: dict[str, str]


def run_export(
    run: Path,
    out: Path,
    trainers: list[str],
    spec: ExportSpec,
    *,
    videos: Path,
    num_workers: int = 1,
    progress: Progress = no_progress,
) -> ExportSummary:
    """Write the kept clips of a run into the folder `out`, with the manifests of `trainers`.

    A stopped export resumes; the same run, files, settings and FFmpeg give the same bytes for any number of
    workers. A folder that an export of the same clips wrote gets the manifests only. Raises InputError,
    StageError, ColumnError, StorageError.
    """
    out = out.absolute()
    _check_target(out)
    planned = plan(run, spec, videos)
    with _alone(out):
        record = read_record(out)
        if record is None:
            record = _write(planned, out, trainers, num_workers, progress)
            kept = 0
        else:
            check_same(record, planned, out)
            kept = len(record["clips"])
            trainers = sorted({*record["trainers"], *trainers})
            _write_manifests(out, out, record, trainers)
    return _summary(out, record | {"trainers": trainers}, kept)


def _check_target(out: Path) -> None:
    """Raise InputError for an OUT that no folder can be renamed to: found before clips are written."""
    for path in (out, *out.parents):
        if path.is_dir():
            break
        if path.is_symlink():
            raise InputError(f"{path}: is a link to nothing. Remove it, or choose another folder.")
        if path.exists():
            raise InputError(f"{path}: is no folder, and an export is one. Choose another.")
    if out.is_symlink() and not any(out.iterdir()):
        raise InputError(f"{out}: is a link to an empty folder. Name the folder itself: {out.resolve()}")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the export folder, which need not exist. Raises StageError when another export holds it."""

    def busy(holder: str) -> StageError:
        return StageError(
            f"{out}: another export ({holder}) is writing this folder. Wait until that command ends, then "
            "run this one again."
        )

    with atomic_file.storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    path = out.parent / f".{out.name}.lock"
    with lock.exclusive(path, wait=False, busy=busy, is_removed=True, is_required=False):
        yield


def _lost(clip: PlannedClip, loss: Loss) -> dict[str, Any]:
    how = "the worker crashed twice" if loss == "crashed" else f"took longer than {_SECONDS_PER_CLIP:g} s"
    return failed(clip, loss, f"{clip.video_path}: {how}.")


def _write_one(clip: PlannedClip, building: Path) -> dict[str, Any]:
    return write_clip(clip, building / clip.fold)


def _write(
    planned: Plan, out: Path, trainers: list[str], num_workers: int, progress: Progress
) -> dict[str, Any]:
    """Write all clips and manifests beside `out`, then rename; return the record."""
    building = out.parent / f".{out.name}.exporting"
    parts = building / _PARTS / planned.digest[:16]
    with atomic_file.storage_errors(building):
        for fold in {clip.fold for clip in planned.clips}:
            (building / fold).mkdir(parents=True, exist_ok=True)
    rows = map_clips_in_parts(
        partial(_write_one, building=building),
        planned.clips,
        on_lost=_lost,
        time_limit_seconds=_SECONDS_PER_CLIP,
        executor=ExecutorSpec(num_workers=num_workers),
        chunk_size=1,
        parts=parts,
        progress=progress,
        reason_of=lambda row: row["problem"],
        video_seconds=[clip.seconds for clip in planned.clips],
    )
    assert not isinstance(rows, PartSummary), "no part was asked for"
    record = made_record(planned, list(rows), trainers)
    if not any(clip["fold"] == "train" for clip in record["clips"]):
        shutil.rmtree(building)
        raise StageError(
            f"{out}: no clip of the fold train was written, so trainers would have nothing to read."
        )
    with atomic_file.storage_errors(out):
        _remove_others(building, record)
        _write_manifests(building, out, record, trainers)
        shutil.rmtree(building / _PARTS)
        if out.exists():
            out.rmdir()  # empty, as `read_record` has checked
        building.replace(out)
        atomic_file.fsync_folder(out.parent)
    return record


def _remove_others(building: Path, record: dict[str, Any]) -> None:
    """Remove files of an earlier, stopped export that this one does not have."""
    wanted = {f"{clip['fold']}/{clip['key']}{end}" for clip in record["clips"] for end in (".mp4", ".txt")}
    for entry in list(building.iterdir()):
        if entry.name in FOLDS:
            for path in list(entry.iterdir()):
                if f"{entry.name}/{path.name}" not in wanted:
                    path.unlink()
        elif entry.name != _PARTS:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for fold in FOLDS:
        if (building / fold).is_dir() and not any((building / fold).iterdir()):
            (building / fold).rmdir()


def _exported(out: Path, record: dict[str, Any]) -> Exported:
    clips = tuple(
        ExportedClip(
            key=clip["key"],
            clip_id=clip["clip_id"],
            fold=clip["fold"],
            captions=tuple(text for _, text in clip["captions"]),
            caption_names=tuple(name for name, _ in clip["captions"]),
            own=clip["own"],
            width=clip["width"],
            height=clip["height"],
            num_frames=clip["num_frames"],
            rate=Fraction(*clip["rate"]),
        )
        for clip in record["clips"]
    )
    name = record["spec"]["model"]
    return Exported(
        root=out,
        clips=clips,
        model=model_named(name) if name else None,
        own_dtypes=record["own_columns"],
    )


def _write_manifests(folder: Path, out: Path, record: dict[str, Any], trainers: list[str]) -> None:
    """Write the files of all `trainers` into `folder`, which is or becomes `out`, then the record."""
    exported = _exported(out, record)
    files: Files = {}
    for name in trainers:
        files |= TRAINERS[name].files(exported)
    with atomic_file.storage_errors(folder):
        for name, content in sorted(files.items()):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Link):
                _symlink(path, content.target)
            else:
                atomic_file.put(path, content)
                if name.endswith(".sh"):
                    path.chmod(0o755)
        atomic_file.put(folder / RECORD, json.dumps(record | {"trainers": sorted(trainers)}, indent=1) + "\n")


def _symlink(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:
        return
    partial_path = atomic_file.partial_path(path)
    partial_path.symlink_to(target)
    partial_path.replace(path)


def _summary(out: Path, record: dict[str, Any], kept: int) -> ExportSummary:
    clips = record["clips"]
    seconds = sum(clip["num_frames"] / Fraction(*clip["rate"]) for clip in clips)
    return ExportSummary(
        out=str(out),
        trainers=record["trainers"],
        clips=len(clips),
        clips_kept=kept,
        hours=round(float(seconds) / 3600, 4),
        size_bytes=sum(clip["size_bytes"] for clip in clips),
        by_how=dict(sorted(Counter(clip["how"] for clip in clips).items())),
        by_fold=dict(sorted(Counter(clip["fold"] for clip in clips).items())),
        left_out=record["left_out"],
        failed=dict(sorted(Counter(one["kind"] for one in record["failed"]).items())),
        warnings=warnings(record["trainers"], _exported(out, record)),
        next_commands={name: str(out / TRAINERS[name].script) for name in record["trainers"]},
    )
