"""Frames of a clip for the models: one decode, at the largest size needed."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool
from numpy.typing import NDArray

from vidcurate.curation.frame_scores.sample import read_sample
from vidcurate.errors import MediaError
from vidcurate.executor.map_shards import started
from vidcurate.storage import download

Frames = NDArray[np.uint8]
Vectors = NDArray[np.float32]
_LONGEST_PX = 4096


def reason_of(error: BaseException) -> str:
    """Return the first line of an error of another library."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__).rstrip(".")


def size_for(width: int, height: int, short_side_px: int) -> tuple[int, int]:
    """Return (height, width) of the whole frame with this shorter side, at most 4096 px long."""
    scale = short_side_px / min(width, height)
    return tuple(min(_LONGEST_PX, max(2, round(side * scale))) for side in (height, width))  # type: ignore[return-value]


def pictures(item: dict[str, Any], positions: tuple[float, ...], short_side_px: int) -> dict[str, Any]:
    """Return the clip's status and, when it is ok, its frames: uint8 (positions, height, width, 3) RGB.

    `item` is path, start_seconds, end_seconds, width and height as displayed.
    """
    height, width = size_for(item["width"] or 1, item["height"] or 1, short_side_px)
    try:
        with download.local(item["path"]) as path:
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


_AHEAD = 4  # decoded clips in the queue, per process


def _crashed(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "models_status": "crashed",
        "models_problem": f"{item['path']}: decoding crashed the worker.",
        "frames": None,
    }


def _alone(look: Any, item: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = next(
            started(Parallel(n_jobs=2, return_as="generator"), [delayed(look)(item)])
        )
        return found
    except BrokenProcessPool:
        return _crashed(item)


def decoded(
    items: list[dict[str, Any]], positions: tuple[float, ...], short_side_px: int, num_workers: int
) -> Iterator[dict[str, Any]]:
    """Yield the result of `pictures` for each item, in order.

    A clip that crashes its worker is retried once, alone; if the retry crashes too, the row gets the status
    crashed. With one worker the crash would end this process.
    """
    look = partial(pictures, positions=positions, short_side_px=short_side_px)
    if num_workers == 1:
        yield from map(look, items)
        return
    done = 0
    try:
        pool = Parallel(n_jobs=num_workers, return_as="generator", pre_dispatch=_AHEAD * num_workers)
        for found in started(pool, (delayed(look)(item) for item in items)):
            yield found
            done += 1
    except BrokenProcessPool:
        # The pool does not report which clip crashed: the remaining clips are decoded one by one.
        for item in items[done:]:
            yield _alone(look, item)
