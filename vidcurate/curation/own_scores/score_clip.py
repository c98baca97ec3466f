"""Own scores of one clip, in a worker: numbers by column, or why there are none."""

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vidcurate.curation.frame_scores.sample import read_sample
from vidcurate.curation.own_scores.load import OwnScore, function_of
from vidcurate.errors import MediaError
from vidcurate.storage import download

STATUS = ("own_scores_status", "own_scores_problem")
_MOST_TEXT = 500  # characters of a problem
_MOST_KEY = 100  # characters of a key of a map


def score_clip(item: Mapping[str, Any], scores: Sequence[OwnScore]) -> dict[str, Any]:
    """Return the clip's status, problem and `scores`: column → float, or null for no number.

    `item` has the clip's `row` and the `path` of its file. What a function raises is the clip's problem, and
    the other functions still run.
    """
    found: dict[str, float | None] = {}
    problems: list[tuple[str, str]] = []
    for score in scores:
        try:
            found |= _columns(score, _called(score, item), item["row"])
        except MediaError as error:
            problems.append((error.kind, f"{score.name}: {error}"))
        except Exception as error:  # noqa: BLE001 - the user's own code
            problems.append(("error", f"{score.name}: {type(error).__name__}: {_text(error)}"))
    status = problems[0][0] if problems else "ok"
    problem = "; ".join(text for _, text in problems) or None
    return {"own_scores_status": status, "own_scores_problem": problem, "scores": found}


def _called(score: OwnScore, item: Mapping[str, Any]) -> Any:
    """Return what a score's function returns; a process that the function forked ends here."""
    function, argument = function_of(score.source), _argument(item, score)
    process = os.getpid()
    try:
        return function(argument)
    finally:
        if os.getpid() != process:  # or both would answer, and clips get each other's scores
            os._exit(0)


def _argument(item: Mapping[str, Any], score: OwnScore) -> Any:
    row = item["row"]
    if score.takes != "frames":
        return dict(row) if score.takes == "row" else row.get("caption")
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


def _text(error: Exception) -> str:
    """Return what an error of the user's own code says, in one line that a table can hold."""
    try:
        return " ".join(str(error).split())[:_MOST_TEXT]
    except Exception as worse:  # noqa: BLE001 - the user's own __str__
        return f"its text raises {type(worse).__name__}"


def _columns(score: OwnScore, value: Any, row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the columns of what a function returned.

    Raises TypeError for what is neither number nor map, ValueError for a key that cannot be a column.
    """
    if not isinstance(value, Mapping):
        return {score.name: _number(value)}
    from vidcurate.curation.clip_table.own_columns import RESERVED  # polars, 50 MB, for this alone

    found = {}
    for key, one in value.items():
        column = f"{score.name}_{key}"
        if key == "" or not column.isprintable() or len(column) > _MOST_KEY:
            raise ValueError(f"the key {column[:_MOST_KEY]!r} cannot be a column's name")
        if column in row or column in RESERVED or column in STATUS:
            raise ValueError(f"the key {key!r} makes a column {column}, which the table has; rename the key")
        found[column] = _number(one)
    return found


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, numbers.Real) and not hasattr(value, "__float__"):
        raise TypeError(f"returned {type(value).__name__}, not a number or a map of numbers")
    number = float(value)
    return number if math.isfinite(number) else None
