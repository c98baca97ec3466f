"""Memory of a decode worker: kept from clip to clip, as fresh pages cost as much as writing them."""

import os
import platform
import subprocess
import sys

import pytest

from vidcurate.loader.decode import worker_pool

# Frames of 1080p, 3 MB each, of a decoder that is closed behind each clip.
CLIPS = """
import ctypes, resource
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
for clip in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    frames = [library.malloc(3 << 20) for _ in range(40)]
    for frame in frames:
        ctypes.memset(frame, 1, 3 << 20)
    for frame in frames:
        library.free(frame)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_the_frames_of_the_next_clip_take_no_fresh_pages() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the settings are those of glibc's malloc")
    done = subprocess.run(
        [sys.executable, "-c", CLIPS],
        env={**os.environ, **worker_pool._ENVIRONMENT},
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    first, *others = map(int, done.stdout.split())
    assert first > 25_000  # pages of 4 KiB
    assert max(others) < first / 100
