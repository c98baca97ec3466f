"""Loader settings: decode workers, prefetch, timeouts and failure limits."""

from pydantic import Field

from vidcurate.loader.fallback import Event as Event
from vidcurate.recipe.recipe import Recipe
from vidcurate.shards.remote_index import RemoteSpec


class LoaderSpec(Recipe):
    """How clips are read; nothing here changes what is read.

    `num_workers`: decode processes per rank; 0 decodes in the training process, without a deadline.
    `prefetch_bytes`: frames decoded ahead, at most. `deadline_seconds`: a clip that takes longer loses its
    worker, is tried once more and then replaced. `max_failure_share`: of the clips read (counted as at least
    1,000); with more failures the run stops. `max_worker_clips`, `max_worker_bytes`: a worker that has read
    so many clips, or holds so much memory between two of them, makes way for a fresh one.
    """

    num_workers: int = Field(default=0, ge=0)
    """decode workers of each rank; 0 decodes in the training process"""
    prefetch_bytes: int = Field(default=1 << 30, ge=0)
    """most bytes of frames that wait"""
    deadline_seconds: float = Field(default=60.0, gt=0)
    """longest time for one clip; then its worker is replaced"""
    max_failure_share: float = Field(default=0.01, ge=0, le=1)
    """share of clips that may fail before the run stops with their list"""
    max_worker_clips: int = Field(default=20_000, gt=0)
    """clips after which a decode worker is replaced by a fresh one"""
    max_worker_bytes: int = Field(default=4 << 30, ge=1 << 27)
    """memory of a decode worker above which it is replaced by a fresh one"""
    remote: RemoteSpec = RemoteSpec()
    """how shards at a URL are fetched"""
