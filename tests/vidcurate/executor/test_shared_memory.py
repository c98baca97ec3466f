"""Memory of frames goes round, and never while someone looks at it."""

import gc
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from vidcurate.errors import StorageError
from vidcurate.executor.shared_memory import SharedArray, SharedArrayPool, SharedArraySlice


def _num_files() -> int:
    """Return how many of this process's files are frames' memory; others come and go with their threads."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "memfd:vidcurate" in str(path.readlink())
    return found


@pytest.fixture(autouse=True)
def _without_garbage() -> None:
    """What earlier tests left to the collector would be closed in the middle of a test."""
    gc.collect()


def test_a_buffer_is_taken_again_only_when_no_view_of_it_is_left() -> None:
    before, pool = _num_files(), SharedArrayPool(4096)
    buffer = SharedArray((4, 100), pool)
    number = buffer.descriptor
    view = buffer.array[2]
    view[:] = 7
    del buffer

    other = SharedArray((4, 100), pool)
    assert other.descriptor != number
    assert (view == 7).all()

    del view
    again, larger = SharedArray((400,), pool), SharedArray((401,), pool)
    assert again.descriptor == number  # of the same size
    assert larger.descriptor != number

    del other, again, larger
    assert _num_files() > before
    pool.close()
    assert _num_files() == before


def test_a_pool_keeps_no_more_than_it_may_and_nothing_once_closed() -> None:
    before, pool = _num_files(), SharedArrayPool(250)
    shown = [SharedArray((100,), pool).array for _ in range(5)]
    last = shown.pop()
    while_shown = _num_files() - before  # its own file, and that of the mapping of each
    shown.clear()
    assert while_shown == 10
    assert _num_files() == before + 2 + 2  # two are kept, one is looked at

    pool.close()
    assert _num_files() == before + 2
    last[:] = 1
    del last
    assert _num_files() == before


def test_frames_written_from_elsewhere_are_in_the_buffer_whatever_their_rows() -> None:
    buffer = SharedArray((2, 3, 3, 4, 6))  # clips, frames, planes, rows, columns
    chance = np.random.default_rng(0)
    clip = chance.integers(0, 256, (3, 4, 6, 3), np.uint8)
    part = SharedArraySlice(buffer.descriptor, clip.size, clip.shape)
    padded = np.zeros((4, 9, 3), np.uint8)
    padded[:, :6] = clip[1]
    part[0] = clip[0]
    part[1] = padded[:, :6]
    part[2] = np.ascontiguousarray(clip[2].transpose(1, 0, 2)).transpose(1, 0, 2)

    assert np.array_equal(np.moveaxis(buffer.array[1], 1, -1), clip)
    assert not buffer.array[0].any()


def test_memory_that_cannot_be_written_is_the_storage_s_fault_not_the_clip_s(tmp_path: Path) -> None:
    (tmp_path / "frames").touch()
    descriptor = os.open(tmp_path / "frames", os.O_RDONLY)
    with pytest.raises(StorageError, match="cannot write frames to shared memory"):
        SharedArraySlice(descriptor, 0, (1, 2, 2, 3))[0] = np.zeros((2, 2, 3), np.uint8)
    os.close(descriptor)
