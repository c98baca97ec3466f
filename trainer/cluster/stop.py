"""Cluster stop: end a run on all its nodes at once; report what is left."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cluster import node_tables
from trainer.cluster.ask_nodes import Answer, ask_nodes
from trainer.cluster.node import stop as node_stop
from trainer.cluster.nodes import Node, Way

KILL_SECONDS = 5.0


def limit_seconds(way: Way, grace_seconds: float, interrupt_seconds: float) -> float:
    """Return the maximum duration of `stop`, if a node hangs at every point."""
    on_node = node_stop.limit_seconds(grace_seconds, interrupt_seconds, KILL_SECONDS)
    return way.reach_seconds + on_node


def stop(
    nodes: Sequence[Node],
    way: Way,
    run: Path,
    *,
    grace_seconds: float,
    interrupt_seconds: float = 10.0,
    is_dry_run: bool = False,
) -> list[Answer]:
    """Ask every node to end its ranks of the run: TERM, `grace_seconds`, INT, `interrupt_seconds`, KILL."""
    request = {
        "action": "stop",
        "run": str(run.absolute()),
        "is_dry_run": is_dry_run,
        "grace_seconds": grace_seconds,
        "interrupt_seconds": interrupt_seconds,
        "kill_seconds": KILL_SECONDS,
    }
    return ask_nodes(
        nodes, request, way, limit_seconds(way, grace_seconds, interrupt_seconds), on_progress=_print_progress
    )


def _print_progress(node: Node, text: str) -> None:
    print(f"{node.name}: {text}", file=sys.stderr, flush=True)


def not_asked(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return rank and host of ranks recorded on hosts that gave no answer."""
    said = [answer.document for answer in answers if answer.document is not None]
    hosts = {document["host"].partition(".")[0] for document in said}
    found = {
        (rank["rank"], rank["host"])
        for document in said
        for rank in document["elsewhere"]
        if rank["host"].partition(".")[0] not in hosts
    }
    return [{"rank": rank, "host": host} for rank, host in sorted(found)]


def is_over(answers: Sequence[Answer]) -> bool:
    """Return whether nothing of the run is left, confirmed by every host with a recorded rank."""
    said = [answer.document for answer in answers if answer.document is not None]
    return bool(said) and not not_asked(answers) and not any(document.get("left") for document in said)


def to_text(answers: Sequence[Answer], *, is_dry_run: bool) -> str:
    lines: list[str] = []
    for answer in answers:
        if answer.document is None:
            lines += node_tables.silence(answer)
            continue
        node = _node(answer.document) or ["nothing of this run is here"]
        lines += [node_tables.cut(f"{answer.node.name}  {node[0]}")]
        lines += [node_tables.cut(f"{' ' * len(answer.node.name)}  {line}") for line in node[1:]]
    for one in not_asked(answers):
        what = f"rank {one['rank']} is recorded on {one['host']}, from which no answer came"
        lines += node_tables.wrapped(f"! left: {what}; name that host in NODES", "  ")
    said = [answer.document for answer in answers if answer.document is not None]
    if is_dry_run:
        count = sum(len(document["would_end"]) for document in said)
        return "\n".join([*lines, f"{count} processes would be ended; nothing was done"])
    newest = next((document["newest"] for document in said if document["newest"]), "none")
    state = "nothing of the run is left" if is_over(answers) else "part of the run may still be running"
    return "\n".join([*lines, f"{state}; its newest checkpoint is {newest}"])


def _node(document: dict[str, Any]) -> list[str]:
    lines = [
        f"{one['what']}, pid {one['pid']} of {one['user']}, would be ended"
        for one in document.get("would_end", [])
    ]
    lines += [_ended(one) for one in document.get("ended", [])]
    for one in document["others"]:
        if one["is_gone"]:
            lines.append(f"rank {one['rank']}, pid {one['pid']}: had ended before")
        else:
            now, why = one["now"], one["why"] or "the id is another process's now"
            lines.append(
                f"rank {one['rank']}, pid {one['pid']}: left alone, {why}: {now['user']}: {now['command']}"
            )
    for one in document.get("left", []):
        why = one["problem"] or f"is in state {one['state']} and took no signal"
        lines.append(f"! left: {one['what']}, pid {one['pid']}: {why}; {one['command']}")
    for one in document.get("gpus_held", []):
        held = node_tables.size(one["memory_bytes"])
        if one["pid"] is None:
            lines.append(f"! GPU {one['gpu']}: {held} are held and no process is seen to hold them")
        else:
            whose = "this run" if one["is_of_run"] else "not this run"
            lines.append(
                f"! GPU {one['gpu']}: {held} are held by pid {one['pid']} ({whose}): {one['command']}"
            )
    return lines


def _ended(one: dict[str, Any]) -> str:
    how = f"ended after {one['by']}" if one["by"] != "itself" else "ended with its rank"
    lost = "; what it had not saved is lost" if one["by"] == "KILL" and one["what"].startswith("rank") else ""
    return f"{one['what']}, pid {one['pid']} of {one['user']}: {how}, {one['seconds']:.1f} s{lost}"
