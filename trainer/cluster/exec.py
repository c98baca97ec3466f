"""Cluster exec: run a command on all nodes; group nodes with equal output."""

from collections.abc import Sequence

from trainer.cluster import node_tables
from trainer.cluster.ask_nodes import Answer, ask_nodes
from trainer.cluster.nodes import Node, Way


def limit_seconds(way: Way, seconds: float) -> float:
    """Return the maximum duration of `run_everywhere`."""
    return way.reach_seconds + seconds


def run_everywhere(nodes: Sequence[Node], way: Way, command: Sequence[str], seconds: float) -> list[Answer]:
    """Run the command, without a shell, on every node for at most `seconds`."""
    request = {"action": "exec", "command": list(command), "seconds": seconds}
    return ask_nodes(nodes, request, way, limit_seconds(way, seconds))


def is_good(answers: Sequence[Answer]) -> bool:
    return all(answer.document is not None and answer.document["code"] == 0 for answer in answers)


def groups(answers: Sequence[Answer]) -> list[tuple[list[str], dict[str, object]]]:
    """Return groups of nodes with equal output; the largest group first."""
    found: dict[tuple[object, ...], tuple[list[str], dict[str, object]]] = {}
    for answer in answers:
        if answer.document is not None:
            said = {key: answer.document[key] for key in ("code", "problem", "output")}
            found.setdefault(tuple(said.values()), ([], said))[0].append(answer.node.name)
    return sorted(found.values(), key=lambda group: -len(group[0]))


def to_text(answers: Sequence[Answer]) -> str:
    """Return the groups' outputs in full, not cut to a width."""
    lines: list[str] = []
    for names, said in groups(answers):
        how = said["problem"] or f"exit code {said['code']}"
        lines += node_tables.wrapped(f"{', '.join(names)} ({len(names)} of {len(answers)}): {how}", "  ")
        lines += [f"    {line}" for line in str(said["output"]).splitlines()]
    lines += [line for answer in answers if answer.document is None for line in node_tables.silence(answer)]
    return "\n".join(lines)
