"""Cluster clocks: offsets between nodes' clocks, drift, and time daemons.

Each exchange takes four time stamps over the agent's connection; the fastest of several exchanges counts,
with an error of half its round trip (trainer.health.clock_offset). The limit applies to the distance from the
median of the other nodes: the asking machine's clock does not matter for training.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from trainer.cluster import node_tables
from trainer.cluster.ask_nodes import Answer, Document, Line, ask_each, begin_request
from trainer.cluster.nodes import Node, Way, agent_on
from trainer.health import clock_offset

SAMPLES = 12
FEWEST = 3  # number of nodes; with fewer, the distance is that from this machine
DISCIPLINE_SECONDS = 15.0  # time for chronyc, timedatectl and the kernel in turn
EXCHANGE_SECONDS = 5.0


def limit_seconds(way: Way, seconds: float) -> float:
    """Return the maximum duration of `clocks`."""
    return way.reach_seconds + DISCIPLINE_SECONDS + seconds + 2 * EXCHANGE_SECONDS


def clocks(nodes: Sequence[Node], way: Way, seconds: float, max_offset_seconds: float) -> list[Answer]:
    """Measure every node's clock against this one, and again `seconds` later for the drift; 0: once.

    Each document gets `distance_seconds`, its error, and `verdict`: near, far, or unsure if the round trip is
    too long.
    """
    limit = limit_seconds(way, seconds)

    def talk(line: Line) -> Document:
        begin_request(line, {"action": "clocks"}, way, limit)
        kept, _ = line.receive(time.monotonic() + DISCIPLINE_SECONDS)
        first, at = _offset(line), time.monotonic()
        found: dict[str, Any] = {"offset_seconds": first.seconds, "error_seconds": first.error_seconds}
        if seconds > 0:
            time.sleep(seconds)
            second, apart = _offset(line), time.monotonic() - at
            found["drift_ppm"] = 1e6 * (second.seconds - first.seconds) / apart
            found["drift_error_ppm"] = 1e6 * (first.error_seconds + second.error_seconds) / apart
        return {"host": kept.pop("host"), **found, "kept_by": kept}

    answers = ask_each(nodes, lambda node: agent_on(node, way), talk)
    _check(answers, max_offset_seconds)
    return answers


def _offset(line: Line) -> clock_offset.Offset:
    until, taken = time.monotonic() + EXCHANGE_SECONDS, []
    for _ in range(SAMPLES):
        sent = time.time_ns()
        line.send({})
        found, arrived = line.receive(until)
        taken.append(clock_offset.Stamps(sent, found["received"], found["answered"], arrived))
    return clock_offset.best(taken)


def _check(answers: Sequence[Answer], max_offset_seconds: float) -> None:
    said = {answer.node.name: answer.document for answer in answers if answer.document is not None}
    for name, document in said.items():
        others = [other for key, other in said.items() if key != name]
        middle, error = 0.0, 0.0
        if len(said) >= FEWEST:
            middle = statistics.median(other["offset_seconds"] for other in others)
            error = statistics.median(other["error_seconds"] for other in others)
        distance = document["offset_seconds"] - middle
        error += document["error_seconds"]
        surely, perhaps = abs(distance) - error, abs(distance) + error
        near = perhaps <= max_offset_seconds
        document["distance_seconds"], document["distance_error_seconds"] = distance, error
        document["verdict"] = "near" if near else "far" if surely > max_offset_seconds else "unsure"


def to_text(answers: Sequence[Answer], max_offset_seconds: float) -> str:
    said = [answer for answer in answers if answer.document is not None]
    from_what = "the others' median" if len(said) >= FEWEST else "this machine"
    rows = [["node", "offset ms", "± ms", f"from {from_what}", "drift ppm", "", "kept by"]]
    advice: dict[str, list[str]] = {}
    for answer in said:
        found = answer.document
        assert found is not None
        drift = f"{found['drift_ppm']:+.1f} ± {found['drift_error_ppm']:.1f}" if "drift_ppm" in found else "-"
        rows.append(
            [
                answer.node.name,
                f"{1e3 * found['offset_seconds']:+.3f}",
                f"{1e3 * found['error_seconds']:.3f}",
                f"{1e3 * found['distance_seconds']:+.3f} ± {1e3 * found['distance_error_seconds']:.3f}",
                drift,
                found["verdict"],
                found["kept_by"]["said"],
            ]
        )
        todo = found["kept_by"]["advice"] or (clock_offset.CHRONY if found["verdict"] == "far" else "")
        advice.setdefault(todo, []).append(answer.node.name)
    lines = node_tables.table(rows, left=(0, 5)) if said else []
    lines += [line for answer in answers if answer.document is None for line in node_tables.silence(answer)]
    for text, names in advice.items():
        if text:
            lines += node_tables.wrapped(f"{', '.join(names)}: {text}", "  ")
    for verdict, meaning in (("far", "are off by more than"), ("unsure", "may exceed")):
        names = [one.node.name for one in said if one.document and one.document["verdict"] == verdict]
        if names:
            what = f"{', '.join(names)} {meaning} {1e3 * max_offset_seconds:g} ms"
            lines += node_tables.wrapped(what, "  ")
    return "\n".join([*lines, node_tables.count(answers)])
