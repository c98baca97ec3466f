"""`python -m trainer RECIPE`: train, in one process, under torchrun or srun, or on the hosts of a hostfile.

`python -m trainer COMMAND` is a tool beside the training, of which COMMANDS has the list.

stdout is the answer (the last line, or JSON), stderr is the telling. Exit codes: trainer.exit_codes.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer import exit_codes, terminal
from trainer.launch import launch, read_hosts
from vidcurate.errors import InputError, StateError

# Read when torch is loaded, below: threads that spin while they wait starve the decode workers of a small
# machine (a step took 4 times as long, docs/decisions.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


EXAMPLE = """\
example:
  python -m trainer recipes/first-steps.yaml --set output=runs/first --set stages.0.data.shards=run/shards

The same command given again goes on where the run stopped. On several GPUs and hosts, one of:
  torchrun --nproc-per-node 8 -m trainer RECIPE
  srun --ntasks-per-node 8 python -m trainer RECIPE
  python -m trainer RECIPE --hostfile nodes.txt

exit codes: 0 done, 1 the work failed, 2 the request was wrong, 75 saved after SIGTERM or SIGUSR1
"""


# The tools beside the training and the modules whose `main` they are; a recipe is never called so.
COMMANDS: dict[str, str] = {}

# Of vidcurate.loader_state.FLAGS, which is not imported before --help is answered.
CHANGES = {
    "--append": "clips were added: what is unseen, old or new, is shown once before anything again",
    "--tombstone": "clips were removed: spares take their places",
    "--accept-content": "captions were edited or videos encoded again",
    "--accept-plan": "buckets, micro-batch sizes, weights, levels or micro-batches per step are others",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Train an STDiT3 on shards, as one YAML recipe says.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting of the recipe, such as seed=7 or stages.0.optim.lr=2e-4; may be repeated",
    )
    parser.add_argument(
        "--load",
        type=Path,
        metavar="CHECKPOINT",
        help="begin with a checkpoint's weights, moving average, optimizer, step and data position",
    )
    parser.add_argument(
        "--start-from-scratch",
        action="store_true",
        help="with --load: keep weights, average and optimizer, but begin at step 0 of the data",
    )
    parser.add_argument(
        "--ckpt-path",
        type=Path,
        metavar="PATH",
        help="begin with weights only: a .safetensors file, or a checkpoint (its raw weights)",
    )
    changed = parser.add_argument_group(
        "when data or recipe were changed on purpose",
        "A run goes on only with what it was saved with. Each flag accepts one kind of change; --dry-run "
        "shows which there are.",
    )
    for flag, meaning in CHANGES.items():
        changed.add_argument(flag, dest="accept", action="append_const", const=flag, help=meaning)
    parser.add_argument(
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="start the ranks on these hosts over ssh: HOST slots=8 a line",
    )
    parser.add_argument(
        "--nproc-per-node",
        type=int,
        metavar="N",
        help="with --hostfile: ranks a host (default: its GPUs, or 1)",
    )
    parser.add_argument(
        "--ssh",
        default="ssh",
        metavar="COMMAND",
        help='with --hostfile: such as "ssh -p 2222" (default: ssh)',
    )
    parser.add_argument(
        "--connect-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="with --hostfile: wait this long (30)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be trained, on which clips; write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error was raised")
    return parser


def _words(given: argparse.Namespace) -> list[str]:
    """Return the command line of one rank of a launch: the same without what belongs to the launch."""
    words = [str(given.recipe), *(word for setting in given.settings for word in ("--set", setting))]
    for flag, path in (("--load", given.load), ("--ckpt-path", given.ckpt_path)):
        words += [flag, str(path)] if path else []
    words += given.accept or []
    for flag in ("start_from_scratch", "json", "traceback"):
        words += ["--" + flag.replace("_", "-")] if getattr(given, flag) else []
    return words


def _act(arguments: argparse.Namespace) -> int:
    # torch is loaded here, so that --help and a recipe's typing error answer at once.
    from trainer import dry_run, loop, recipe, resume

    if arguments.nproc_per_node is not None and (arguments.hostfile is None or arguments.nproc_per_node < 1):
        raise InputError(
            f"--nproc-per-node {arguments.nproc_per_node}: goes with --hostfile and is at least 1; on one "
            "host use torchrun --nproc-per-node N -m trainer RECIPE."
        )
    origin = resume.Origin(
        load=arguments.load,
        ckpt_path=arguments.ckpt_path,
        start_from_scratch=arguments.start_from_scratch,
        accept=tuple(arguments.accept or ()),
    )
    wanted = recipe.load(arguments.recipe, arguments.settings)
    if arguments.dry_run:
        report = dry_run.dry_run(wanted, origin, arguments.settings)
        print(json.dumps(report, indent=1) if arguments.json else dry_run.in_words(report))
        if report["resume"] and report["resume"]["error"]:
            raise StateError(report["resume"]["error"])
        return 0
    if arguments.hostfile:
        resume.check_origin(origin)
        hosts, words = read_hosts(arguments.hostfile), _words(arguments)
        per_host, ssh = arguments.nproc_per_node, arguments.ssh
        return launch(hosts, words, per_host=per_host, ssh=ssh, connect_seconds=arguments.connect_seconds)
    outcome = loop.train(wanted, origin, arguments.settings)
    if outcome.is_first_rank:
        print(json.dumps(outcome.as_json()) if arguments.json else outcome.in_words())
    return exit_codes.REQUEUE if outcome.stopped_by else exit_codes.DONE


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        code: int = importlib.import_module(COMMANDS[words[0]]).main(words[1:])
        return code
    return terminal.end_of_work(_act, _parser().parse_args(words), "from the last checkpoint")


if __name__ == "__main__":
    sys.exit(main())
