"""Cluster health: a verdict per node with advice, for excluding bad nodes.

bad: a finding for which the policy (trainer.health.xid) drains a node, a missing GPU, or no answer. watch:
any other finding; the node can train. good: no finding.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cluster import node_tables
from trainer.cluster.ask_nodes import Answer, ask_nodes
from trainer.cluster.nodes import Node, Way
from trainer.run_folder.line_forms import is_list_of, is_none_or, is_of, is_text, is_whole
from vidcurate.errors import counted

_CONCERN = {"gpu": is_none_or(is_whole), "text": is_text, "action": is_text, "advice": is_text}
_has_form = is_of(
    {
        "concerns": is_list_of(is_of(_CONCERN)),
        "num_gpus": is_whole,
        "gpu_name": is_none_or(is_text),
        "driver": is_none_or(is_text),
        "not_read": is_list_of(is_text),
    }
)
MISSING = "look at the kernel's log for Xid 79, and reboot the node"


def health(
    nodes: Sequence[Node], way: Way, runs: Sequence[Path], min_disk_bytes: int, limit_seconds: float
) -> list[Answer]:
    """Ask the nodes; each document gets `verdict`: good, watch or bad."""
    request: dict[str, Any] = {
        "action": "health",
        "runs": [str(run.absolute()) for run in runs],
        "min_disk_bytes": min_disk_bytes,
    }
    answers = ask_nodes(nodes, request, way, limit_seconds, has_form=_has_form)
    said = [answer for answer in answers if answer.document is not None]
    for answer in said:
        document = answer.document
        assert document is not None
        document["concerns"] += _missing(answer, said)
        actions = {concern["action"] for concern in document["concerns"]} - {"ignore"}
        document["verdict"] = "bad" if "drain_node" in actions else "watch" if actions else "good"
    return answers


def _missing(answer: Answer, said: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return a finding for fewer GPUs than the hostfile's ranks, or than most other nodes have."""
    assert answer.document is not None
    here = answer.document["num_gpus"]
    others = [one.document["num_gpus"] for one in said if one.document is not None and one is not answer]
    usual = statistics.median_low(others) if others else 0
    expected = max(usual if len(others) > 1 else 0, answer.node.slots or 0 if here or usual else 0)
    if here >= expected:
        return []
    text = f"{counted(here, 'GPU')} where {expected} are expected"
    return [{"gpu": None, "text": text, "action": "drain_node", "advice": MISSING}]


def bad_nodes(answers: Sequence[Answer]) -> list[str]:
    """Return the names of the nodes that are bad or gave no answer."""
    return [
        answer.node.name
        for answer in answers
        if answer.document is None or answer.document["verdict"] == "bad"
    ]


def to_text(answers: Sequence[Answer]) -> str:
    lines: list[str] = []
    for answer in answers:
        document = answer.document
        if document is None:
            lines += node_tables.wrapped(f"{answer.node.name}  bad: no answer: {answer.error}", "  ")
            continue
        gpus = counted(document["num_gpus"], "GPU")
        about = (
            f"{gpus}, {document['gpu_name']}, driver {document['driver']}" if document["num_gpus"] else gpus
        )
        lines.append(node_tables.cut(f"{answer.node.name}  {document['verdict']}: {about}"))
        for concern in document["concerns"]:
            where = "" if concern["gpu"] is None else f"GPU {concern['gpu']}: "
            text = f"  {concern['action']}: {where}{concern['text']}; {concern['advice']}"
            lines += node_tables.wrapped(text, "    ")
        lines += [line for text in document["not_read"] for line in node_tables.wrapped(f"  {text}", "    ")]
    bad = bad_nodes(answers)
    verdict = f"{len(bad)} of {len(answers)} nodes are bad: {', '.join(bad)}" if bad else "no node is bad"
    return "\n".join([*lines, *node_tables.wrapped(verdict, "  ")])
