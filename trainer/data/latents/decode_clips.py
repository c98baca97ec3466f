"""Clip decoding for precomputed latents: decode in parallel, ahead of encoding."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import MediaError
from vidcurate.executor.shared_memory import SharedArray
from vidcurate.loader.decode.decode_clip import DecodeTask
from vidcurate.loader.decode.worker_pool import DecodePool
from vidcurate.loader.remote_clips import FetchingPool, decode_from, pool_for
from vidcurate.loader.spec import LoaderSpec
from vidcurate.shards.index import Index


def decode_pool(stack: ExitStack, index: Index, spec: LoaderSpec) -> DecodePool | FetchingPool | None:
    if not spec.num_workers:
        return None
    pool = pool_for(index, DecodePool(spec.num_workers, deadline_seconds=spec.deadline_seconds))
    stack.callback(pool.close)
    return pool


def frames(
    index: Index, tasks: Iterator[DecodeTask], pool: DecodePool | FetchingPool | None, most_ahead: int
) -> Iterator[NDArray[np.uint8] | MediaError]:
    """Yield each task's frames (1, T, H, W, 3), or the decode error; decode ahead in threads."""
    ahead: deque[tuple[SharedArray, Any]] = deque()
    decode = decode_from(index)
    for task in tasks:
        if pool is None:
            try:
                yield decode(task)[0][None]
            except MediaError as error:
                yield error
            continue
        buffer = SharedArray((1, task.num_frames, 3, task.height, task.width))
        ahead.append((buffer, pool.submit(task, buffer, 0)))
        if len(ahead) > most_ahead:
            yield _result(*ahead.popleft())
    while ahead:
        yield _result(*ahead.popleft())


def _result(buffer: SharedArray, future: Any) -> NDArray[np.uint8] | MediaError:
    try:
        future.result()
    except MediaError as error:
        return error
    return np.moveaxis(buffer.array, 2, -1)
