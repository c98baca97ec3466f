"""Shared memory without a name: it goes back when the last process that has it ends, however that happens.

There is nothing in /dev/shm to be left behind by a kill, and nothing that a second run could mistake for its
own: stale names there stopped runs of other loaders after a crash (mosaicml/streaming #573, #717, #802).

A page that is fresh costs as much as what is written into it: the kernel finds it, counts it and takes it
back. So a few slabs go round (`Shelf`).
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
    """Return the descriptor of a file in memory of that size; it has no path, and no child inherits it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("vidcurate", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return descriptor


class SharedArrayPool:
    """Slabs that nobody looks at any more, kept for the next ones of their size; `most_bytes` of them.

    Whatever lay in a slab is still there when it is taken again. Any thread may put one back, also the
    collector at any moment, so nothing here takes a lock: each step is one operation of a deque.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._free: deque[tuple[int, int]] = deque()  # size and descriptor, the oldest first

    def take(self, size_bytes: int) -> int:
        """Return the descriptor of a file in memory of that size."""
        for entry in list(self._free):
            if entry[0] == size_bytes:
                with suppress(ValueError):  # another thread has taken it
                    self._free.remove(entry)
                    return entry[1]
        return anonymous_file(size_bytes)

    def put(self, size_bytes: int, descriptor: int) -> None:
        """Keep the file; close the oldest ones where there are too many."""
        self._free.append((size_bytes, descriptor))
        while sum(size for size, _ in list(self._free)) > self.most_bytes:
            with suppress(IndexError):
                os.close(self._free.popleft()[1])

    def close(self) -> None:
        """Give back what lies here, and keep nothing from now on."""
        self.most_bytes = 0
        with suppress(IndexError):
            while True:
                os.close(self._free.popleft()[1])


class SharedArray:
    """Shared memory for the frames of one micro-batch; `array` is uint8 of the given shape.

    With a shelf it is taken from there, and goes there when the slab and all views of `array` are gone.
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
    """The place of one clip's frames in a slab of another process: `part[t] = picture` writes frame t there.

    `shape` is (T, H, W, 3). Written and not mapped: a fresh page that is mapped is cleared first.
    """

    __slots__ = ("_descriptor", "_offset", "_packed", "shape")

    def __init__(self, descriptor: int, offset: int, shape: tuple[int, int, int, int]) -> None:
        self.shape = shape
        self._descriptor, self._offset = descriptor, offset
        self._packed: NDArray[np.uint8] = np.empty(shape[1:], dtype=np.uint8)

    def __setitem__(self, number: int, picture: NDArray[np.uint8]) -> None:
        """Write one frame. Raises StorageError when there is no memory for it."""
        self._packed[:] = picture
        data = self._packed.data.cast("B")
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self._offset + number * len(data) + done)
        except OSError as error:
            raise StorageError(f"shared memory for frames cannot be written ({error.strerror}).") from error
