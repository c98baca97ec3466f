"""Cluster status: processes per GPU and node, their load, and which node is odd."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cluster import compare, node_tables
from trainer.cluster.ask_nodes import Answer, ask_nodes
from trainer.cluster.nodes import Node, Way
from vidcurate.errors import counted

GIB = 1 << 30
LATE_SECONDS = 60.0  # without progress; a shorter time may be a long step
MOST_LINES = 8  # number of processes on one GPU


def status(
    nodes: Sequence[Node], way: Way, runs: Sequence[Path], seconds: float, limit_seconds: float
) -> list[Answer]:
    """Ask the nodes; each document gets `off`: its deviations from the others' median."""
    request = {"action": "status", "runs": [str(run.absolute()) for run in runs], "seconds": seconds}
    answers = ask_nodes(nodes, request, way, limit_seconds)
    said = {answer.node.name: answer.document for answer in answers if answer.document is not None}
    off = compare.off_the_median(said)
    for name, document in said.items():
        document["off"] = off[name]
    return answers


def to_text(answers: Sequence[Answer]) -> str:
    lines: list[str] = []
    for answer in answers:
        if answer.document is None:
            lines += node_tables.silence(answer)
        else:
            lines += _node(answer.node.name, answer.document)
    return "\n".join([*lines, node_tables.count(answers)])


def _node(name: str, document: dict[str, Any]) -> list[str]:
    machine = document["machine"]
    memory = machine["memory"]
    facts = [
        counted(len(document["gpus"]), "GPU"),
        f"load {machine['load']:.1f} on {machine['cores']} cores",
        f"CPU {node_tables.figure(document['cpu_percent'])} %",
        f"memory {node_tables.size(memory['available_bytes'])} free"
        f" of {node_tables.size(memory['total_bytes'])}",
    ]
    lines = node_tables.wrapped(f"{name}  {', '.join(facts)}", "  ")
    for disk in machine["disks"]:
        if "problem" in disk:
            lines += node_tables.wrapped(f"  ! {disk['problem']}", "    ")
        else:
            free = f"{node_tables.size(disk['free_bytes'])} free of {node_tables.size(disk['total_bytes'])}"
            lines.append(node_tables.cut(f"  disk {free}: {disk['folder']}"))
    if document["gpu_problem"]:
        lines += node_tables.wrapped(f"  ! {document['gpu_problem']}", "    ")
    if document["gpus"]:
        heads = ["GPU", "power W", "C", "util %", "SM MHz", "memory GiB", "slowed by", "process"]
        rows = [heads, *(row for gpu in document["gpus"] for row in _gpu(gpu))]
        lines += node_tables.table(rows, left=(6,), indent="  ")
    lines += [part for line in _runs(document) for part in node_tables.wrapped(f"  {line}", "    ")]
    lines += [node_tables.cut(f"  {line}") for line in _network(document["network"])]
    return [
        *lines,
        *(line for text in document["off"] for line in node_tables.wrapped(f"  ! {text}", "    ")),
    ]


def _gpu(gpu: dict[str, Any]) -> list[list[str]]:
    power = f"{node_tables.figure(gpu['power_watts'])}/{node_tables.figure(gpu['power_limit_watts'])}"
    clock = "/".join(node_tables.figure(gpu[key], ".0f") for key in ("sm_clock_mhz", "max_sm_clock_mhz"))
    used, total = (
        None if gpu[key] is None else gpu[key] / GIB for key in ("memory_used_bytes", "memory_total_bytes")
    )
    slowed = ", ".join(reason for reason in gpu["throttle_reasons"] if reason not in compare.QUIET)
    people = [_process(process) for process in gpu["processes"]]
    if len(people) > MOST_LINES:
        people = [*people[: MOST_LINES - 1], f"and {len(people) - MOST_LINES + 1} more"]
    first = [
        str(gpu["index"]),
        power,
        node_tables.figure(gpu["temperature_celsius"]),
        node_tables.figure(gpu["utilisation_percent"]),
        clock,
        f"{node_tables.figure(used, ',.1f')}/{node_tables.figure(total, ',.0f')}",
        "lost" if gpu["is_lost"] else slowed or "-",
        people[0] if people else "-",
    ]
    return [first, *([""] * 7 + [text] for text in people[1:])]


def _process(process: dict[str, Any]) -> str:
    who = f"{process['user'] or '?'} {process['pid']}"
    if process["run"] is None:
        return f"{who}: {process['command'] or process['name']}"
    rank = "run" if process["rank"] is None else f"rank {process['rank']} of"
    worker = "worker of " if process["worker_of"] else ""
    return f"{who}: {worker}{rank} {process['run']}"


def _runs(document: dict[str, Any]) -> list[str]:
    """Return a line for each run that trains here, with its ranks."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in document["runs"]:
        runs.setdefault(line["run"], []).append(line)
    lines = []
    for run, ranks in runs.items():
        shown = [
            ("" if rank["rank"] is None else f"rank {rank['rank']} ")
            + f"pid {rank['pid']} {rank['user']}"
            + (f" {rank['num_workers']} children" if rank["num_workers"] else "")
            + _progress(rank)
            for rank in ranks
        ]
        lines.append(f"run {run}: {'; '.join(shown)}")
    return lines


def _progress(rank: dict[str, Any]) -> str:
    """Return a rank's step and phase from its heartbeat, and how long it has stood still, if so."""
    if rank["step"] is None:
        return ""
    still = rank["seconds_since_progress"] + rank["seconds_since_beat"]
    late = f" for {still:.0f} s" if still > LATE_SECONDS else ""
    return f" step {rank['step']} {rank['phase']}{late}"


def _network(ports: dict[str, Any]) -> list[str]:
    lines = []
    for name, port in ports.items():
        new = ", ".join(f"{count} new {what.replace('_', ' ')}" for what, count in port["new_errors"].items())
        received, sent = port["received_bytes_per_second"], port["sent_bytes_per_second"]
        rates = f"{node_tables.rate(received)} in, {node_tables.rate(sent)} out"
        lines.append(f"net {name}: {rates}{', ' + new if new else ''}")
    return lines
