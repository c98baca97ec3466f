"""A run's folder is held by one training, and free as soon as that has left it."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from trainer import run_folder
from trainer.mesh import ALONE
from vidcurate.errors import InputError


def open_lock() -> int:
    """Return this process's descriptor of a run's lock."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").endswith("/.lock"):
                return int(name)
    raise AssertionError("no lock is held")


def test_a_second_training_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    with run_folder.held(tmp_path, ALONE):
        with pytest.raises(InputError, match="another process is training"), run_folder.held(tmp_path, ALONE):
            pass
        lock = open_lock()  # as any program has it that is just being started, between fork and exec
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        with run_folder.held(tmp_path, ALONE):
            pass
    finally:
        child.kill()
        child.wait()
