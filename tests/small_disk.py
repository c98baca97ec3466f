"""A small file system of its own, for tests of full and read-only disks."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str, covered_by: str) -> Iterator[Path]:
    """Mount a tmpfs of `size` (such as 3m) at a new folder; skip where that needs root."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip(f"mounting a small file system needs root: {covered_by}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
