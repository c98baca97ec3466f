"""Contact sheets: choose sample clips, and embed a strip of three frames as JPEG."""

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup
from numpy.typing import NDArray

from vidcurate.errors import MediaError
from vidcurate.media import decode, encode

STRIP_HEIGHT = 96
FRAMES = 3
_GAP = 2
_MOST_FRAMES_AT_ONCE = (
    96  # up to this length one read decodes the clip; in longer clips each frame needs a seek
)
_SECONDS = 20.0
_NO_FILE = ("missing_file", "path_outside_root")
COLUMNS = (
    "clip_id",
    "video_path",
    "caption",
    "width",
    "height",
    "fps",
    "num_frames",
    "duration_seconds",
    "codec",
    "start_seconds",
    "noun_count",
    "level",
    "fold",
    "ingest_problem",
    "is_kept",
    "reject_stage",
    "reject_rule",
    "reject_value",
    "reject_threshold",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Card of one clip. `image` is a data URI, or None with the reason in `why`."""

    clip: Mapping[str, Any]
    image: str | None
    image_width: int
    image_height: int
    why: str | None


def _evenly(rows: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return `count` rows evenly spaced over the table, including the first and the last."""
    if rows.height <= count:
        return rows
    places = np.unique(np.linspace(0, rows.height - 1, count).round().astype(np.int64))
    return rows.select(pl.all().gather(places))


def choose_kept(checked: pl.LazyFrame, count: int) -> list[str]:
    """Return ids of kept clips: as many of each level, spread from the easiest to the hardest."""
    columns = checked.collect_schema().names()
    order = [name for name in ("level", "noun_count", "clip_id") if name in columns]
    kept = checked.filter("is_kept").select(order).sort(order).collect()
    if "level" not in columns:
        return _evenly(kept, count)["clip_id"].to_list()
    parts = kept.partition_by("level", maintain_order=True)
    share = max(1, count // max(len(parts), 1))
    return [clip_id for part in parts for clip_id in _evenly(part, share)["clip_id"]][:count]


def choose_rejected(checked: pl.LazyFrame, rules: Sequence[str], count: int) -> list[str]:
    """Return ids of rejected clips: one of each rule in turn, in the rules' order."""
    rows = (
        checked.filter(~pl.col("is_kept"))
        .select("clip_id", "reject_rule")
        .sort("clip_id")
        .group_by("reject_rule", maintain_order=True)
        .head(count)
        .collect()
    )
    rules = list(dict.fromkeys(rules))  # two stages may have rules of the same name
    by_rule = {rule: rows.filter(pl.col("reject_rule") == rule)["clip_id"].to_list() for rule in rules}
    turns = max((len(ids) for ids in by_rule.values()), default=0)
    chosen = [(turn, rule) for turn in range(turns) for rule in rules if turn < len(by_rule[rule])][:count]
    # Grouped by rule.
    return [by_rule[rule][turn] for rule in rules for turn, other in chosen if other == rule]


def _size(clip: Mapping[str, Any]) -> tuple[int, int]:
    """Return (height, width) of a frame in the strip, even numbers."""
    width, height = clip.get("width") or 16, clip.get("height") or 9
    wide = STRIP_HEIGHT * width / height
    return STRIP_HEIGHT, int(min(max(wide, 40), 240)) // 2 * 2


def _frame_numbers(clip: Mapping[str, Any], frames: int = FRAMES) -> list[int]:
    """Return the frames in the middle of each of `frames` equal parts of the clip."""
    count = clip.get("num_frames") or 1
    first = round((clip.get("start_seconds") or 0.0) * (clip.get("fps") or 0.0))
    return sorted({first + count * (2 * part + 1) // (2 * frames) for part in range(frames)})


def _read(path: Path, numbers: list[int], height: int, width: int) -> NDArray[np.uint8]:
    def read(some: list[int]) -> NDArray[np.uint8]:
        return decode.read_frames(
            path, some, height=height, width=width, time_limit_seconds=_SECONDS, accept_corrupt=True
        )

    if numbers[-1] < _MOST_FRAMES_AT_ONCE:
        return read(numbers)
    return np.concatenate([read([number]) for number in numbers])


def _strip(path: Path, clip: Mapping[str, Any], frames: int) -> tuple[NDArray[np.uint8] | None, str | None]:
    """Return the frames of the clip side by side, or None and why; a broken file shows what still decodes."""
    height, width = _size(clip)
    numbers = _frame_numbers(clip, frames)
    why: str | None = None
    for wanted in (numbers, [0]):
        try:
            pictures = _read(path, wanted, height, width)
        except MediaError as error:
            why = why or str(error)
            continue
        strip = np.zeros((height, len(pictures) * (width + _GAP) - _GAP, 3), dtype=np.uint8)
        for place, frame in enumerate(pictures):
            left = place * (width + _GAP)
            strip[:, left : left + width] = frame
        return strip, why
    return None, why


def inside(videos: Path, name: str) -> Path | None:
    """Return the file below `videos`, None when the name leaves the folder."""
    path = videos / name
    # realpath, as `resolve` raises RuntimeError for a link to itself before Python 3.13
    return path if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(videos)) else None


def card(clip: Mapping[str, Any], videos: Path | None, *, frames: int = FRAMES) -> Card:
    """Return the card of one row of the table, with a picture of `frames` frames."""
    strip: NDArray[np.uint8] | None = None
    why: str | None = None
    if videos is None:
        why = "no folder of videos was given"
    elif clip.get("ingest_problem") in _NO_FILE or not clip.get("video_path"):
        why = "there is no file"
    else:
        path = inside(videos, clip["video_path"])
        strip, why = _strip(path, clip, frames) if path else (None, "the path leaves the folder of videos")
    image = None
    if strip is not None:
        data = base64.b64encode(encode.encode_image(_even(strip))).decode()
        image = Markup(f"data:image/jpeg;base64,{data}")  # base64 holds nothing to escape
    height, width = strip.shape[:2] if strip is not None else (STRIP_HEIGHT, 0)
    return Card(clip=clip, image=image, image_width=width, image_height=height, why=why)


def _even(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the image cut to an even width, as 4:2:0 needs."""
    return image[:, : image.shape[1] // 2 * 2]


def clips(checked: pl.LazyFrame, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of `ids`, in that order, with the columns that a card shows."""
    names = [name for name in COLUMNS if name in checked.collect_schema().names()]
    rows = checked.filter(pl.col("clip_id").is_in(list(ids))).select(names).collect()
    by_id = {row["clip_id"]: row for row in rows.iter_rows(named=True)}
    return [{**dict.fromkeys(COLUMNS), **by_id[clip_id]} for clip_id in ids]
