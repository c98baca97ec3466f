"""From cuts to intervals: pure arithmetic on times in seconds."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from vidcurate.scenes.spec import SceneSpec

_SLACK_SECONDS = 1e-3  # times are rounded to microseconds, ids to milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """The intervals [start, end) that become clips, and how many scenes there were and were left out."""

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
    """Return the clips of a video that is shown from `start` to `end` and cuts at `cuts` (rising, inside).

    The margin is taken off at cuts only, not at the video's ends.
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

    It does not depend on the other scenes, so that another threshold leaves the ids of equal clips alone.
    """
    return f"{source}-{round(start * 1000):09d}-{round(end * 1000):09d}"
