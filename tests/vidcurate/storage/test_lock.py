"""One process at a time, and none after a kill."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vidcurate.errors import StageError
from vidcurate.storage import lock

HOLD = """
import os, sys, time
from pathlib import Path
from vidcurate.storage import lock
with lock.exclusive(Path(sys.argv[1])):
    if os.fork() == 0:
        print("held", flush=True)  # a worker that outlives its parent, once it runs
        time.sleep(20)
        os._exit(0)
    time.sleep(600)
"""


def busy(holder: str) -> StageError:
    return StageError(f"held by {holder}")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_is_held_once_and_free_after_any_end(tmp_path: Path, kind: str) -> None:
    path = tmp_path if kind == "folder" else tmp_path / "lock"
    with lock.exclusive(path, wait=False, busy=busy):
        holder = f"process {os.getpid()} on " if kind == "file" else "another process"
        with pytest.raises(StageError, match=holder), lock.exclusive(path, wait=False, busy=busy):
            pass
        with pytest.raises(BlockingIOError), lock.exclusive(path, wait=False):
            pass
    with pytest.raises(ValueError, match="stop"), lock.exclusive(path):
        raise ValueError("stop")
    with lock.exclusive(path, wait=False):
        pass


def test_a_killed_holder_leaves_nothing_locked_though_its_forked_worker_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    assert not lock.is_free(path)
    child.kill()
    child.wait()
    with lock.exclusive(path, wait=False, busy=busy):
        pass
    assert lock.is_free(path)
    child.stdout.close()


def test_a_lock_file_that_goes_with_its_holder_is_never_held_twice(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "lock", 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(100):
            with lock.exclusive(path, is_removed=True):
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert not path.exists()


def test_a_place_that_cannot_be_locked_raises_or_goes_without(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "lock"
    with pytest.raises(OSError, match="No such file"), lock.exclusive(path):
        pass
    with lock.exclusive(path, is_required=False):
        pass
