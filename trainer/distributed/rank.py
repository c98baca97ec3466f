"""This process's place among the ranks, where torchrun or Slurm says it; and the rank's own log file.

torch reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. torchrun and `--hostfile` set them;
srun has names of its own, which `environment` translates. A light module: the launcher reads it too.
"""

import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trainer.health.clock_steps import boot_time
from trainer.run_folder.layout import log_path
from vidcurate.errors import InputError, StorageError

PORTS = range(20_000, 30_000)  # below the ports that systems give away by themselves


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "")
    if not text.isdigit():
        said = f"{name}={text}" if name in given else f"no {name}"
        raise InputError(
            f"the environment says {said}; it must be a whole number, as torchrun or srun sets it."
        )
    return int(text)


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: gpu[003-005,9],login → gpu003.

    Raises InputError for an empty list.
    """
    first = re.split(r",(?![^\[]*\])", nodes.strip())[0]
    host = re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)
    if not host:
        raise InputError(f"the Slurm node list {nodes!r} names no host; set MASTER_ADDR.")
    return host


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return what has to be added to the environment `given` so that torch finds the other ranks.

    Nothing under torchrun and for a process alone; under srun the five variables, from Slurm's own. Raises
    InputError where the variables are incomplete or name two different places.
    """
    if "RANK" in given or "WORLD_SIZE" in given:
        _check_against_slurm(given, _number(given, "RANK"), _number(given, "WORLD_SIZE"))
        return {}
    if "SLURM_PROCID" not in given or "SLURM_NTASKS" not in given:
        return {}
    size = _number(given, "SLURM_NTASKS")
    if size == 1:
        return {}
    if "SLURM_STEP_ID" not in given:
        raise InputError(
            f"SLURM_NTASKS is {size}, but this process was not started by srun, so the others are not there. "
            "Write `srun python -m trainer …` in the batch script, use torchrun, or set RANK=0 WORLD_SIZE=1."
        )
    rank = _number(given, "SLURM_PROCID")
    if rank >= size:
        raise InputError(
            f"the environment says SLURM_PROCID={rank} and SLURM_NTASKS={size}; ranks count from 0."
        )
    # With --gpus-per-task a task sees only its own GPU, which is then number 0.
    sees_one = re.fullmatch(r"[^,]+", given.get("CUDA_VISIBLE_DEVICES", ""))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0" if sees_one else str(_number(given, "SLURM_LOCALID")),
        "MASTER_ADDR": given.get("MASTER_ADDR") or _slurm_master(given),
        "MASTER_PORT": given.get("MASTER_PORT") or _slurm_port(given),
    }


def _check_against_slurm(given: Mapping[str, str], rank: int, size: int) -> None:
    """torchrun below srun has ranks of its own; without it, both must name the same place."""
    if "TORCHELASTIC_RUN_ID" in given or not {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"} <= set(given):
        return
    slurm_rank, slurm_size = _number(given, "SLURM_PROCID"), _number(given, "SLURM_NTASKS")
    if slurm_size > 1 and (rank, size) != (slurm_rank, slurm_size):
        raise InputError(
            f"the environment says RANK={rank} of WORLD_SIZE={size}, and also SLURM_PROCID={slurm_rank} of "
            f"SLURM_NTASKS={slurm_size}. Unset RANK and WORLD_SIZE, or start one torchrun a node."
        )


def _slurm_master(given: Mapping[str, str]) -> str:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if given.get(name):
            return first_host(given[name])
    if given.get("SLURM_LAUNCH_NODE_IPADDR"):
        return given["SLURM_LAUNCH_NODE_IPADDR"]
    raise InputError("Slurm's environment names no node (SLURM_STEP_NODELIST); set MASTER_ADDR.")


def _slurm_port(given: Mapping[str, str]) -> str:
    """The same on every rank of a step, another for the next step or job."""
    job, step = (
        int(given[name]) if given.get(name, "").isdigit() else 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return str(PORTS[(job * 64 + step) % len(PORTS)])


@contextmanager
def rank_log(run: Path, rank: int, world_size: int) -> Iterator[None]:
    """Among several ranks, send what this process prints, below Python too, to RUN/logs/rank-….log.

    The file comes first, unbuffered, so that a crash loses nothing; the first rank's lines are copied from
    it to where they would have gone. An error that ends the block is written to the file, and raised. A
    process alone keeps its stderr. Raises StorageError.
    """
    if world_size == 1:
        yield
        return
    path = log_path(run, rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from error
    sys.stderr.flush()
    console = os.dup(2)
    begin = os.fstat(log).st_size
    now = time.strftime("%Y-%m-%d %H:%M:%S %z")
    head = f"── {now}, {socket.gethostname()}, rank {rank} of {world_size}, process {os.getpid()}\n".encode()
    os.write(log, head)
    begin += len(head)
    os.dup2(log, 2)
    done = threading.Event()
    copier = threading.Thread(target=_copy, args=(log, begin, console, done), daemon=True)
    if rank == 0:
        copier.start()
    try:
        yield
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        raise
    finally:
        sys.stderr.flush()
        os.dup2(console, 2)
        done.set()
        if rank == 0:
            copier.join()
        os.close(console)
        os.close(log)


def _copy(log: int, begin: int, console: int, done: threading.Event) -> None:
    """Copy what is added to the log to the console until `done`, and then the rest."""
    while True:
        is_last = done.wait(0.1)
        while data := os.pread(log, 1 << 16, begin):
            begin += len(data)
            try:
                os.write(console, data)
            except OSError:  # nobody reads any more; the file has it
                return
        if is_last:
            return


def process_began() -> float:
    """Return when this process began, in seconds of the epoch: before it imported anything."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # the 22nd of all, proc(5)
    return boot_time() + since_boot
