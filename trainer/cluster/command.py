"""Cluster command: arguments of `python -m trainer cluster`, and its exit codes."""

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import commands as cli_commands
from trainer.cli import exit_codes, help_text
from trainer.cluster import dump, health, node_tables, status, stop
from trainer.cluster.ask_nodes import Answer
from trainer.cluster.nodes import Node, Way, read_nodes
from vidcurate.errors import InputError, printable

EXAMPLE = """\
  python -m trainer cluster status local
  python -m trainer cluster health nodes.txt --run runs/first
  python -m trainer cluster dump nodes.txt --run runs/first
  python -m trainer cluster stop nodes.txt --run runs/first --dry-run

exit codes: 0 every node answered and all is well; 1 a node did not answer or something of the run is left;
2 the request was wrong; 77 (health) a node is bad or does not answer
"""
NODES = "a hostfile (HOST slots=8 a line), node1,node2, slurm (this job), slurm:JOBID, or local"
GIB = 1 << 30
MOST_SECONDS_OR_GIB = 1e9


def _parser() -> argparse.ArgumentParser:
    parser = cli_commands.parser(
        "cluster", "Look at the nodes of a run, end it, or find where it hangs.", EXAMPLE
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {
        name: commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=f"example:\n{next(line for line in EXAMPLE.splitlines() if f' cluster {name} ' in line)}",
            formatter_class=help_text.HelpFormatter,
            allow_abbrev=False,
        )
        for name, text in {
            "status": "processes per GPU, power, clocks, load, disk, network; the odd node is marked",
            "health": "a verdict a node: ECC, row remapper, Xid, throttling, PCIe, missing GPUs, disk, clock",
            "dump": "stacks of all ranks and loader workers twice; equal ones grouped, the odd one named",
            "stop": "end a run by its recorded processes: TERM, a long time to save, INT, KILL",
        }.items()
    }
    for one in made.values():
        one.add_argument("nodes", metavar="NODES", help=NODES)
        one.add_argument("--ssh", default="ssh", metavar="COMMAND", help='such as "ssh -p 2222" (ssh)')
        _number(
            one,
            "--connect-seconds",
            10.0,
            "how long a connection may take; twice as long until the node's Python answers",
        )
        one.add_argument("--json", action="store_true", help="print the answer as JSON")
    for name in ("status", "health"):
        made[name].add_argument(
            "--run",
            type=Path,
            action="append",
            default=[],
            metavar="RUN",
            help="a run folder; may be repeated",
        )
        _number(made[name], "--limit-seconds", 40.0, "how long a node may take to answer")
    _number(made["status"], "--seconds", 1.0, "between two readings of the counters of the network")
    _number(made["health"], "--min-disk-gib", 50.0, "free space that the run's disk must have, in GiB")
    for name in ("dump", "stop"):
        made[name].add_argument("--run", type=Path, required=True, metavar="RUN", help="the run's folder")
    _number(made["dump"], "--apart-seconds", 5.0, "between the two looks")
    _number(made["dump"], "--look-seconds", 20.0, "how long one look at all processes of a node may take")
    made["dump"].add_argument(
        "--to", type=Path, metavar="FOLDER", help="where all stacks are written (RUN/stacks/TIME)"
    )
    _number(made["stop"], "--grace-seconds", 600.0, "for the ranks to save and leave, before INT and KILL")
    _number(made["stop"], "--interrupt-seconds", 10.0, "between INT and KILL")
    made["stop"].add_argument("--dry-run", action="store_true", help="say what would be ended; touch nothing")
    return parser


def _number(to: argparse.ArgumentParser, flag: str, value: float, meaning: str) -> None:
    to.add_argument(flag, type=float, default=value, metavar="N", help=f"{meaning} ({value:g})")


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(list(arguments))
    codes: list[int] = []
    code = cli_commands.run_short_command(lambda: codes.append(_run(given)))
    return code or codes[0]


def _run(given: argparse.Namespace) -> int:
    for name, value in vars(given).items():
        if isinstance(value, float) and not 0.0 <= value <= MOST_SECONDS_OR_GIB:
            raise InputError(
                f"--{name.replace('_', '-')} {value:g}: must be 0 or more, at most {MOST_SECONDS_OR_GIB:g}."
            )
    nodes = read_nodes(given.nodes)
    try:
        ssh = tuple(shlex.split(given.ssh))
    except ValueError as error:
        raise InputError(f"--ssh {given.ssh}: {error}.") from error
    way = Way(ssh=ssh, connect_seconds=given.connect_seconds)
    answers, text, more, code = ACTS[given.command](nodes, way, given)
    text = "\n".join(map(printable, text.split("\n")))  # nodes and files of a run say what they like
    print(json.dumps(node_tables.to_json(given.command, answers, **more)) if given.json else text)
    return code


Act = tuple[list[Answer], str, dict[str, Any], int]


def _code(answers: Sequence[Answer], is_well: bool = True) -> int:
    all_answered = all(answer.document is not None for answer in answers)
    return exit_codes.DONE if all_answered and is_well else exit_codes.FAILED


def _status(nodes: Sequence[Node], way: Way, given: argparse.Namespace) -> Act:
    answers = status.status(
        nodes, way, given.run, given.seconds, way.reach_seconds + given.limit_seconds + given.seconds
    )
    return answers, status.to_text(answers), {}, _code(answers)


def _health(nodes: Sequence[Node], way: Way, given: argparse.Namespace) -> Act:
    answers = health.health(
        nodes, way, given.run, int(given.min_disk_gib * GIB), way.reach_seconds + given.limit_seconds
    )
    bad = health.bad_nodes(answers)
    return answers, health.to_text(answers), {"bad": bad}, exit_codes.BAD_NODE if bad else exit_codes.DONE


def _dump(nodes: Sequence[Node], way: Way, given: argparse.Namespace) -> Act:
    answers = dump.dump(nodes, way, given.run, given.look_seconds, given.apart_seconds)
    is_answered = any(answer.document is not None for answer in answers)
    folder = given.to or (dump.default_folder(given.run) if is_answered else None)
    if folder is not None:
        dump.write_dump(folder, answers)
    more = {**dump.compared(answers), "folder": folder and str(folder)}
    return answers, dump.to_text(answers, folder), more, _code(answers, not dump.missing(answers))


def _stop(nodes: Sequence[Node], way: Way, given: argparse.Namespace) -> Act:
    answers = stop.stop(
        nodes,
        way,
        given.run,
        grace_seconds=given.grace_seconds,
        interrupt_seconds=given.interrupt_seconds,
        is_dry_run=given.dry_run,
    )
    more = {"not_asked": stop.not_asked(answers)}
    return (
        answers,
        stop.to_text(answers, is_dry_run=given.dry_run),
        more,
        _code(answers, stop.is_over(answers)),
    )


ACTS = {
    "status": _status,
    "health": _health,
    "dump": _dump,
    "stop": _stop,
}
