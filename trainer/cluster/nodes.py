"""Nodes of a command: parse NODES, and build the ssh or srun command line.

nodes.txt            a hostfile, as trainer.cluster.hostfile reads it: HOST slots=8 a line     over ssh
node1,node2          names, as ssh knows them                                        over ssh
slurm, slurm:4711    the nodes of this job, or of that one                           srun --overlap
local                this machine                                                    a child process
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer.cli import commands
from trainer.cluster.hostfile import read_hosts
from trainer.health import timed_command
from vidcurate.errors import InputError, VidcurateError

SLURM_SECONDS = 15.0  # for squeue and scontrol
# File name patterns of hostfiles, which no host has.
FILE_NAMES = (
    ".txt",
    ".hosts",
    ".hostfile",
    ".nodes",
    ".list",
    ".lst",
    ".conf",
    ".cfg",
    ".ini",
    ".yaml",
    ".json",
)
# Variables of a Slurm job that its commands need; the others describe the asking job.
SLURM_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine. `slots`: number of ranks by the hostfile; `job`: the Slurm job that holds it."""

    name: str
    through: Literal["ssh", "srun", "here"]
    slots: int | None = None
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How nodes are reached: the ssh command, and the connection timeout."""

    ssh: tuple[str, ...] = ("ssh",)
    connect_seconds: float = 10.0

    @property
    def reach_seconds(self) -> float:
        """Timeout until the program on the node has started: Python may come from a slow disk."""
        return 2 * self.connect_seconds


def read_nodes(text: str, environment: Mapping[str, str] = os.environ) -> tuple[Node, ...]:
    """Return the nodes that `text` names, in its order.

    Raises InputError for an unknown node or a missing file, VidcurateError if Slurm does not answer.
    """
    if text == "slurm" or text.startswith("slurm:"):
        return _slurm_nodes(text.removeprefix("slurm").removeprefix(":"), environment)
    if Path(text).is_file() or ("/" in text and Path(text).exists()):
        return tuple(Node(name=host.name, slots=host.slots, through="ssh") for host in read_hosts(Path(text)))
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name or name.startswith("-") or " " in name or not name.isprintable():
            raise InputError(
                f"NODES {text!r}: {name!r} is no host; write a hostfile, node1,node2, slurm:JOBID or local."
            )
        if "/" in name or name.endswith(FILE_NAMES):
            raise InputError(
                f"NODES {name}: there is no such hostfile; write a host a line into it, or node1,node2, "
                "slurm:JOBID or local."
            )
        if names.count(name) > 1:
            raise InputError(f"NODES {text!r}: {name} is there twice.")
    return tuple(Node(name=name, through="here" if name == "local" else "ssh") for name in names)


def command_on(node: Node, words: Sequence[str], way: Way) -> list[str]:
    """Return the command line that runs `words` on the node, in the current folder."""
    if node.through == "here":
        return list(words)
    if node.through == "srun":
        # One task beside the training tasks, on all of the job's resources there, without srun's messages.
        step = ["srun", "--overlap", f"--jobid={node.job}", f"--nodelist={node.name}", "--nodes=1"]
        step += ["--ntasks=1", "--mem=0", "--quiet", "--unbuffered", "--input=all", f"--chdir={os.getcwd()}"]
        return [*step, *words]
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(way.connect_seconds))}"]
    options += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
    remote = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
    return [*way.ssh, *options, "--", node.name, remote]


def agent_on(node: Node, way: Way) -> list[str]:
    """Return the command line that starts the node's agent with this interpreter's path."""
    return command_on(
        node, [sys.executable, "-u", *commands.SAFE_PATH, "-m", "trainer.cluster.node.agent"], way
    )


def environment_for(node: Node, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the command that reaches the node.

    A Slurm step would take sizes and places from the variables of the asking job.
    """
    if node.through != "srun":
        return dict(given)
    kept = {name: value for name, value in given.items() if not name.startswith("SLURM_")}
    return kept | {name: given[name] for name in SLURM_KEPT if name in given}


def _slurm_nodes(job: str, environment: Mapping[str, str]) -> tuple[Node, ...]:
    if not job:
        job = environment.get("SLURM_JOB_ID", "")
        if not job:
            raise InputError("NODES slurm: this is no job of Slurm (no SLURM_JOB_ID); write slurm:JOBID.")
    if not re.fullmatch(r"\d+([_+]\d+)?", job):
        raise InputError(f"NODES slurm:{job}: {job!r} is no job id; write such as slurm:4711.")
    state, _, nodes = _slurm_says("squeue", "--noheader", f"--jobs={job}", "--format=%T %N").partition(" ")
    if not nodes.strip():
        raise InputError(f"NODES slurm:{job}: the job has no nodes ({state or 'Slurm does not know it'}).")
    names = _slurm_says("scontrol", "show", "hostnames", nodes.strip()).split()
    return tuple(Node(name=name, through="srun", job=job) for name in names)


def _slurm_says(*words: str) -> str:
    """Return the output of a Slurm command. Raises VidcurateError, naming the command."""
    said = timed_command.run_command(words, SLURM_SECONDS)
    if not said.is_good:
        raise VidcurateError(f"{shlex.join(words)}: {said.problem}.")
    return said.text.strip()
