"""Ctrl-C under the real torchrun: the first saves and stops, the second leaves no rank behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked_runs import Forks
from tests.trainer.shards_for_tests import command_words, events, make_shards, numbers
from trainer.run_folder.checkpoint import checkpoint

LONG = ("stages.0.steps=5000", "stages.0.checkpoint_every=1000", "sample=null", "loader.num_workers=0")


def until(is_true: Callable[[], bool], said: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, said.read_text()
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("hangs", [False, True], ids=["the first", "the second"])
def test_ctrl_c_under_torchrun(tmp_path: Path, forks: Forks, hangs: bool) -> None:
    run, said, pids = (tmp_path / name for name in ("run", "said", "pids"))
    words = command_words(make_shards(tmp_path / "shards"), run, *LONG)
    pids.mkdir()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    # The ranks are forked; a signal that reaches one of their clients reaches the rank.
    rank = ["--no-python", *forks.python(), "tests.ranks_that_hang"]
    with said.open("wb") as out:
        process = subprocess.Popen(
            [*launcher, *rank, *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"HANGS": str(int(hangs)), "PIDS": str(pids)},
        )
    try:
        until(lambda: (run / "metrics.jsonl").exists() and len(numbers(run)) >= 2, said)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        until(lambda: "SIGINT: the run saves after this step and stops" in said.read_text(), said)
        if hangs:
            os.killpg(process.pid, signal.SIGINT)
        until(lambda: process.poll() is not None, said)
        ranks = [int(path.name) for path in pids.iterdir()]
        assert len(ranks) == 2
        until(lambda: not any(map(is_alive, ranks)), said, 20)
    finally:
        for pid in (process.pid, *(int(path.name) for path in pids.iterdir())):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    lines = said.read_text().splitlines()
    ends = [line for line in lines if line.startswith("interrupted; the same command continues from")]
    (stop,) = events(run, "stop")
    if hangs:
        assert ends == ["interrupted; the same command continues from the newest checkpoint"]
        assert (stop["signal"], stop["saved"], stop["step"]) == ("SIGINT", False, 2)
    else:
        step = checkpoint.load(run).state["step"]
        assert step == len(numbers(run))
        assert ends == [f"interrupted; the same command continues from {run}/step-{step:08d} of 5,000 steps"]
        assert "trainer/" not in "".join(line for line in lines if line.lstrip().startswith("File "))
