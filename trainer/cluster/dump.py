"""Cluster dump: stacks of all ranks and loader workers, taken twice and compared."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cluster import node_tables
from trainer.cluster.ask_nodes import Answer, ask_nodes
from trainer.cluster.nodes import Node, Way
from trainer.health.watch import stack_groups, stacks
from trainer.health.watch.stacks import Stack
from vidcurate.errors import StorageError

LOOKS = 2


def limit_seconds(way: Way, seconds: float, apart_seconds: float) -> float:
    """Return the maximum duration of `dump`."""
    return way.reach_seconds + LOOKS * 2 * seconds + apart_seconds


def dump(nodes: Sequence[Node], way: Way, run: Path, seconds: float, apart_seconds: float) -> list[Answer]:
    """Sample every node's ranks for at most `seconds`, and again `apart_seconds` later."""
    request = {"action": "dump", "run": str(run.absolute()), "seconds": seconds}
    limit = limit_seconds(way, seconds, apart_seconds)
    return ask_nodes(nodes, request | {"apart_seconds": apart_seconds}, way, limit)


def seen(answers: Sequence[Answer], which: str) -> list[Stack]:
    """Return the stacks of all nodes of the "first" or "second" sample, by rank; ranks before workers."""
    found = [
        stacks.stack_from_json(values)
        for answer in answers
        if answer.document is not None
        for values in answer.document[which]
    ]
    # Two names of a hostfile may be one machine.
    unique = {(stack.host, stack.pid): stack for stack in found}.values()
    return sorted(unique, key=lambda stack: (stack.is_worker, stack.rank or 0, stack.pid))


def standing(first: Sequence[Stack], second: Sequence[Stack]) -> list[Stack]:
    """Return the stacks of the second sample that equal the first, at the same step."""
    steps = {(stack.host, stack.pid): stack.step for stack in first}
    return [
        stack
        for stack in stack_groups.unmoved(first, second)
        if stack.step is None or stack.step == steps[stack.host, stack.pid]
    ]


def odd_one(second: Sequence[Stack], still: Sequence[Stack]) -> stack_groups.Odd | None:
    """Return the rank that the others wait for; None if no rank stands still."""
    is_over = any(stack.state in ("ended", "stopped") for stack in second)
    if is_over or any(not stack.is_worker for stack in still):
        return stack_groups.odd_one(stack_groups.group(second))
    return None


def compared(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return JSON values: groups (process names, frames), unmoved, waiting collectives, and the odd rank."""
    first, second = seen(answers, "first"), seen(answers, "second")
    still = standing(first, second)
    odd = odd_one(second, still)
    return {
        "groups": [
            {
                "processes": [stack.name for stack in members],
                "state": members[0].state,
                "frames": [str(frame) for frame in members[0].frames],
            }
            for members in stack_groups.group(second)
        ],
        "unmoved": [stack.name for stack in still],
        "collectives": [
            {"collective": str(wait), "waiting": list(wait.waiting), "late": list(wait.late)}
            for wait in stack_groups.waits(second)
        ],
        "odd": None if odd is None else stack_groups.odd_as_text(odd),
    }


def write_dump(folder: Path, answers: Sequence[Answer]) -> None:
    """Write first.txt and second.txt with every thread of every process, dump.json, and summary.txt.

    Raises StorageError.
    """
    texts = {f"{which}.txt": _in_full(seen(answers, which)) for which in ("first", "second")}
    texts["dump.json"] = (
        json.dumps(node_tables.to_json("dump", answers, **compared(answers)), indent=1) + "\n"
    )
    texts["summary.txt"] = to_text(answers, None) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror}).") from error


def default_folder(run: Path) -> Path:
    return run / "stacks" / time.strftime("%Y%m%d-%H%M%S")


def _in_full(found: Sequence[Stack]) -> str:
    lines = []
    for stack in found:
        facts = [f"pid {stack.pid}", stack.state, f"by {stack.how}", stack.note]
        lines.append(f"── {stack.name}: {', '.join(fact for fact in facts if fact)}")
        for thread in stack.threads:
            lines.append(f"  thread {thread.name}{' (holds the GIL)' if thread.holds_gil else ''}")
            lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames]
        lines.append("")
    return "\n".join(lines)


def to_text(answers: Sequence[Answer], folder: Path | None) -> str:
    first, second = seen(answers, "first"), seen(answers, "second")
    still = standing(first, second)
    lines = []
    if second:
        text = stack_groups.to_text(stack_groups.group(second), still).splitlines()
        begin = 2 if text[0].startswith("odd: ") else 0
        odd = odd_one(second, still)
        first_line = f"odd: {stack_groups.odd_as_text(odd)}" if odd else "no rank stands out"
        moved = f"{len(still)} of {len(second)} processes stood where they were"
        lines += [*node_tables.wrapped(first_line, "  "), moved, "", *map(node_tables.cut, text[begin:]), ""]
    else:
        lines.append("no rank of this run is recorded on these nodes")
    lines += [line for answer in answers if answer.document is None for line in node_tables.silence(answer)]
    lines += missing(answers)
    return "\n".join([*lines, *([f"written to {folder}"] if folder else [])])


def missing(answers: Sequence[Answer]) -> list[str]:
    """Return a line for each rank recorded on a host that gave no answer."""
    said = [answer.document for answer in answers if answer.document is not None]
    hosts = {document["host"] for document in said}
    found = {
        (rank["rank"], rank["host"])
        for document in said
        for rank in document["elsewhere"]
        if rank["host"] not in hosts
    }
    return [f"rank {rank} is recorded on {host}, from which no answer came" for rank, host in sorted(found)]
