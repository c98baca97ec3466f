"""The process beside a rank that writes its checkpoints in the background."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.substitute_ranks import all_end, is_alive
from trainer.distributed.mesh import ALONE
from trainer.run_folder.checkpoint import async_save, checkpoint
from vidcurate.errors import StorageError

STATE = {"step": 100}
TENSORS = {part: {"w": torch.ones(2, 3)} for part in checkpoint.PARTS}

BESIDE = """
import time, torch
from trainer.run_folder.checkpoint.save_process import SaveProcess
beside = SaveProcess({"model": {"w": (torch.float32, (2, 3))}}, pinned=False)
print(beside._process.pid, flush=True)
time.sleep(600)
"""


def is_view_of_bytes_io(value: object) -> bool:
    return type(value) is memoryview and type(value.obj).__name__ == "_BytesIOBuffer"


def test_the_process_that_writes_saves_ends_with_a_rank_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", BESIDE], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        beside = int(rank.stdout.readline())
        assert is_alive(beside)
        rank.kill()
    assert all_end([beside])


def test_a_save_whose_process_has_died_is_raised_and_leaves_what_was(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 100, TENSORS, STATE)
    one = async_save.AsyncSaver(tmp_path, ALONE)
    beside = one.prepare(TENSORS)
    beside._process.kill()
    beside._process.wait()
    one.save(200, TENSORS, lambda: STATE, keep_last=9, in_background=True)
    with pytest.raises(StorageError, match=r"the save process has ended \(-9\)"):
        one.wait()
    # What the error holds: on Python 3.12.0 and 3.12.1 such a view crashes the garbage collector.
    assert not [*filter(is_view_of_bytes_io, gc.get_objects())]
    one.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "step-00000100"]
