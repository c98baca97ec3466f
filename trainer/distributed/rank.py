"""Rank and world size from torchrun's or Slurm's variables; log file of a rank.

torch reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. torchrun and `--hostfile` set them;
srun has different names, which `environment` translates. A light module: the launcher imports it too.
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
from trainer.run_folder import process_table
from trainer.run_folder.layout import log_path
from vidcurate.errors import InputError, StorageError

PORTS = range(20_000, 30_000)  # below the ephemeral ports
COPY_SECONDS = 0.1  # between two copies of the log to the console


def whole_number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable as a number. Raises InputError where it is none, or missing without a default."""
    text = given.get(name, "" if default is None else str(default))
    if not text.isdigit():
        found = f"{name}={text}" if name in given else f"no {name}"
        raise InputError(
            f"the environment says {found}; it must be a whole number. Start with torchrun or srun."
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
    """Return the variables to add to the environment `given` so that torch finds the other ranks.

    None under torchrun and for a single process; under srun the five variables, from Slurm's. Raises
    InputError for incomplete variables and where torchrun's contradict Slurm's.
    """
    if "RANK" in given or "WORLD_SIZE" in given:
        _check_against_slurm(given, whole_number(given, "RANK"), whole_number(given, "WORLD_SIZE"))
        return {}
    if "SLURM_PROCID" not in given or "SLURM_NTASKS" not in given:
        return {}
    size = whole_number(given, "SLURM_NTASKS")
    if size == 1:
        return {}
    if "SLURM_STEP_ID" not in given:
        raise InputError(
            f"SLURM_NTASKS is {size}, but srun did not start this process, so the other ranks are missing. "
            "Write `srun python -m trainer …` in the batch script, use torchrun, or set RANK=0 WORLD_SIZE=1."
        )
    rank = whole_number(given, "SLURM_PROCID")
    if rank >= size:
        raise InputError(
            f"the environment says SLURM_PROCID={rank} and SLURM_NTASKS={size}; ranks count from 0."
        )
    # With --gpus-per-task a task sees only its own GPU, which is then number 0.
    sees_one = re.fullmatch(r"[^,]+", given.get("CUDA_VISIBLE_DEVICES", ""))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0" if sees_one else str(whole_number(given, "SLURM_LOCALID")),
        "MASTER_ADDR": given.get("MASTER_ADDR") or _slurm_master(given),
        "MASTER_PORT": given.get("MASTER_PORT") or _slurm_port(given),
    }


def _check_against_slurm(given: Mapping[str, str], rank: int, size: int) -> None:
    """Raise InputError where RANK and Slurm's rank differ; torchrun below srun numbers its own ranks."""
    if "TORCHELASTIC_RUN_ID" in given or not {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"} <= set(given):
        return
    slurm_rank, slurm_size = whole_number(given, "SLURM_PROCID"), whole_number(given, "SLURM_NTASKS")
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
    """Return a port: the same on every rank of a Slurm step, a different one for the next step or job."""
    job, step = (
        int(given[name]) if given.get(name, "").isdigit() else 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return str(PORTS[(job * 64 + step) % len(PORTS)])


@contextmanager
def rank_log(run: Path, rank: int, world_size: int) -> Iterator[None]:
    """Redirect this rank's stderr, that of libraries included, to RUN/logs/rank-….log.

    The file is written first, unbuffered, so that a crash loses nothing; rank 0's lines are copied from the
    file to the console. An error that ends the block is written to the file and raised. A world of one
    process keeps its stderr. Raises StorageError.
    """
    if world_size == 1:
        yield
        return
    path = log_path(run, rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
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
        sys.stderr.flush()
        if rank == 0:  # the console gets the error's line from the command, the file the traceback
            done.set()
            copier.join()
        traceback.print_exc(file=sys.stderr)
        raise
    finally:
        sys.stderr.flush()
        os.dup2(console, 2)
        done.set()
        if rank == 0 and copier.is_alive():
            copier.join()
        os.close(console)
        os.close(log)


def _copy(log: int, begin: int, console: int, done: threading.Event) -> None:
    """Copy what is appended to the log to the console until `done`, then the rest."""
    while True:
        is_last = done.wait(COPY_SECONDS)
        while data := os.pread(log, 1 << 16, begin):
            begin += len(data)
            try:
                os.write(console, data)
            except OSError:  # the console is closed; the file has the lines
                return
        if is_last:
            return


def process_start_time() -> float:
    """Return when this process started, in seconds since the epoch: before its first import."""
    ticks = process_table.start_time(os.getpid())
    assert ticks is not None
    return boot_time() + ticks / os.sysconf("SC_CLK_TCK")
