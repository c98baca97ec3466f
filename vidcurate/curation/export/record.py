"""EXPORT.json: record of a finished export, compared with the planned one.

Another trainer only adds its manifests, which are made from the record. A record may have been edited by
hand or cut, so all that the plan knows has to be as planned, and the facts of the written files have to be
as planned or as their headers say.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vidcurate.curation.export.clips import Plan, PlannedClip, Shape
from vidcurate.curation.export.trainers.registry import TRAINERS
from vidcurate.curation.export.write_clip import is_shape_of
from vidcurate.errors import InputError, StorageError
from vidcurate.storage import atomic_file, regular_file

RECORD = "EXPORT.json"
_VERSION = 1
_HOW = ("linked", "remuxed", "transcoded")
_MOST = 1 << 31  # of a width, height, frame count or term of a rate
_KIND = re.compile(r"[a-z][a-z_]*")
_FACTS = ("how", "num_frames", "rate", "width", "height", "size_bytes")


def made_record(planned: Plan, rows: list[dict[str, Any]], trainers: list[str]) -> dict[str, Any]:
    """Return the record of written clips; `rows` are those of `write_clip`, one for each planned clip."""
    clips, problems = [], []
    for clip, row in zip(planned.clips, rows, strict=True):
        if row["problem"] is None:
            clips.append({**_about(clip), **_content(clip), **{name: row[name] for name in _FACTS}})
        else:
            problems.append({**_about(clip), "kind": row["kind"], "problem": row["problem"]})
    head = _head(planned)
    return {
        **{name: head[name] for name in ("version", "digest", "stage", "spec")},
        "trainers": trainers,
        **{name: head[name] for name in ("left_out", "own_columns")},
        "clips": clips,
        "failed": problems,
    }


def read_record(out: Path) -> dict[str, Any] | None:
    """Return the record of a finished export, None for a folder that is absent or empty.

    Raises InputError for a folder of anything else, and for a record that is damaged or cannot be read.
    """
    try:
        found = json.loads(regular_file.read_bytes(out / RECORD))
        if found["version"] != _VERSION or not isinstance(found["clips"], list):
            raise ValueError
    except FileNotFoundError:
        if out.exists() and any(out.iterdir()):
            raise InputError(
                f"{out}: exists and is no export ({RECORD} is missing). Choose another folder."
            ) from None
        return None
    except OSError as error:
        raise InputError(f"{out / RECORD}: cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(out) from error
    return dict(found)


def check_same(record: dict[str, Any], planned: Plan, out: Path) -> None:
    """Raise InputError for a folder of other clips or settings, StorageError for a clip that changed.

    A record that differs from the plan otherwise, or has impossible facts, is damaged: InputError too.
    """
    try:
        if record["digest"] != planned.digest:
            raise _other(record, planned, out)
        shapes = _check_content(record, planned)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(out) from error
    for clip, shape in zip(record["clips"], shapes, strict=True):
        path = out / clip["fold"] / f"{clip['key']}.mp4"
        if atomic_file.size_of(path) != clip["size_bytes"]:
            raise StorageError(f"{path}: missing or changed since the export. Remove {out} and export again.")
        facts = Shape(
            width=clip["width"],
            height=clip["height"],
            num_frames=clip["num_frames"],
            rate=(clip["rate"][0], clip["rate"][1]),
        )
        if not (is_shape_of(path, facts) if shape is None else facts == shape):
            raise _damaged(out)


def _other(record: dict[str, Any], planned: Plan, out: Path) -> InputError:
    was, now = (
        f"--fit {one['model']}" if one["model"] else "no --fit"
        for one in (record["spec"], asdict(planned.spec))
    )
    why = f"made with {was}, this is {now}" if was != now else "made from other clips, captions or files"
    return InputError(
        f"{out}: holds another export ({why}). Choose another folder, or remove this one first."
    )


def _check_content(record: dict[str, Any], planned: Plan) -> list[Shape | None]:
    """Return the planned shape of each written clip, in the record's order.

    Raises ValueError, KeyError or TypeError for a record that no export of the plan has written.
    """
    head = _head(planned)
    if record.keys() != {*head, "trainers", "clips", "failed"}:
        raise ValueError("other keys")
    if not _same({name: record[name] for name in head}, head):
        raise ValueError("other settings or counts")
    trainers = record["trainers"]
    if not isinstance(trainers, list) or not set(trainers) <= set(TRAINERS):
        raise ValueError("unknown trainers")
    if not trainers or len(set(trainers)) < len(trainers):
        raise ValueError("no trainers, or one twice")
    by_key = {(clip.fold, clip.key): clip for clip in planned.clips}
    shapes = []
    for one in (*record["clips"], *record["failed"]):
        clip = by_key.pop((one["fold"], one["key"]))
        is_written = "how" in one
        wanted = _about(clip) | (_content(clip) if is_written else {})
        if one.keys() != {*wanted, *(_FACTS if is_written else ("kind", "problem"))}:
            raise ValueError("other keys")
        if not _same({name: one[name] for name in wanted}, wanted):
            raise ValueError("another clip")
        shapes.append(clip.shape)
    if by_key:
        raise ValueError("a clip is missing")
    for one in record["clips"]:
        counts = (one["num_frames"], one["width"], one["height"], *one["rate"])
        if len(counts) != 5 or not all(type(value) is int and 0 < value < _MOST for value in counts):
            raise ValueError("impossible facts")
        if one["how"] not in _HOW or type(one["size_bytes"]) is not int:
            raise ValueError("impossible facts")
    for one in record["failed"]:
        if not (isinstance(one["problem"], str) and one["problem"] and _KIND.fullmatch(one["kind"])):
            raise ValueError("no kind or no problem")
    return shapes[: len(record["clips"])]


def _head(planned: Plan) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "digest": planned.digest,
        "stage": planned.stage,
        "spec": asdict(planned.spec),
        "left_out": planned.left_out,
        "own_columns": planned.own_dtypes,
    }


def _about(clip: PlannedClip) -> dict[str, Any]:
    return {"key": clip.key, "clip_id": clip.clip_id, "fold": clip.fold}


def _content(clip: PlannedClip) -> dict[str, Any]:
    return {"captions": clip.captions, "own": clip.own}


def _same(found: Any, wanted: Any) -> bool:
    """Return whether both are one value as JSON, which has no tuples, and in which NaN equals itself."""
    return json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def _damaged(out: Path) -> InputError:
    return InputError(f"{out / RECORD}: damaged, or of another version. Choose another folder.")
