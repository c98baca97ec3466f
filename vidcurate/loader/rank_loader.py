"""Loader of one rank: micro-batches of a step to run, and those prefetched.

The base of the loader of clips and of the trainer's loader of latents.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

from vidcurate.errors import InputError
from vidcurate.loader import fallback_clips
from vidcurate.loader.fallback_clips import Event
from vidcurate.loader.spec import LoaderSpec
from vidcurate.sampler import order
from vidcurate.sampler.plan import MicroBatchPlan, Plan

Started = TypeVar("Started")
MOST_AHEAD = 128  # most micro-batches and steps to prefetch: each may hold two file descriptors


class RankLoader(ABC, Generic[Started]):
    """Loader of rank `rank` of `world_size`; `Started` is a micro-batch being read.

    Use as a context manager, or call `close`. Raises InputError for a rank outside of 0 … `world_size` − 1.
    """

    def __init__(
        self,
        plan: Plan,
        spec: LoaderSpec,
        *,
        rank: int,
        world_size: int,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise InputError(f"rank {rank} of {world_size}: the rank must lie in 0 to {world_size - 1}.")
        self.plan, self.spec = plan, spec
        self.rank, self.world_size = rank, world_size
        self._on_event = on_event or (lambda event: None)
        self._failures = fallback_clips.Failures(spec.max_failure_share)
        self._started: dict[int, Started] = {}
        self._shares: dict[int, tuple[int, ...]] = {}

    @abstractmethod
    def close(self) -> None:
        """End the threads or processes that read."""

    @abstractmethod
    def _start(self, part: MicroBatchPlan) -> Started:
        """Start to read a micro-batch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _positions(self, step: int) -> tuple[int, ...]:
        """Return the positions of this rank's micro-batches of a step."""
        if step not in self._shares:
            self._shares[step] = order.shares(self.plan, step, self.world_size)[self.rank]
        return self._shares[step]

    def _take_or_start(self, position: int) -> Started:
        """Return a micro-batch that was prefetched, or start to read it."""
        if position in self._started:
            return self._started.pop(position)
        return self._start(order.micro_batch(self.plan, position))

    def _positions_ahead(self, step: int) -> Iterator[int]:
        """Yield the positions from `step` on that may be prefetched; forget the shares of earlier steps."""
        steps = range(step, step + MOST_AHEAD)
        self._shares = {known: share for known, share in self._shares.items() if known in steps}
        for ahead in steps:
            yield from self._positions(ahead)
