"""What a rank prints is there at once, through every launcher: the next step begins when its line was read.

Through the Slurm script: test_slurm_template.py, by the same means.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patched_ranks import LOCK_STEP, ROOT, patched, read_in_lock_step
from tests.ssh_hosts import serving
from tests.trainer.shards_for_tests import command_words, make_shards, numbers

STEPS = ("stages.0.steps=5", "stages.0.log_every=1", "loader.num_workers=0", "sample=null")
LIMIT_SECONDS = 300.0
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("made") / "shards")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("alone", marks=pytest.mark.soak),
        "launch",
        pytest.param("torchrun", marks=pytest.mark.soak),
        pytest.param("launch over ssh", marks=pytest.mark.soak),
    ],
)
def test_each_steps_line_arrives_before_the_next_step_ends(
    shards: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, launcher: str
) -> None:
    run, gate = tmp_path / "run", tmp_path / "gate"
    gate.mkdir()
    words = command_words(shards, run, *STEPS)

    def follow(*command: str) -> list[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | patched(tmp_path / "patch", LOCK_STEP, PYTHONGATE=str(gate)),
        )
        reported = read_in_lock_step(process, gate, limit_seconds=LIMIT_SECONDS)
        assert process.returncode == 0, reported
        return reported

    if launcher == "alone":
        reported = follow("-m", "trainer", *words)
    elif launcher == "torchrun":
        reported = follow(*TORCHRUN, "-m", "trainer", *words)
    elif launcher == "launch":
        reported = follow("-m", "trainer", "launch", *words, "--nproc-per-node", "2")
    else:
        with serving(tmp_path_factory.mktemp("ssh")) as cluster:
            hosts = tmp_path / "nodes.txt"
            hosts.write_text("a\nb\n")
            over = ("--hostfile", str(hosts), "--ssh", cluster.ssh)
            reported = follow("-m", "trainer", "launch", *words, *over)

    assert [line["step"] for line in numbers(run)] == [1, 2, 3, 4, 5]
    shown = [line for line in reported if "  loss " in line]
    assert [f"step {step}/5  loss" in line for step, line in enumerate(shown, start=1)] == [True] * 5
    assert sorted(path.name for path in gate.iterdir()) == ["1", "2", "3", "4", "5"]


@pytest.mark.soak
def test_a_line_that_is_held_back_is_noticed(shards: Path, tmp_path: Path) -> None:
    """The means itself: a pipe that waits for its end, as a launcher that buffers does."""
    gate = tmp_path / "gate"
    gate.mkdir()
    command = [sys.executable, "-m", "trainer", *command_words(shards, tmp_path / "run", *STEPS)]
    process = subprocess.Popen(
        ["bash", "-c", '"$@" 2>&1 | (text=$(cat); echo "$text")', "bash", *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
        env=os.environ | patched(tmp_path / "patch", LOCK_STEP, PYTHONGATE=str(gate)),
    )

    with pytest.raises(AssertionError, match="no line came"):
        read_in_lock_step(process, gate, limit_seconds=8.0)

    os.killpg(process.pid, 9)
    process.wait()
    assert len(numbers(tmp_path / "run")) <= 1
