"""Loader settings: decode workers, prefetch, timeouts and failure limits."""

from typing import ClassVar

from pydantic import Field

from vidcurate.shards.remote_index import RemoteSpec


class LoaderSpec(RemoteSpec):
    """How clips are read; nothing here changes what is read.

    The clips of a step whose shards are at a URL are fetched ahead, each in one request, into `cache_folder`,
    and decoded from there.
    """

    num_workers: int = Field(default=0, ge=0)
    """decode workers of each rank; 0 decodes in the training process, without a deadline"""
    prefetch_bytes: int = Field(default=1 << 30, ge=0)
    """most bytes of frames that are decoded ahead"""
    deadline_seconds: float = Field(default=60.0, gt=0)
    """s; a clip that takes longer loses its worker, is tried once more and then replaced"""
    max_failure_share: float = Field(default=0.01, ge=0, le=1)
    """share of the clips read (counted as at least 1,000) that may fail; above it the run stops with the
    list"""
    max_worker_clips: ClassVar[int] = 20_000
    """clips after which a decode worker is replaced by a fresh one"""
    max_worker_bytes: ClassVar[int] = 4 << 30
    """memory of a decode worker above which it is replaced by a fresh one"""
