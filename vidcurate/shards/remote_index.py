"""Remote index: shards at a URL, with a cached index and pinned versions.

A light module: obstore is loaded by the first request to a bucket.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from vidcurate.errors import MissingError
from vidcurate.recipe.recipe import Recipe
from vidcurate.storage import atomic_file, lock, object_store
from vidcurate.storage.object_store import Pause, Stamp
from vidcurate.storage.url_cache import ShardCache, default_folder, key_of


class RemoteSpec(Recipe):
    """How shards at a URL are read; nothing here changes what is read.

    The clips of a step are fetched ahead, each in one request, into `cache_folder`, and decoded from there.
    """

    cache_folder: Path | None = None
    """where fetched clips are kept, on a disk of this machine; all ranks and runs may share it. null:
    vidcurate-cache-UID in the system's folder for temporary files"""
    cache_bytes: int = Field(default=16 << 30, gt=0)
    """most bytes of fetched clips; those used least recently go first"""
    request_seconds: ClassVar[float] = object_store.REQUEST_SECONDS
    """longest time for one request; then it is made again, six times in all"""
    requests_at_once: ClassVar[int] = 16
    """requests that one rank makes at a time"""


@dataclass(frozen=True, kw_only=True)
class RemoteShards:
    """Folder at `url`, and the versions (`stamps`, by file name) of its shards at opening."""

    url: str
    spec: RemoteSpec
    cache: ShardCache
    index_folder: Path
    stamps: Mapping[str, Stamp]

    def url_of(self, shard: str) -> str:
        return f"{self.url}/{shard}"

    def read(self, shard: str, first: int, size: int, pause: Pause = object_store.sleep) -> bytes:
        """Return bytes of a shard. Raises ShardError when the shard has changed, StorageError."""
        stamp, seconds = self.stamps.get(shard), self.spec.request_seconds
        return object_store.read_range(self.url_of(shard), first, size, stamp, seconds=seconds, pause=pause)

    def with_stamps(self, shards: Iterable[str]) -> "RemoteShards":
        """Return a copy with the current versions of all `shards`. Raises StorageError for a missing one."""
        return replace(
            self, stamps=object_store.stamps_of(self.url, shards, seconds=self.spec.request_seconds)
        )


def open_shards(url: str, index_name: str, spec: RemoteSpec) -> RemoteShards:
    """Fetch the index at `url` into the cache, unless this version is cached; `with_stamps` adds the stamps.

    One process of a machine fetches, the others wait. Raises MissingError when there is no index, InputError,
    ShardError, StorageError.
    """
    cache = ShardCache(spec.cache_folder or default_folder(), spec.cache_bytes)
    url, seconds = url.rstrip("/"), spec.request_seconds
    place = f"{url}/{index_name}"
    stamp = object_store.stamp_if_there(place, seconds=seconds)
    if stamp is None:
        raise MissingError(f"{place}: is not there.")
    folder = cache.folder / "index" / key_of(place, stamp.tag, stamp.size_bytes)
    target = folder / index_name
    with atomic_file.storage_errors(target):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock.exclusive(folder / ".lock"):
            if not target.exists():
                with atomic_file.atomic_writer(target) as file:
                    object_store.download(place, stamp, file, seconds=seconds)
    return RemoteShards(url=url, spec=spec, cache=cache, index_folder=folder, stamps={})
