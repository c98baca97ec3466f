"""Shared memory without a name: it goes back when the last process that has it ends, however that happens.

There is nothing in /dev/shm to be left behind by a kill, and nothing that a second run could mistake for its
own: stale names there stopped runs of other loaders after a crash (mosaicml/streaming #573, #717, #802).
"""

import mmap
import os
import tempfile

import numpy as np
from numpy.typing import NDArray


def anonymous_file(size_bytes: int) -> int:
    """Return the descriptor of a file in memory of that size; it has no path, and no child inherits it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("vidcurate", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return descriptor


class Slab:
    """Shared memory for the frames of one micro-batch; `array` is uint8 of the given shape."""

    __slots__ = ("array", "descriptor")

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape))
        self.descriptor = anonymous_file(size)
        # The array keeps the mapping alive; the memory goes back with the last reference to it.
        self.array: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(self.descriptor, size), dtype=np.uint8
        ).reshape(shape)

    def __del__(self) -> None:
        os.close(self.descriptor)  # the array stays usable
