"""Own scores of one clip, in a worker: numbers by column, or why there are none."""

import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidcurate.curation.frame_scores.sample import read_sample
from vidcurate.curation.own_scores.load import OwnScore, function_of
from vidcurate.errors import MediaError
from vidcurate.storage import download


def score_clip(item: Mapping[str, Any], scores: Sequence[OwnScore]) -> dict[str, Any]:
    """Return the clip's status, problem and `scores`: column → float, or null for no number.

    `item` has the clip's `row` and the `path` of its file. What a function raises is the clip's problem, and
    the other functions still run.
    """
    found: dict[str, float | None] = {}
    problems: list[tuple[str, str]] = []
    for score in scores:
        try:
            found |= _columns(score, function_of(score.source)(_argument(item, score)))
        except MediaError as error:
            problems.append((error.kind, f"{score.name}: {error}"))
        except Exception as error:  # noqa: BLE001 - the user's own code
            problems.append(("error", f"{score.name}: {type(error).__name__}: {error}"))
    status = problems[0][0] if problems else "ok"
    problem = "; ".join(text for _, text in problems) or None
    return {"own_scores_status": status, "own_scores_problem": problem, "scores": found}


def _argument(item: Mapping[str, Any], score: OwnScore) -> Any:
    row = item["row"]
    if score.takes != "frames":
        return row if score.takes == "row" else row.get("caption")
    height, width = _size(row, score.short_side_px)
    positions = [(number + 0.5) / score.num_frames for number in range(score.num_frames)]
    with download.local(item["path"]) as path:
        return read_sample(
            Path(path), row.get("start_seconds"), row.get("end_seconds"),
            height=height, width=width, positions=positions,
        )  # fmt: skip


def _size(row: Mapping[str, Any], short_side_px: int) -> tuple[int, int]:
    """Return (height, width) of the clip as displayed, scaled down to `short_side_px`, never up."""
    height, width = row.get("height") or short_side_px, row.get("width") or short_side_px
    scale = min(1.0, short_side_px / min(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _columns(score: OwnScore, value: Any) -> dict[str, float | None]:
    """Return the columns of what a function returned. Raises TypeError for what is neither number nor map."""
    if isinstance(value, Mapping):
        return {f"{score.name}_{key}": _number(one) for key, one in value.items()}
    return {score.name: _number(value)}


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, numbers.Real) and not hasattr(value, "__float__"):
        raise TypeError(f"returned {type(value).__name__}, not a number or a map of numbers")
    number = float(value)
    return number if math.isfinite(number) else None
