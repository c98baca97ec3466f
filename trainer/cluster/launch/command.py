"""Launch command: start ranks on one or many hosts, under a supervisor.

`python -m trainer launch RECIPE`. All hosts see the same files under the same paths, as torchrun requires
too. No rank starts before every host has answered.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import commands, training_arguments
from trainer.cluster.hostfile import read_hosts
from trainer.cluster.launch.connection import HERE
from vidcurate.errors import InputError, counted

EXAMPLE = """\
  python -m trainer launch recipes/first-steps.yaml --nproc-per-node 2 --set output=runs/two \
--set stages.0.data.shards=run/shards

Any other flag is one of `python -m trainer RECIPE` and goes to every rank.

exit codes: 0 done; 75 saved after a signal, give the same command again; 1 given up; 2 wrong request;
77 too few hosts are left; 78 the guard stopped it, a person has to look; 128 + N killed by a second signal
"""


def _parser() -> argparse.ArgumentParser:
    made = commands.parser(
        "launch",
        "Train RECIPE on several ranks and begin again after a failure, from the newest checkpoint.",
        EXAMPLE,
    )
    made.usage = "python -m trainer launch RECIPE [options] [options of a training]"
    made.add_argument(
        "--nproc-per-node", type=int, metavar="N", help="ranks a host (default: slots, GPUs, or 1)"
    )
    made.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="start them over ssh: HOST slots=8 a line"
    )
    made.add_argument("--ssh", default="ssh", metavar="COMMAND", help='such as "ssh -p 2222" (default: ssh)')
    made.add_argument(
        "--min-hosts",
        type=int,
        metavar="N",
        help="continue without bad or silent hosts while N are left (default: all at the start, then 1)",
    )
    made.add_argument(
        "--restarts", type=int, default=3, metavar="K", help="give up after K restarts without progress (3)"
    )
    made.add_argument(
        "--backoff-seconds",
        type=float,
        default=5.0,
        metavar="S",
        help="wait before a restart (5); doubled with each one without progress, at most 300",
    )
    made.add_argument(
        "--stall-seconds",
        type=float,
        default=7200.0,
        metavar="S",
        help="end and restart ranks whose heartbeats stand still for so long (7200)",
    )
    made.add_argument(
        "--grace-seconds",
        type=float,
        default=600.0,
        metavar="S",
        help="for the ranks to save and leave after a signal (600)",
    )
    made.add_argument(
        "--connect-seconds", type=float, default=30.0, metavar="S", help="for a host to answer (30)"
    )
    return made


def _check(given: argparse.Namespace) -> None:
    """Raise InputError for a number out of range."""
    least = {"nproc_per_node": 1, "min_hosts": 1, "restarts": 0, "backoff_seconds": 0}
    for name, limit in least.items():
        value = getattr(given, name)
        if value is not None and value < limit:
            raise InputError(f"--{name.replace('_', '-')} {value}: at least {limit}.")
    for name in ("stall_seconds", "grace_seconds", "connect_seconds"):
        if not getattr(given, name) > 0:
            raise InputError(f"--{name.replace('_', '-')} {getattr(given, name):g}: more than 0.")


def _run(given: argparse.Namespace) -> int:
    _check(given)
    hosts = read_hosts(given.hostfile) if given.hostfile else (HERE,)
    if given.min_hosts is not None and given.min_hosts > len(hosts):
        raise InputError(f"--min-hosts {given.min_hosts}: there are only {len(hosts)}.")
    reader = training_arguments.parser()
    reader.prog = "python -m trainer launch"
    asked = reader.parse_args(given.rest)
    for flag in ("dry_run", "print_env"):
        if getattr(asked, flag):
            name = "--" + flag.replace("_", "-")
            raise InputError(f"{name} starts no ranks; write `python -m trainer RECIPE {name}`.")

    # torch is imported here, so that --help and a wrong flag answer at once.
    with commands.loading():
        from trainer.cli import exit_codes
        from trainer.cluster.launch import supervisor
        from trainer.recipe import recipe
        from trainer.run_folder import jsonl
        from trainer.training import resume, wandb_tensorboard
        from trainer.training import state as training_state

    wanted = recipe.load(asked.recipe, asked.settings)
    resume.check_origin(
        training_state.Origin(
            load=asked.load,
            ckpt_path=asked.ckpt_path,
            start_from_scratch=asked.start_from_scratch,
            accept=tuple(asked.accept or ()),
        )
    )

    def fits(ranks: int) -> str:
        size = wanted.parallel.shard_size
        if size is None or ranks % size == 0:
            return ""
        return f"parallel.sharding {size} does not divide {counted(ranks, 'rank')}; take a multiple of it."

    code = supervisor.supervise(
        wanted.output,
        hosts,
        [sys.executable, "-u", *commands.SAFE_PATH, "-m", "trainer", *given.rest],
        supervisor.Terms(
            restarts=None if asked.preflight else given.restarts,
            min_hosts=given.min_hosts,
            stall_seconds=given.stall_seconds,
            backoff_seconds=given.backoff_seconds,
            connect_seconds=given.connect_seconds,
            grace_seconds=given.grace_seconds,
            ssh=tuple(shlex.split(given.ssh)),
            per_host=given.nproc_per_node,
        ),
        environment=os.environ,
        fits=fits,
    )
    # Killed ranks took their trackers with them, and `gave_up` is written after all of them.
    ends_here = code in (exit_codes.FAILED, exit_codes.BAD_NODE, exit_codes.HALT)
    if ends_here and (wanted.output / jsonl.EVENTS).exists():
        with wandb_tensorboard.Mirrors(wanted.trackers, wanted.output, recipe.to_json(wanted)) as mirrors:
            mirrors.begin()
    return code


def main(words: Sequence[str]) -> int:
    given, rest = _parser().parse_known_args(list(words))
    given.rest = rest
    given.traceback = "--traceback" in rest
    return commands.run_long_command(_run, given, "from the newest checkpoint")
