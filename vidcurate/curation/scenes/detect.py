"""Scene cuts of one video, and the clips that they give."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from vidcurate.curation.frame_scores.cuts import Cuts
from vidcurate.curation.frame_scores.decode_once import Walked, walk
from vidcurate.curation.frame_scores.spec import FramesSpec
from vidcurate.curation.scenes.spec import SceneSpec
from vidcurate.errors import MediaError
from vidcurate.media.headers import frame_rate, read_header_and_index

_SHORT_SIDE_PX = FramesSpec().short_side_px


def detect(item: dict[str, Any], spec: SceneSpec) -> dict[str, Any]:
    """Detect the cuts of one video: `cuts` and `end_seconds` in the file's time, and header facts.

    `item` has path, start_seconds and end_seconds (None: the file's). An undecodable video gives a `problem`,
    not an error. The detector is the one that scores clips.
    """
    path = Path(item["path"])
    start = item["start_seconds"] or 0.0
    walked = Walked()
    cuts = Cuts(spec.cut_threshold, spec.cut_window_frames, spec.min_scene_seconds)
    try:
        header, index = read_header_and_index(path)
        for look in walk(
            path,
            item["start_seconds"],
            item["end_seconds"],
            short_side_px=_SHORT_SIDE_PX,
            details_per_second=0,
            walked=walked,
        ):
            cuts.see(look)
    except MediaError as error:
        return {"problem": error.kind, "message": str(error)}
    found = cuts.finish(walked.end_seconds)["cut_seconds"]
    return {
        "problem": None,
        "cuts": [round(start + cut, 6) for cut in found],
        "end_seconds": round(start + walked.end_seconds, 6),
        "width": header.width,
        "height": header.height,
        "fps": frame_rate(header, index),
    }


_SLACK_SECONDS = 1e-3  # times are rounded to microseconds, ids to milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """Intervals [start, end) that become clips, with the number of scenes and of skipped ones."""

    clips: tuple[tuple[float, float], ...]
    num_scenes: int
    num_too_short: int


def _pieces(start: float, end: float, spec: SceneSpec) -> list[tuple[float, float]]:
    length = end - start
    if spec.max_seconds is None or length <= spec.max_seconds + _SLACK_SECONDS:
        return [(start, end)]
    if spec.longer == "truncate":
        return [(start, start + spec.max_seconds)]
    count = ceil((length - _SLACK_SECONDS) / spec.max_seconds)
    step = length / count
    borders = [start + number * step for number in range(count)] + [end]
    return list(itertools.pairwise(borders))


def plan_scenes(start: float, end: float, cuts: Sequence[float], spec: SceneSpec) -> Scenes:
    """Return the clips of a video from `start` to `end` with cuts at `cuts` (rising, inside).

    The margin applies at cuts only, not at the video's ends.
    """
    borders = [start, *cuts, end]
    clips: list[tuple[float, float]] = []
    too_short = 0
    for number, (begin, finish) in enumerate(itertools.pairwise(borders)):
        begin += spec.margin_seconds if number > 0 else 0.0
        finish -= spec.margin_seconds if number < len(cuts) else 0.0
        kept = [piece for piece in _pieces(begin, finish, spec) if _is_long_enough(piece, spec)]
        too_short += not kept
        clips += kept
    return Scenes(
        clips=tuple((round(a, 6), round(b, 6)) for a, b in clips),
        num_scenes=len(borders) - 1,
        num_too_short=too_short,
    )


def _is_long_enough(piece: tuple[float, float], spec: SceneSpec) -> bool:
    length = piece[1] - piece[0]
    return length > 0 and length >= spec.min_seconds - _SLACK_SECONDS


def clip_id(source: str, start: float, end: float) -> str:
    """Return the id of a clip: its source and its interval in ms, such as `film-000012345-000017890`.

    The id does not depend on other scenes: the same clip keeps its id under another threshold.
    """
    return f"{source}-{round(start * 1000):09d}-{round(end * 1000):09d}"
