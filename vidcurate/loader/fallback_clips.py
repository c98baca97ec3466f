"""Fallback clips: replace clips that fail to decode; stop when too many fail.

The plan names the fallback clip of each slot (`order.fallback_clips`), so every rank, every restart and every
reader (frames, latents) uses the same clip.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from vidcurate.errors import MediaError, VidcurateError, counted
from vidcurate.sampler import order
from vidcurate.sampler.plan import MicroBatchPlan, Plan

Event = dict[str, Any]
T = TypeVar("T")

_LEAST_READ = 1000  # least number of clips in the denominator of the failure share
_NAMED = 10  # most clips in a message


class Failures:
    """Counts of clips read and failed on one rank; a share above `max_share` ends the run."""

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._num_read = 0
        self._failed: list[str] = []

    def add_read(self, num_clips: int) -> None:
        self._num_read += num_clips

    def add_failed(self, clip_id: str, kind: str) -> None:
        """Count a failed clip. Raises VidcurateError, with the last ids, above the allowed share."""
        self._failed.append(f"{clip_id} ({kind})")
        read = max(self._num_read, _LEAST_READ)
        if len(self._failed) > self._max_share * read:
            names = ", ".join(dict.fromkeys(self._failed[-_NAMED:]))
            raise VidcurateError(
                f"{counted(len(self._failed), 'clip')} could not be decoded, more than max_failure_share "
                f"{self._max_share:g} allows of {counted(read, 'clip')}; the last: {names}. Build the "
                "shards without them, or raise max_failure_share."
            )


def substitute_clip(
    plan: Plan,
    part: MicroBatchPlan,
    slot: int,
    rows: list[int],
    *,
    failed: tuple[str, MediaError],
    clip_id_of: Callable[[int], str],
    read: Callable[[int], T],
    failures: Failures,
    on_event: Callable[[Event], None],
) -> tuple[int, T]:
    """Return row and contents of the first fallback clip for a slot that `read` can read.

    `failed` is the planned clip of the slot, with its error; `rows`: the current rows of all slots. The
    loader calls this slot by slot, so the fallback clips do not depend on which clip failed first. Raises
    VidcurateError when no fallback clip is left, or when too many clips fail.
    """
    clip_id, error = failed
    failures.add_failed(clip_id, error.kind)
    for row in order.fallback_clips(plan, part, slot):
        if row in rows:
            continue
        fallback = clip_id_of(row)
        on_event(
            {
                "event": "clip_substituted",
                "step": order.step_of(plan, part.position),
                "position": part.position,
                "slot": slot,
                "clip_id": clip_id,
                "fallback": fallback,
                "kind": error.kind,
                "reason": str(error),
            }
        )
        try:
            return row, read(row)
        except MediaError as another:
            # Drop the traceback: it references this frame and would keep the clip's buffers alive.
            clip_id, error = fallback, another.with_traceback(None)
            failures.add_failed(clip_id, error.kind)
    raise VidcurateError(
        f"clip {clip_id!r} cannot be decoded ({error}) and cell {plan.cells[part.cell].name} has no other "
        "clip to take its place. Build the shards without it, or choose buckets that hold more clips."
    )
