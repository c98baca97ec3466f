"""Shared memory for frames: anonymous (memfd), freed when the last process exits.

The kernel frees the memory even after a crash, so nothing is left in /dev/shm, and no second run can mistake
it for its own: stale names there stopped runs of other loaders after a crash (mosaicml/streaming #573, #717,
#802).

A fresh page costs as much as writing its contents: the kernel allocates, counts and frees it. So
`SharedArrayPool` reuses buffers.
"""

import mmap
import os
import tempfile
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from vidcurate.errors import StorageError


def anonymous_file(size_bytes: int) -> int:
    """Return the descriptor of an in-memory file; the file has no path, and no child inherits it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("vidcurate", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return descriptor


class SharedArrayPool:
    """Unused shared-memory buffers, at most `most_bytes`, for reuse by arrays of the same size.

    A reused buffer still holds its old contents. Any thread may return a buffer, also the garbage collector
    at any moment, so nothing here takes a lock: each step is one atomic operation of a deque.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._free: deque[tuple[int, int]] = deque()  # (size, descriptor), oldest first

    def take(self, size_bytes: int) -> int:
        """Return the descriptor of an in-memory file of that size."""
        for entry in list(self._free):
            if entry[0] == size_bytes:
                with suppress(ValueError):  # another thread has taken it
                    self._free.remove(entry)
                    return entry[1]
        return anonymous_file(size_bytes)

    def put(self, size_bytes: int, descriptor: int) -> None:
        """Keep the file for reuse; close the oldest files above `most_bytes`."""
        self._free.append((size_bytes, descriptor))
        while sum(size for size, _ in list(self._free)) > self.most_bytes:
            with suppress(IndexError):
                os.close(self._free.popleft()[1])

    def close(self) -> None:
        """Free all buffers, and keep none from now on."""
        self.most_bytes = 0
        with suppress(IndexError):
            while True:
                os.close(self._free.popleft()[1])


class SharedArray:
    """Shared memory for the frames of one micro-batch; `array` is uint8 of the given shape.

    With a pool, the memory comes from the pool and returns to it when this object and all views of `array`
    are gone.
    """

    __slots__ = ("array", "descriptor")

    def __init__(self, shape: tuple[int, ...], pool: SharedArrayPool | None = None) -> None:
        size = int(np.prod(shape))
        pool = pool or SharedArrayPool(0)
        self.descriptor = pool.take(size)
        mapping = mmap.mmap(self.descriptor, size)  # lives as long as the array, or any view of it
        weakref.finalize(mapping, pool.put, size, self.descriptor).atexit = False
        self.array: NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8).reshape(shape)


class SharedArraySlice:
    """One clip's frames inside another process's shared memory: `part[t] = frame` writes frame t.

    `shape` is (T, H, W, 3); a frame's three planes of H x W bytes lie one behind the other. Uses pwrite, not
    mmap: the kernel would clear a fresh mapped page first.
    """

    __slots__ = ("_descriptor", "_offset", "shape")

    def __init__(self, descriptor: int, offset: int, shape: tuple[int, int, int, int]) -> None:
        self.shape = shape
        self._descriptor, self._offset = descriptor, offset

    def __setitem__(self, number: int, picture: NDArray[np.uint8]) -> None:
        """Write one frame. Raises StorageError when the system has no memory left."""
        data = np.ascontiguousarray(picture.transpose(2, 0, 1)).data.cast("B")
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self._offset + number * len(data) + done)
        except OSError as error:
            raise StorageError(
                f"cannot write frames to shared memory ({error.strerror}). Lower "
                "prefetch_bytes or num_workers."
            ) from error
