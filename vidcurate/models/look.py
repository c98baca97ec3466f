"""The pictures of a clip for the models: one decode, the whole frame, at the size that the largest needs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate import remote
from vidcurate.errors import MediaError
from vidcurate.frames.sample import read_sample

Frames = NDArray[np.uint8]
Vectors = NDArray[np.float32]
_LONGEST_PX = 4096


def reason_of(error: BaseException) -> str:
    """Return the first line of an error of another library."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__).rstrip(".")


def size_for(width: int, height: int, short_side_px: int) -> tuple[int, int]:
    """Return (height, width) of the whole picture with this shorter side, never more than 4096 px long."""
    scale = short_side_px / min(width, height)
    return tuple(min(_LONGEST_PX, max(2, round(side * scale))) for side in (height, width))  # type: ignore[return-value]


def pictures(item: dict[str, Any], positions: tuple[float, ...], short_side_px: int) -> dict[str, Any]:
    """Return the clip's status and, when it is ok, its frames: uint8 (positions, height, width, 3) RGB.

    `item` is path, start_seconds, end_seconds, width and height as displayed, sample_aspect_ratio.
    """
    shown = max(1, round((item["width"] or 1) * (item["sample_aspect_ratio"] or 1)))
    height, width = size_for(shown, item["height"] or 1, short_side_px)
    try:
        with remote.local(item["path"]) as path:
            frames = read_sample(
                path,
                item["start_seconds"],
                item["end_seconds"],
                height=height,
                width=width,
                positions=positions,
            )
    except MediaError as error:
        return {"models_status": error.kind, "models_problem": str(error), "frames": None}
    return {"models_status": "ok", "models_problem": None, "frames": frames}
