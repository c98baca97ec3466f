"""Remote clips: fetch clips of shards at a URL into a cache before decoding.

A decode worker reads local files only. So the network does not count towards a worker's timeout, a slow
server never looks like an undecodable clip, and many requests can run for few workers. A network error that
persists after the retries ends the run; no fallback clip hides it.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vidcurate.errors import MediaError, StorageError, VidcurateError
from vidcurate.executor.shared_memory import SharedArray
from vidcurate.loader.decode.decode_clip import DecodeTask, decode
from vidcurate.loader.decode.worker_pool import DecodePool
from vidcurate.shards.index import Index
from vidcurate.shards.remote_index import RemoteShards
from vidcurate.storage.checksum import crc32c
from vidcurate.storage.object_store import Pause, sleep
from vidcurate.storage.url_cache import key_of

_TRIES = 5  # of a clip whose file the cache dropped before a worker read it
_MAX_GAP_BYTES = 1 << 16  # between a clip's JSON and its video: fetched rather than asked for twice
_OPEN_FILE = "/proc/{}/fd/{}"


def _ranges(task: DecodeTask) -> list[tuple[int, int]]:
    """Return the ranges (first byte, size) of JSON and video: one range when they are adjacent."""
    gap = task.video_offset - task.json_offset - task.json_size
    if 0 <= gap <= _MAX_GAP_BYTES:
        return [(task.json_offset, task.json_size + gap + task.video_size)]
    return [(task.json_offset, task.json_size), (task.video_offset, task.video_size)]


def fetch_clip(shards: RemoteShards, task: DecodeTask, pause: Pause = sleep) -> DecodeTask:
    """Fetch a clip into the cache, unless it is there, and return the task that reads the cached file.

    Raises MediaError (crc_mismatch) when the checksum differs from the index, also after a retry; ShardError
    for a changed shard, StorageError when the server fails, InputError when the cache is too small for the
    clip.
    """
    shard = task.shard.rpartition("/")[2]
    ranges = _ranges(task)
    size = sum(length for _, length in ranges)
    key = key_of(task.shard, shards.stamps.get(shard), ranges)
    path = shards.cache.find(key, size)
    if path is None:
        for _ in range(2):  # one retry: the network may have altered the bytes
            data = b"".join(shards.read(shard, first, length, pause) for first, length in ranges)
            found = crc32c(data[-task.video_size :])
            if found == task.video_crc32c:
                break
        else:
            raise MediaError(
                f"{task.shard}: clip {task.clip_id!r} has CRC-32C {found:08x}, the index says "
                f"{task.video_crc32c:08x}.",
                kind="crc_mismatch",
            )
        path = shards.cache.put(key, data)
    return replace(task, shard=str(path), json_offset=0, video_offset=size - task.video_size)


def _kept_open(local: DecodeTask) -> tuple[DecodeTask, int | None]:
    """Open the cached file; return a task that reads the open descriptor, and the descriptor.

    The open file survives eviction: in a small cache, later fetches can evict a clip again and again before a
    slow worker reads it. Returns the unchanged task and None when the file was evicted already, or when the
    system has no /proc.
    """
    try:
        file = os.open(local.shard, os.O_RDONLY)
    except OSError:
        return local, None
    name = _OPEN_FILE.format(os.getpid(), file)
    if not os.path.exists(name):
        os.close(file)
        return local, None
    return replace(local, shard=name), file


def drop_from_cache(shards: RemoteShards, local: DecodeTask) -> None:
    """Remove a damaged clip from the cache."""
    shards.cache.drop("".join(local.shard.rsplit("/", 2)[1:]))


def _retried(url: str, reason: str) -> dict[str, Any]:
    return {"event": "request_retried", "url": url, "reason": reason}


def decode_from(
    index: Index, on_event: Callable[[dict[str, Any]], None] = lambda event: None
) -> Callable[[DecodeTask], tuple[Any, str]]:
    """Return `decode_clip.decode` for the clips of this index, for local and remote shards.

    `on_event` receives an event for each retried request.
    """
    shards = index.remote
    if shards is None:
        return decode

    def pause(url: str, reason: str, seconds: float) -> None:
        on_event(_retried(url, reason))
        sleep(url, reason, seconds)

    def read(task: DecodeTask) -> tuple[Any, str]:
        for tries in range(1, _TRIES + 1):
            local = fetch_clip(shards, task, pause)
            near, file = _kept_open(local) if tries > 1 else (local, None)
            try:
                return decode(near)
            except VidcurateError as error:
                if not _is_worth_another(shards, local, error, tries):
                    raise _renamed(error, near, task) from error
            finally:
                if file is not None:
                    os.close(file)
        raise AssertionError("unreachable")

    return read


def pool_for(index: Index, pool: DecodePool) -> "DecodePool | FetchingPool":
    """Return the pool that decodes the clips of this index, for local and remote shards."""
    return FetchingPool(pool, index.remote) if index.remote else pool


def _is_worth_another(shards: RemoteShards, local: DecodeTask, error: BaseException, tries: int) -> bool:
    """Return whether to retry: the cache evicted the file, or held a damaged one."""
    if isinstance(error, MediaError) and error.kind == "crc_mismatch" and tries == 1:
        drop_from_cache(shards, local)
        return True
    return isinstance(error, StorageError) and tries < _TRIES


def _renamed(error: BaseException, local: DecodeTask, task: DecodeTask) -> BaseException:
    """Return the error with the shard's URL in place of the cached file's path."""
    text = str(error).replace(local.shard, task.shard)
    if isinstance(error, MediaError):
        return MediaError(text, kind=error.kind)
    return type(error)(text) if isinstance(error, VidcurateError) else error


class FetchingPool:
    """DecodePool for shards at a URL: the same interface; fetches each clip before a worker decodes it."""

    def __init__(self, pool: DecodePool, shards: RemoteShards) -> None:
        self._pool, self._shards = pool, shards
        self._threads = ThreadPoolExecutor(shards.spec.requests_at_once, "vidcurate-fetch")
        self._events: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._open: set[Future[str]] = set()
        self._closing = threading.Event()

    def submit(
        self, task: DecodeTask, buffer: SharedArray, offset: int, *, is_urgent: bool = False
    ) -> "Future[str]":
        """Queue a task as `DecodePool.submit` does; the future also raises what `fetch_clip` raises."""
        if self._closing.is_set():
            raise VidcurateError("the decode workers have stopped.")
        future: Future[str] = Future()
        with self._lock:
            self._open.add(future)
        future.add_done_callback(self._closed)
        if is_urgent:  # the caller waits for this clip: skip the queue of prefetched clips
            self._run(future, task, buffer, offset, True, 1)
        else:
            self._threads.submit(self._run, future, task, buffer, offset, False, 1)
        return future

    def take_events(self) -> list[dict[str, Any]]:
        """Return the events of workers and requests since the last call."""
        with self._lock:
            found = list(self._events)
            self._events.clear()
        return [*found, *self._pool.take_events()]

    def process_ids(self) -> list[int]:
        return self._pool.process_ids()

    def __enter__(self) -> "FetchingPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End threads and workers once the running requests have ended, and cancel open tasks."""
        self._closing.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            unfinished = list(self._open)
        for future in unfinished:
            future.cancel()
        self._pool.close()
        self._threads.shutdown(wait=True)

    def _closed(self, future: "Future[str]") -> None:
        with self._lock:
            self._open.discard(future)

    def _pause(self, url: str, reason: str, seconds: float) -> None:
        with self._lock:
            self._events.append(_retried(url, reason))
        if self._closing.wait(seconds):
            raise StorageError(f"{url}: request stopped, as the loader was closed.")

    def _run(
        self,
        future: "Future[str]",
        task: DecodeTask,
        buffer: SharedArray,
        offset: int,
        is_urgent: bool,
        tries: int,
    ) -> None:
        if future.cancelled():
            return
        file: int | None = None
        try:
            local = fetch_clip(self._shards, task, self._pause)
            near, file = _kept_open(local) if tries > 1 else (local, None)
            inner = self._pool.submit(near, buffer, offset, is_urgent=is_urgent)
        except BaseException as error:  # noqa: BLE001 - the future raises it in the thread that waits
            if file is not None:
                os.close(file)
            _settle(future, error=error)
            return
        future.add_done_callback(lambda done: done.cancelled() and inner.cancel())

        def on_decoded(inner: "Future[str]") -> None:
            if file is not None:
                os.close(file)
            if inner.cancelled():
                future.cancel()
                return
            error = inner.exception()
            if error and not self._closing.is_set() and _is_worth_another(self._shards, local, error, tries):
                with suppress(RuntimeError):  # closed at this moment: the future is cancelled
                    self._threads.submit(self._run, future, task, buffer, offset, True, tries + 1)
            else:
                _settle(future, inner, error and _renamed(error, near, task))

        inner.add_done_callback(on_decoded)


def _settle(
    future: "Future[str]", inner: "Future[str] | None" = None, error: BaseException | None = None
) -> None:
    """Set a future's result or error, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    elif inner is not None:
        future.set_result(inner.result())
