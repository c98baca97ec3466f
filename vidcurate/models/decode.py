"""The pictures of many clips, decoded in other processes while the models work."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import BrokenProcessPool

from vidcurate.models.look import pictures

_AHEAD = 4  # clips that wait decoded, for each process


def _crashed(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "models_status": "crashed",
        "models_problem": f"{item['path']}: decoding ended the process.",
        "frames": None,
    }


def _alone(look: Any, item: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = Parallel(n_jobs=2)([delayed(look)(item)])[0]
        return found
    except BrokenProcessPool:
        return _crashed(item)


def decoded(
    items: list[dict[str, Any]], positions: tuple[float, ...], short_side_px: int, num_workers: int
) -> Iterator[dict[str, Any]]:
    """Yield what `look.pictures` says of each item, in order. A clip that ends its process is tried once more
    alone and becomes a row with the status crashed; with one worker it would end this process."""
    look = partial(pictures, positions=positions, short_side_px=short_side_px)
    if num_workers == 1:
        yield from map(look, items)
        return
    done = 0
    try:
        pool = Parallel(n_jobs=num_workers, return_as="generator", pre_dispatch=_AHEAD * num_workers)
        for found in pool(delayed(look)(item) for item in items):
            yield found
            done += 1
    except BrokenProcessPool:
        # The pool does not say whose clip it was: those left are decoded one by one.
        for item in items[done:]:
            yield _alone(look, item)
