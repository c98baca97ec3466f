"""Which rank a process is, by torchrun's names or Slurm's; and that each rank has a log of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.distributed.rank import environment, first_host
from vidcurate.errors import InputError

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
}


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu7", "gpu7"),
        ("gpu7,gpu9", "gpu7"),
        ("gpu[003-005,9],login", "gpu003"),
        ("rack[1-2]node[07,11]-ib,x", "rack1node07-ib"),
        ("10.0.0.5", "10.0.0.5"),
    ],
)
def test_the_first_host_of_a_node_list_is_the_master(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_srun_gives_what_torchrun_would_give() -> None:
    found = environment(SLURM)

    assert found.pop("MASTER_PORT") == environment(SLURM | {"SLURM_PROCID": "3"})["MASTER_PORT"]
    assert found == {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu003"}
    assert environment(SLURM | {"SLURM_STEP_ID": "1"})["MASTER_PORT"] != environment(SLURM)["MASTER_PORT"]


def test_what_the_user_says_of_the_master_counts_and_one_visible_gpu_is_number_0() -> None:
    found = environment(SLURM | {"MASTER_ADDR": "m", "MASTER_PORT": "7", "CUDA_VISIBLE_DEVICES": "3"})

    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["LOCAL_RANK"]) == ("m", "7", "0")
    without = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}
    assert environment(without | {"SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3"})["MASTER_ADDR"] == "10.1.2.3"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"RANK": "1", "WORLD_SIZE": "2"},
        SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        SLURM | {"RANK": "9", "WORLD_SIZE": "16"},
        SLURM | {"RANK": "0", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "one torchrun a node"},
        {"SLURM_JOB_ID": "4711"},
    ],
)
def test_alone_under_torchrun_and_where_both_agree_nothing_is_added(given: dict[str, str]) -> None:
    assert environment(given) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"RANK": "1"}, "no WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "no RANK"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one"),
        (SLURM | {"RANK": "0", "WORLD_SIZE": "1"}, "RANK=0 of WORLD_SIZE=1, and also SLURM_PROCID=9 of"),
        (SLURM | {"SLURM_PROCID": "16"}, "SLURM_PROCID=16 and SLURM_NTASKS=16; ranks count from 0"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, "srun did not start this process"),
        (SLURM | {"SLURM_STEP_NODELIST": ""}, "names no node"),
        ({k: v for k, v in SLURM.items() if k != "SLURM_LOCALID"}, "no SLURM_LOCALID"),
    ],
)
def test_an_environment_that_makes_no_sense_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        environment(given)


PROGRAM = """
import os, sys
from pathlib import Path
from trainer.distributed.rank import rank_log

run, rank = Path(sys.argv[1]), int(sys.argv[2])
print("before", file=sys.stderr)
with rank_log(run, rank, 2):
    print(f"rank {rank} says so", file=sys.stderr)
    os.write(2, b"below Python\\n")
    if sys.argv[3] == "fails":
        raise ValueError("this is wrong")
    if sys.argv[3] == "dies":
        os.kill(os.getpid(), 9)
print("after", file=sys.stderr)
"""


def reported(run: Path, rank: int, end: str) -> tuple[str, str]:
    """Return what a rank that ends so leaves in its log, and on the console."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run), str(rank), end],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    return (run / "logs" / f"rank-{rank:05d}.log").read_text(), done.stderr


def test_each_rank_has_its_log_and_the_first_is_on_the_console_as_well(tmp_path: Path) -> None:
    first, console = reported(tmp_path, 0, "well")
    assert first.splitlines()[1:] == ["rank 0 says so", "below Python"]
    assert console == "before\nrank 0 says so\nbelow Python\nafter\n"

    second, console = reported(tmp_path, 1, "well")
    assert second.splitlines()[1:] == ["rank 1 says so", "below Python"]
    assert "rank 1 of 2" in second
    assert console == "before\nafter\n"


def test_an_error_is_in_the_log_and_on_the_console_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    log, console = reported(tmp_path, 1, "fails")
    assert log.rstrip().endswith("ValueError: this is wrong")
    assert console.rstrip().endswith("ValueError: this is wrong")

    log, _ = reported(tmp_path, 1, "dies")
    assert log.endswith("rank 1 says so\nbelow Python\n")
    assert log.count("── ") == 2  # a second start appends to the log
